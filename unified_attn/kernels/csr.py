"""Fused attention over compressed rows on CPU: the Python entry, and its checks.

logits_e = form(q_i, k_j + r_e) + add_e               for each pair e = (i, j) of row i
out_i    = sum_e softmax_e(logits) drop_e (v_j + r'_e)
lse_i    = log sum_e exp(logits_e)

dot:  scale <q, k>, then cap tanh(. / cap) if cap > 0
sum:  scale sum_d att_d leaky_relu(q_d + k_d)

A vector r_e is a row (of its own, or by code of a table), a projection W f_e of features, or the sum of both.
Projections stay small: <q, W f> = <W^T q, f> needs W once a query, sum_e w_e W f_e = W sum_e w_e f_e needs it once a
row, and only the sum form projects a pair at a time, in registers.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unified_attn.kernels.csr_call import Call
from unified_attn.kernels.csr_ops import attend
from unified_attn.rows import Rows
from unified_attn.vectors import NO_VECTORS, Operands


def csr_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Rows,
    *,
    add: Tensor | None = None,
    add_hides: bool = True,
    key_vectors: Operands = NO_VECTORS,
    value_vectors: Operands = NO_VECTORS,
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
        add: ``[1 or B, 1 or Hq, E]``, added to the logits. -inf hides a pair, and what is hidden is never read. But a
            query is multiplied by the weight of key features before, whether or not it sees a pair.
        add_hides: False where add is known to hold no -inf: then eight heads are handled at once.
        key_vectors: r: rows ``[R, 1 or Hk, W]``, code ``[1 or B, E]``, features ``[E, F]``, weight ``[Hk, W, F]``.
        value_vectors: r', with Hv and Dv.
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

    Cost: O(E Hq (W + Dv + F)) time, O(E Hq W F) for key features in the sum form; O(N H (D + F)) memory beside what is
    passed in.
    """
    # Kernels read memory as it is.
    keys_are_values, one_vectors = value is key, value_vectors is key_vectors
    query, key = query.resolve_neg(), key.resolve_neg()
    value = key if keys_are_values else value.resolve_neg()
    add = None if add is None else add.resolve_neg()
    att = None if att is None else att.resolve_neg()
    key_vectors = _resolved(key_vectors)
    value_vectors = key_vectors if one_vectors else _resolved(value_vectors)
    for side, vectors, nodes in (("key", key_vectors, key), ("value", value_vectors, value)):
        if vectors is not NO_VECTORS:
            _check_vectors(side, vectors, nodes, rows.edge.shape[0] // rows.indptr.shape[0], query)
    key_query, key_weight = None, None
    if key_vectors.weight is not None:
        if att is None:
            key_query = query @ _per_query_head(key_vectors.weight, query)
        else:
            key_weight = key_vectors.weight.transpose(1, 2)
    one_features = value_vectors.features is not None and value_vectors.features is key_vectors.features
    one_vectors = value_vectors.rows is not None and value_vectors is key_vectors
    call = Call(
        query, key, None if value is key else value, add, key_vectors.rows,
        None if one_vectors else value_vectors.rows, key_vectors.features, key_query, key_weight,
        None if one_features else value_vectors.features, att, _narrow(key_vectors.code), _narrow(value_vectors.code),
        rows.indptr, rows.col, rows.edge, rows.t_indptr, rows.t_row, rows.t_edge, seed, scale, cap, slope, dropout_p,
        pair_counter, add_hides, one_features, one_vectors,
    )  # fmt: skip
    out, lse, mixed = attend(call)
    if value_vectors.weight is not None:
        out = out + mixed @ _per_query_head(value_vectors.weight, query).transpose(1, 2)
    return out, lse


def _resolved(vectors: Operands) -> Operands:
    if vectors is NO_VECTORS:
        return vectors
    rows, features, weight = (
        None if x is None else x.resolve_neg() for x in (vectors.rows, vectors.features, vectors.weight)
    )
    return replace(vectors, rows=rows, features=features, weight=weight)


def _narrow(code: Tensor | None) -> Tensor | None:
    return None if code is None else code.to(torch.int32)


def _per_query_head(weight: Tensor, query: Tensor) -> Tensor:
    """``[Hk, D, F]`` as ``[Hq, D, F]``."""
    return weight.repeat_interleave(query.shape[1] // max(weight.shape[0], 1), dim=0)


def _check_vectors(side: str, vectors: Operands, nodes: Tensor, pairs: int, query: Tensor) -> None:
    heads, size = nodes.shape[1], nodes.shape[3]
    rows, code, features, weight = vectors.rows, vectors.code, vectors.features, vectors.weight
    if rows is not None and (
        rows.dim() != 3 or (rows.shape[1] != 1 and rows.shape[1] != heads) or rows.shape[2] != size
    ):
        raise ValueError(f"{side} vectors must be [R, 1 or {heads}, {size}], got {tuple(rows.shape)}")
    if rows is not None and code is None and rows.shape[0] != pairs:
        raise ValueError(f"{side} vectors without code must be one a pair, {pairs}, got {rows.shape[0]}")
    batch = query.shape[0]
    if code is not None and (rows is None or code.dim() != 2 or (code.shape[0] != 1 and code.shape[0] != batch)):
        raise ValueError(f"{side} code must be [1 or {batch}, E], and with rows, got {tuple(code.shape)}")
    if (features is None) != (weight is None):
        raise ValueError(f"{side} features and their weight must be given together")
    if features is not None and weight is not None:
        if features.dim() != 2:
            raise ValueError(f"{side} features must be [E, F], got {tuple(features.shape)}")
        if weight.shape != (heads, size, features.shape[1]):
            raise ValueError(f"{side} weight must be [{heads}, {size}, {features.shape[1]}], got {tuple(weight.shape)}")
    for name, other in (("rows", rows), ("features", features), ("weight", weight)):
        if other is not None and other.dtype != query.dtype:
            raise TypeError(f"{side} {name} must have query's dtype {query.dtype}, got {other.dtype}")
