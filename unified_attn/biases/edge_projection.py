"""Features of edges, projected and added to keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.biases.base import Bias
from unified_attn.biases.edge import check_edge_tied
from unified_attn.pairs import Pairs, Shape, check_device, check_floats, describe, hold
from unified_attn.vectors import Projected, Vectors


class EdgeProjection(Bias):
    """Adds a linear map of an edge's features to the key and the value that the edge brings.

        logits_e = score(q_i, k_j + W_key f_e),   out_i = sum_e softmax(logits)_e (v_j + W_value f_e)

    Equal to ``PairVectors(key=lin_edge(edge_attr).view(E, Hkv, D), ...)``, but ``csr`` forms that tensor only where it
    holds at most 2**21 numbers: else, under :class:`~unified_attn.Dot` <q, W f> = <W^T q, f>, under
    :class:`~unified_attn.GATv2` edges are projected inside the kernel, and values are summed as features before they
    are projected. In a sum with one :class:`PairVectors` or one
    :class:`RelativeVectors` that stays so; more terms on one side are added up edge by edge first, ``[E, Hkv, D]``.

    Args:
        edge_attr: ``[E, F]`` in the caller's edge order.
        key: Weight of the map for keys, ``[Hkv * D, F]`` as in ``torch.nn.Linear`` (torch-geometric's ``lin_edge``), or
            ``[Hkv, D, F]``; or None.
        value: The same for values, with Dv for D; both may be one tensor, as in ``TransformerConv``.

    Raises:
        TypeError: If one is no float tensor.
        ValueError: If both weights are None or shapes disagree; in a call, if a shape does not fit, or there is no
            graph to tie the features to.

    Cost: under ``csr``, where nothing is formed, O(E F) memory for the gradient of ``edge_attr``, none for weights;
    O(E Hq F) more time, for keys under ``GATv2`` O(E Hq D F).

    Example:
        >>> import torch
        >>> lin_edge = torch.nn.Linear(3, 2 * 8, bias=False)  # two heads of eight
        >>> EdgeProjection(torch.zeros(5, 3), key=lin_edge.weight)
        EdgeProjection([5, 3], key=[16, 3])
    """

    edge_attr: Tensor
    key: Tensor | None
    value: Tensor | None

    def __init__(self, edge_attr: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> None:
        super().__init__()
        check_floats("edge_attr", edge_attr, "give floats, [E, F]")
        if edge_attr.dim() != 2:
            hint = "; one number an edge is edge_attr[:, None]" if edge_attr.dim() == 1 else ""
            raise ValueError(f"edge_attr has shape {list(edge_attr.shape)}; it must be [E, F]{hint}")
        if key is None and value is None:
            raise ValueError("EdgeProjection needs a weight for key, value or both")
        for name, weight in (("key", key), ("value", value)):
            if weight is None:
                continue
            check_floats(name, weight, "give the weight of a linear map, [Hkv * D, F] or [Hkv, D, F]")
            if weight.dim() not in (2, 3) or weight.shape[-1] != edge_attr.shape[1]:
                raise ValueError(
                    f"{name} has shape {list(weight.shape)}; it must be [Hkv * D, F] or [Hkv, D, F] with "
                    f"F = {edge_attr.shape[1]}, as edge_attr is {describe(edge_attr)}"
                )
        hold(self, "edge_attr", edge_attr)
        hold(self, "key", key)
        hold(self, "value", value)

    def vectors_on(self, pairs: Pairs, dtype: torch.dtype) -> tuple[Vectors | None, Vectors | None]:
        features = self.edge_attr.to(dtype)
        shape = pairs.shape

        def projected(weight: Tensor | None, size: int | None) -> Vectors | None:
            if weight is None or size is None:
                return None
            return Projected(features, weight.to(dtype).reshape(shape.num_kv_heads, size, features.shape[1]))

        key = projected(self.key, shape.head_dim)
        if self.value is self.key and shape.value_dim == shape.head_dim:
            return key, key  # projected once
        return key, projected(self.value, shape.value_dim)

    def check(self, shape: Shape) -> None:
        check_device("EdgeProjection's edge_attr", self.edge_attr, shape)
        check_edge_tied("EdgeProjection's features", self.edge_attr.shape[0], shape)
        for name, weight, letter, dim in (
            ("key", self.key, "D", shape.head_dim),
            ("value", self.value, "Dv", shape.value_dim),
        ):
            if weight is None or dim is None:
                continue
            check_device(f"EdgeProjection's {name}", weight, shape)
            wanted = [shape.num_kv_heads, dim] if weight.dim() == 3 else [shape.num_kv_heads * dim]
            if list(weight.shape[:-1]) != wanted:
                raise ValueError(
                    f"EdgeProjection's {name} has shape {list(weight.shape)}, but k and v ask for [Hkv * {letter}, F] "
                    f"= [{shape.num_kv_heads * dim}, {self.edge_attr.shape[1]}] or [Hkv, {letter}, F] = "
                    f"[{shape.num_kv_heads}, {dim}, {self.edge_attr.shape[1]}]"
                )

    def __repr__(self) -> str:
        given = [f"{n}={list(t.shape)}" for n, t in (("key", self.key), ("value", self.value)) if t is not None]
        return f"EdgeProjection({list(self.edge_attr.shape)}, {', '.join(given)})"
