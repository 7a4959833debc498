"""A value an edge."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.biases.base import Bias, widened
from unified_attn.pairs import Pairs, Shape, check_device, check_integers, check_number, describe, fits, hold
from unified_attn.rows import coded, edge_ends


class EdgeBias(Bias):
    """Adds ``values[e]`` to the logit of edge e; differentiable in the values.

    Args:
        values: ``[E]`` or ``[E, Hq]`` floats in the caller's edge order.
        edge_index: None: the edges are those of the graph in the mask. Given (``[2, E]``, sources then targets), the
            bias brings edges of its own and lies on any mask, dense ones included, as in Graphormer; parallel edges
            accumulate.
        default: Value of pairs that ``edge_index`` does not name.

    Raises:
        TypeError: If values are no floats, or ``edge_index`` no integers.
        ValueError: If shapes disagree, or, in a call, there is no graph to tie the values to.

    Reference: for edges of its own, Ying et al., Graphormer, NeurIPS 2021, arXiv 2106.05234.

    Example:
        Two keys with equal content; the second edge is worth log 3 more, so it weighs three times as much:

        >>> import torch
        >>> from unified_attn import Graph, attention_weights
        >>> graph = Graph(torch.tensor([[0, 1], [2, 2]]))
        >>> q = k = torch.zeros(1, 1, 3, 4)
        >>> attention_weights(q, k, mask=graph, bias=EdgeBias(torch.tensor([1.0, 3.0]).log()))
        tensor([[[0.2500, 0.7500]]])
    """

    values: Tensor
    edge_index: Tensor | None
    space = "row"

    def __init__(self, values: Tensor, edge_index: Tensor | None = None, default: float = 0.0) -> None:
        super().__init__()
        if not isinstance(values, Tensor) or not values.is_floating_point():
            got = describe(values) if isinstance(values, Tensor) else type(values).__name__
            raise TypeError(f"values is {got}; give floats, one an edge (edges to hide: graph.keep(bool_tensor))")
        if values.dim() not in (1, 2):
            raise ValueError(f"values has shape {list(values.shape)}; it must be [E] or [E, Hq]")
        check_number("default", default, "give a number for pairs that edge_index does not name")
        if edge_index is not None:
            check_integers("edge_index", edge_index, "give a [2, E] tensor of integers: sources, then targets")
            if edge_index.shape != (2, values.shape[0]):
                raise ValueError(
                    f"edge_index has shape {list(edge_index.shape)}, but values holds {values.shape[0]} edges: "
                    f"it must be [2, {values.shape[0]}], sources then targets"
                )
        elif default != 0.0:
            raise ValueError(
                f"default = {default} is for pairs that edge_index does not name; without edge_index there are none"
            )
        self.default = default
        hold(self, "values", values)
        hold(self, "edge_index", edge_index)

    def on(self, pairs: Pairs) -> Tensor:
        if self.edge_index is None:
            return pairs.of_edges(self.values)
        shape = pairs.shape
        query, key = edge_ends(self.edge_index, shape.num_queries, shape.num_keys)
        per_head = widened(self.values if self.values.dim() == 2 else self.values[:, None])
        codes, order = coded(query, key, shape.num_queries, shape.num_keys)
        first = torch.searchsorted(codes, codes[:-1])  # parallel edges add up at the first of them
        sums = per_head.new_zeros(codes.shape[0], per_head.shape[1]).index_add(0, first, per_head[order])
        wanted = pairs.query * shape.num_keys + pairs.key
        place = torch.searchsorted(codes, wanted)
        head = pairs.head if per_head.shape[1] > 1 else torch.zeros_like(pairs.head)
        return torch.where(codes[place] == wanted, sums[place, head], self.default)

    def check(self, shape: Shape) -> None:
        check_device("EdgeBias's values", self.values, shape)
        if self.values.dim() == 2 and not fits(self.values.shape[1], shape.num_heads):
            raise ValueError(
                f"EdgeBias's values are [E, H] = {list(self.values.shape)}, but q has {shape.num_heads} heads"
            )
        if self.edge_index is not None:
            check_device("EdgeBias's edge_index", self.edge_index, shape)
            edge_ends(self.edge_index, shape.num_queries, shape.num_keys)  # range check before any work
        else:
            check_edge_tied("EdgeBias's values", self.values.shape[0], shape)

    def __repr__(self) -> str:
        own = "" if self.edge_index is None else ", edge_index"
        return f"EdgeBias({list(self.values.shape)}{own})"


def check_edge_tied(name: str, num_edges: int, shape: Shape) -> None:
    """Raises ValueError unless the mask holds one graph with this number of edges."""
    if shape.num_edges is None:
        raise ValueError(
            f"{name} are tied to the edges of one Graph, but the mask is a set of pairs: put a single Graph into the "
            f"mask (with & alone), or give edges by edge_index where that is offered"
        )
    if num_edges != shape.num_edges:
        raise ValueError(
            f"{name} hold {num_edges} edges, but the mask's graph has {shape.num_edges}: one value an edge"
        )
