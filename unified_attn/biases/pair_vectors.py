"""Vectors an edge, added to its key and its value."""

from __future__ import annotations

from torch import Tensor

from unified_attn.biases.base import Bias
from unified_attn.biases.edge import check_edge_tied
from unified_attn.pairs import Shape, check_device, describe, hold


class PairVectors(Bias):
    """Adds r_e to the key and r'_e to the value that edge e brings.

        logits_e = score(q_i, k_j + r_e),   out_i = sum_e softmax(logits)_e (v_j + r'_e)

    With both it is what torch-geometric's ``TransformerConv`` does with edge features; with the key alone, under
    :class:`~unified_attn.GATv2`, what ``GATv2Conv`` does. A turn (RoPE) acts on k alone, before r is added.

    Args:
        key: ``[E, Hkv, D]`` in the caller's edge order, or None.
        value: ``[E, Hkv, Dv]``, or None.

    Raises:
        TypeError: If one is no float tensor.
        ValueError: If both are None or, in a call, a shape does not fit, or there is no graph to tie them to.

    Reference: Shaw et al., 2018, arXiv 1803.02155, Eq. 3 and 4 (there looked up by distance:
    :class:`~unified_attn.RelativeVectors`); :class:`~unified_attn.EdgeProjection` spares the tensor if r = W f.

    Example:
        >>> import torch
        >>> PairVectors(key=torch.zeros(5, 2, 8))
        PairVectors(key=[5, 2, 8])
    """

    key: Tensor | None
    value: Tensor | None

    def __init__(self, key: Tensor | None = None, value: Tensor | None = None) -> None:
        super().__init__()
        if key is None and value is None:
            raise ValueError("PairVectors needs key, value or both")
        for name, tensor in (("key", key), ("value", value)):
            if tensor is None:
                continue
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                got = describe(tensor) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise TypeError(f"{name} is {got}; give floats, [E, Hkv, D]")
            if tensor.dim() != 3:
                raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be [E, Hkv, D]")
        hold(self, "key", key)
        hold(self, "value", value)

    def vectors(self) -> tuple[Tensor | None, Tensor | None]:
        return self.key, self.value

    def check(self, shape: Shape) -> None:
        for name, tensor, dim in (("key", self.key, shape.head_dim), ("value", self.value, shape.value_dim)):
            if tensor is None:
                continue
            check_device(f"PairVectors's {name}", tensor, shape)
            check_edge_tied(f"PairVectors's {name} vectors", tensor.shape[0], shape)
            if tensor.shape[1:] != (shape.num_kv_heads, tensor.shape[2] if dim is None else dim):
                raise ValueError(
                    f"PairVectors's {name} has shape {list(tensor.shape)}, but k and v ask for "
                    f"[E, Hkv, {'D' if name == 'key' else 'Dv'}] = [{shape.num_edges}, {shape.num_kv_heads}, {dim}]"
                )

    def __repr__(self) -> str:
        given = [f"{n}={list(t.shape)}" for n, t in (("key", self.key), ("value", self.value)) if t is not None]
        return f"PairVectors({', '.join(given)})"
