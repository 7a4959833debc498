"""Fused attention over compressed rows on CPU: the Python entry, and its checks.

logits_e = form(q_i, k_j + r_e) + add_e               for each pair e = (i, j) of row i
out_i    = sum_e softmax_e(logits) drop_e (v_j + r'_e)
lse_i    = log sum_e exp(logits_e)

dot:  scale <q, k>, then cap tanh(. / cap) if cap > 0
sum:  scale sum_d att_d leaky_relu(q_d + k_d)
"""

from __future__ import annotations

import torch
from torch import Tensor

import unified_attn.kernels.csr_ops  # noqa: F401  # registers the operators
from unified_attn.rows import Rows

_FLOAT_TYPES = (torch.float32, torch.float64)


def csr_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Rows,
    *,
    add: Tensor | None = None,
    key_vectors: Tensor | None = None,
    value_vectors: Tensor | None = None,
    att: Tensor | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
    slope: float = 0.2,
    dropout_p: float = 0.0,
    seed: Tensor | None = None,
    pair_counter: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention over listed pairs, differentiable once in every tensor.

    Args:
        query: ``[B, Hq, Nq, W]``, float32 or float64.
        key: ``[B, Hk, Nk, W]``; key head = query head // (Hq // Hk).
        value: ``[B, Hv, Nk, Dv]``; Hv may differ from Hk.
        rows: The pairs.
        add: ``[1 or B, 1 or Hq, E]``, added to the logits. -inf hides a pair, and what is hidden is never read.
        key_vectors: ``[E, Hk, W]``, r.
        value_vectors: ``[E, Hv, Dv]``, r'.
        att: ``[Hq, W]``. With it the form is *sum*, without it *dot*.
        scale: Multiplies the form.
        cap: Soft cap of the dot form; 0 is none.
        slope: Of the LeakyReLU.
        dropout_p: Probability of dropping a pair after the softmax; ``dropout`` tells which.
        seed: int64, one element; required with dropout.
        pair_counter: Dropout counts a pair by i * Nk + j, not by its number.

    Returns:
        ``out [B, Hq, Nq, Dv]``, node-major in memory if the query is, and ``lse [B, Hq, Nq]``, natural. A row without
        a visible pair has out 0, lse -inf and gradients 0.

    Raises:
        ValueError: If shapes do not fit.
        TypeError: If dtypes do not.

    Cost: O(E Hq (W + Dv)) time; O(N H D) memory beside what is passed in.
    """
    _check(query, key, value, add, key_vectors, value_vectors, att, dropout_p, seed)
    out, lse = torch.ops.unified_attn.csr_forward(
        query, key, value, rows.indptr, rows.col, rows.edge, rows.t_indptr, rows.t_row, rows.t_edge,
        add, key_vectors, value_vectors, att, seed, scale, cap, slope, dropout_p, pair_counter,
    )  # fmt: skip
    return out, lse


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    add: Tensor | None,
    key_vectors: Tensor | None,
    value_vectors: Tensor | None,
    att: Tensor | None,
    dropout_p: float,
    seed: Tensor | None,
) -> None:
    for name, operand in (("query", query), ("key", key), ("value", value)):
        if operand.dim() != 4:
            raise ValueError(f"{name} must be [B, H, N, D], got shape {tuple(operand.shape)}")
    batch, heads = query.shape[:2]
    width, keys, size = query.shape[3], key.shape[2], value.shape[3]
    if key.shape[0] != batch or value.shape[0] != batch:
        raise ValueError(f"batch sizes differ: query {batch}, key {key.shape[0]}, value {value.shape[0]}")
    if key.shape[3] != width:
        raise ValueError(f"query and key must have one head size, got {width} and {key.shape[3]}")
    if value.shape[2] != keys:
        raise ValueError(f"key and value must have one length, got {keys} and {value.shape[2]}")
    for name, operand in (("key", key), ("value", value)):
        few = operand.shape[1]
        if (few == 0 and heads != 0) or (few != 0 and heads % few != 0):
            raise ValueError(f"query heads must be a multiple of {name} heads, got {heads} and {few}")
    if add is not None and (
        add.dim() != 3 or (add.shape[0] != 1 and add.shape[0] != batch) or (add.shape[1] != 1 and add.shape[1] != heads)
    ):
        raise ValueError(f"add must be [1 or {batch}, 1 or {heads}, E], got {tuple(add.shape)}")
    if key_vectors is not None and (key_vectors.dim() != 3 or key_vectors.shape[1:] != (key.shape[1], width)):
        raise ValueError(f"key_vectors must be [E, {key.shape[1]}, {width}], got {tuple(key_vectors.shape)}")
    if value_vectors is not None and (value_vectors.dim() != 3 or value_vectors.shape[1:] != (value.shape[1], size)):
        raise ValueError(f"value_vectors must be [E, {value.shape[1]}, {size}], got {tuple(value_vectors.shape)}")
    if att is not None and att.shape != (heads, width):
        raise ValueError(f"att must be [{heads}, {width}], got {tuple(att.shape)}")
    if query.dtype not in _FLOAT_TYPES:
        raise TypeError(f"query must be float32 or float64, got {query.dtype}")
    for name, other in (
        ("key", key), ("value", value), ("add", add), ("key_vectors", key_vectors), ("value_vectors", value_vectors),
        ("att", att),
    ):  # fmt: skip
        if other is not None and other.dtype != query.dtype:
            raise TypeError(f"{name} must have query's dtype {query.dtype}, got {other.dtype}")
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p must be in [0, 1], got {dropout_p}")
    if dropout_p > 0.0 and (seed is None or seed.dtype != torch.int64 or seed.numel() != 1):
        raise ValueError("dropout needs seed, an int64 tensor of one element")
