"""Self-loops for the nodes that have none, and their edge features."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.pairs import check_number, describe
from unified_attn.rows import edge_ends

REDUCTIONS = {"add": "sum", "sum": "sum", "mean": "mean", "min": "amin", "max": "amax", "mul": "prod"}
"""How the features of the edges that point at a node may become those of its loop; torch's names for them."""


def check_fill_value(fill_value: object) -> None:
    """Raises unless features of loops can be made from this.

    Raises:
        TypeError: If it is neither a number, a float tensor nor a name.
        ValueError: If it is a name of no reduction.
    """
    remedy = f"give a number, a float tensor [edge_dim], or one of {', '.join(map(repr, REDUCTIONS))}"
    if isinstance(fill_value, str):
        if fill_value not in REDUCTIONS:
            raise ValueError(f"fill_value is {fill_value!r}; {remedy}")
    elif not isinstance(fill_value, Tensor):
        check_number("fill_value", fill_value, remedy)
    elif not fill_value.is_floating_point():
        raise TypeError(f"fill_value is {describe(fill_value)}; {remedy}")


def looped_nodes(edge_index: Tensor, num_keys: int, num_queries: int) -> Tensor:
    """Which targets, the first of the sources, have a self-loop, ``[num_queries]`` bool, after a range check."""
    query, key = edge_ends(edge_index, num_queries, num_keys)
    own = (query == key).long()
    looped: Tensor = query.new_zeros(num_queries).index_add(0, query, own) > 0
    return looped


def with_loops(edge_index: Tensor, nodes: Tensor) -> Tensor:
    """The edges, then a loop at each of the nodes: ``[2, E + M]``, int64, for a narrow type may not hold all nodes."""
    return torch.cat([edge_index.long(), nodes.expand(2, -1)], dim=1)


def loop_features(
    edge_attr: Tensor, edge_index: Tensor, nodes: Tensor, num_nodes: int, fill_value: float | Tensor | str
) -> Tensor:
    """Features ``[M, F]`` of loops at ``nodes``: a constant, or a reduction of what points at the node.

    A node that nothing points at gets 0 (of ``"mul"`` 1).

    Args:
        edge_attr: ``[E, F]``.
        edge_index: ``[2, E]``.
        nodes: ``[M]``.
        num_nodes: N.
        fill_value: As in :class:`~unified_attn.nn.GATConv`.

    Raises:
        ValueError: If a tensor does not broadcast to ``[M, F]``.

    Example:
        >>> edge_index, edge_attr = torch.tensor([[0, 1], [2, 2]]), torch.tensor([[1.0], [3.0]])
        >>> loop_features(edge_attr, edge_index, torch.tensor([0, 2]), 3, "mean")
        tensor([[0.],
                [2.]])
    """
    size = (nodes.shape[0], edge_attr.shape[1])
    if isinstance(fill_value, Tensor):
        # A row a node is a row each of all nodes, of which some have their loop already.
        value = fill_value.to(edge_attr)
        if value.dim() == 2 and value.shape[0] == num_nodes != 1:
            value = value.index_select(0, nodes)
        if value.dim() > 2 or any(a not in (1, b) for a, b in zip(value.shape[::-1], size[::-1], strict=False)):
            raise ValueError(
                f"fill_value has shape {list(fill_value.shape)}; it must be [edge_dim] = [{size[1]}], or a row a node, "
                f"[{num_nodes}, {size[1]}]"
            )
        return value.expand(size)
    if not isinstance(fill_value, str):
        return edge_attr.new_full(size, fill_value)
    return _reduced(edge_attr, edge_index[1].long(), num_nodes, fill_value).index_select(0, nodes)


def _reduced(edge_attr: Tensor, target: Tensor, num_nodes: int, how: str) -> Tensor:
    """What points at each node, reduced: ``[N, F]``."""
    half = edge_attr.dtype not in (torch.float32, torch.float64)
    wide = edge_attr.float() if half else edge_attr  # a sum of ones in bfloat16 ends at 256
    sizes = (num_nodes, edge_attr.shape[1])
    if how in ("add", "sum", "mean"):
        total = wide.new_zeros(sizes).index_add(0, target, wide)
        if how == "mean":
            degree = wide.new_zeros(num_nodes).index_add(0, target, wide.new_ones(target.shape[0]))
            total = total / degree.clamp_min(1.0)[:, None]
    else:
        start = wide.new_full(sizes, 1.0 if how == "mul" else 0.0)
        index = target[:, None].expand_as(wide)
        total = start.scatter_reduce(0, index, wide, REDUCTIONS[how], include_self=how == "mul")
    return total.to(edge_attr.dtype)
