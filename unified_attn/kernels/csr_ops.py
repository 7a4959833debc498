"""The two custom operators of fused attention over compressed rows, with fake and autograd.

Nothing of size pairs x heads x features is formed, forward or backward: the backward pass computes scores again from
lse, once by rows and once by columns. The cut into blocks depends on the rows alone and no two tasks write one number,
so that results are equal bit for bit in every run and for any number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple, get_type_hints

import numpy as np
import torch
from torch import Tensor

from unified_attn.errors import refuse_second_derivative
from unified_attn.kernels.csr_args import record, strided
from unified_attn.kernels.csr_launch import (
    dense_last,
    dense_last_or_none,
    empty_nodes,
    feature_lanes,
    fewer_blocks,
    find_kernel,
    head_ranges,
    head_table,
    listed,
    num_blocks,
    prefetched,
    run_tasks,
    score_options,
    zeros_add,
)


class _Call(NamedTuple):
    """The inputs of both operators, in this order; first those that get gradients. See ``csr_attention``.

    Args:
        value: None where the values are the keys, with one gradient.
        key_query: ``[B, Hq, Nq, F]``, with the dot form: what each query scores the key features with.
        key_weight: ``[Hk, F, W]``, with the sum form: what projects them.
        one_features: The value's features are the key's, with one gradient; ``value_features`` is None then.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    add: Tensor | None
    key_vectors: Tensor | None
    value_vectors: Tensor | None
    key_features: Tensor | None
    key_query: Tensor | None
    key_weight: Tensor | None
    value_features: Tensor | None
    att: Tensor | None
    key_code: Tensor | None
    value_code: Tensor | None
    indptr: Tensor
    col: Tensor
    edge: Tensor
    t_indptr: Tensor
    t_row: Tensor
    t_edge: Tensor
    seed: Tensor | None
    scale: float
    cap: float
    slope: float
    dropout_p: float
    pair_counter: bool
    one_features: bool

    @property
    def values(self) -> Tensor:
        return self.key if self.value is None else self.value

    @property
    def mixed_features(self) -> Tensor | None:
        """What is summed into mixed."""
        return self.key_features if self.one_features else self.value_features

    @property
    def form(self) -> int:
        return int(self.att is not None)

    @property
    def feature_lanes(self) -> int:
        return feature_lanes([self.key_features, self.mixed_features])

    @property
    def pairs(self) -> int:
        """Pairs a batch item."""
        return self.col.size(0) // max(self.indptr.size(0), 1)

    @property
    def pair_size(self) -> int:
        """Floats that a head reads for one pair."""
        sizes = [x.size(-1) for x in (self.key_features, self.mixed_features) if x is not None]
        return self.query.size(-1) + self.values.size(-1) + sum(sizes)

    def readable(self) -> _Call:
        """The same as kernels read it: features next to each other, indices dense."""
        floats: dict[str, Any] = {name: dense_last_or_none(getattr(self, name)) for name in _GRADIENTS if name != "add"}
        whole: dict[str, Any] = {name: x.contiguous() for name in _INDICES if (x := getattr(self, name)) is not None}
        return self._replace(**floats, **whole)

    def record(self) -> dict[str, int | float]:
        """The record's entries for all of it but the rows."""
        sizes = {"kfeat_size": self.key_features, "vfeat_size": self.mixed_features}
        return {
            **strided("q", self.query),
            **strided("k", self.key),
            **strided("v", self.values),
            **strided("add", self.add, broadcast=True),
            **strided("kvec", self.key_vectors),
            **strided("vvec", self.value_vectors),
            **strided("kcode", self.key_code, broadcast=True),
            **strided("vcode", self.value_code, broadcast=True),
            **strided("kfeat", self.key_features),
            **strided("kquery", self.key_query),
            **strided("kweight", self.key_weight),
            **strided("vfeat", self.mixed_features),
            **strided("att", self.att),
            **score_options(self.scale, self.cap, self.slope, self.dropout_p, self.seed, self.pair_counter),
            **{name: 0 if x is None else x.size(1) for name, x in sizes.items()},
            "num_heads": self.query.size(1),
            "keys": self.key.size(2),
            "score_size": self.query.size(3),
            "value_size": self.values.size(3),
        }

    def heads(self) -> dict[str, tuple[Tensor | None, int]]:
        """Operands whose heads query heads share, with the dimension of heads."""
        return {
            "k": (self.key, 1),
            "v": (self.values, 1),
            "kvec": (self.key_vectors, 1),
            "vvec": (self.value_vectors, 1),
            "kweight": (self.key_weight, 0),
        }


_SCHEMA_TYPES: dict[Any, str] = {Tensor: "Tensor", Tensor | None: "Tensor?", float: "float", bool: "bool"}
_SCHEMA = ", ".join(f"{_SCHEMA_TYPES[kind]} {name}" for name, kind in get_type_hints(_Call).items())
_GRADIENTS = _Call._fields[: _Call._fields.index("att") + 1]
_TENSORS = _Call._fields[: _Call._fields.index("seed") + 1]
_INDICES = ("key_code", "value_code", "indptr", "col", "edge", "t_indptr", "t_row", "t_edge")


def _check_rows(call: _Call) -> None:
    batch, nodes, keys = call.query.size(0), call.query.size(2), call.key.size(2)
    for name, pointers, size in (("indptr", call.indptr, nodes), ("t_indptr", call.t_indptr, keys)):
        if pointers.dim() != 2 or pointers.size(0) not in (1, batch) or pointers.size(1) != size + 1:
            raise ValueError(f"{name} must be [1 or {batch}, {size + 1}], got {tuple(pointers.shape)}")
        if pointers.dtype != torch.int64:
            raise TypeError(f"{name} must be int64, got {pointers.dtype}")
    for name in ("col", "edge", "t_row", "t_edge"):
        other = getattr(call, name)
        if other.dtype != torch.int32:
            raise TypeError(f"{name} must be int32, got {other.dtype}")
        if other.size(0) != call.col.size(0):
            raise ValueError(f"col and {name} must have one length, got {call.col.size(0)} and {other.size(0)}")
    for side, code, rows in (
        ("key", call.key_code, call.key_vectors),
        ("value", call.value_code, call.value_vectors),
    ):
        if code is None or rows is None or code.numel() == 0:
            continue
        if code.dtype != torch.int32:
            raise TypeError(f"{side}_code must be int32, got {code.dtype}")
        if int(code.min()) < 0 or int(code.max()) >= rows.size(0):
            raise ValueError(f"{side}_code must lie in 0..{rows.size(0) - 1}: {side}_vectors has {rows.size(0)} rows")


def _results(call: _Call) -> tuple[Tensor, Tensor, Tensor]:
    """Space for out, lse and mixed; mixed is ``[0]`` without value features."""
    batch, heads, nodes, _ = call.query.shape
    features = call.mixed_features
    return (
        empty_nodes(call.query, heads, call.values.shape[3]),
        call.query.new_empty(batch, heads, nodes),
        call.query.new_empty(0) if features is None else empty_nodes(call.query, heads, features.shape[1]),
    )


@torch.library.custom_op(
    "unified_attn::csr_forward",
    mutates_args=(),
    device_types="cpu",
    schema=f"({_SCHEMA}) -> (Tensor, Tensor, Tensor)",
)
def csr_forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Output, lse and ``mixed [B, Hq, Nq, F]``, the sums of value features; the transpose is for the gradient alone."""
    call = _Call(*inputs)
    _check_rows(call)
    out, lse, mixed = results = _results(call)
    if all(x.numel() == 0 for x in results):
        return results
    if call.key.size(2) == 0:
        return out.zero_(), lse.fill_(-torch.inf), mixed.zero_()
    call = call.readable()
    batch, heads, nodes, _ = call.query.shape
    table = head_table(heads, call.heads())
    ranges = head_ranges(call.query, call.key, call.values)
    args = record(
        {
            **call.record(),
            **strided("out", out),
            **strided("lse", lse),
            **(strided("mixed", mixed) if call.mixed_features is not None else {}),
            **prefetched(call.key, call.values, len(ranges)),
            **listed(call.indptr, call.col, call.edge),
            "heads": table.ctypes.data,
        }
    )
    blocks = num_blocks(call.pairs, nodes, heads // len(ranges) * call.pair_size)
    tasks = [(b, *some, block, blocks) for b in range(batch) for some in ranges for block in range(blocks)]
    kernel = find_kernel("forward", call.form, call.feature_lanes, call.query, call.values)
    run_tasks(kernel, args, tasks, batch * call.pairs * heads * call.pair_size)
    return results


@csr_forward.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _results(_Call(*inputs))


@torch.library.custom_op(
    "unified_attn::csr_backward",
    mutates_args=(),
    device_types="cpu",
    schema=(
        f"(Tensor g_out, Tensor? g_lse, Tensor? g_mixed, Tensor out, Tensor lse, Tensor mixed, {_SCHEMA}, bool[] needs)"
        f" -> ({', '.join(['Tensor'] * len(_GRADIENTS))})"
    ),
)
def csr_backward(
    g_out: Tensor,
    g_lse: Tensor | None,
    g_mixed: Tensor | None,
    out: Tensor,
    lse: Tensor,
    mixed: Tensor,
    *inputs: Any,
) -> tuple[Tensor, ...]:
    """Gradients of the first inputs of :class:`_Call`, up to att; empty where not needed."""
    *rest, needs = inputs
    call = _Call(*rest)
    grads = _empty_grads(call, needs)
    batch, heads, nodes, _ = call.query.shape
    keys = call.key.size(2)
    if batch == 0 or heads == 0 or nodes == 0 or keys == 0:
        for x in grads:
            x.zero_()
        return grads
    call = call.readable()
    need = dict(zip(_GRADIENTS, needs, strict=True))
    grad = {name: x for name, x in zip(_GRADIENTS, grads, strict=True) if need[name]}
    for name in ("add", "key_vectors", "value_vectors", "key_features", "value_features"):
        if need[name]:
            grad[name].zero_()  # added to, and pairs that no row lists have gradient 0
    ranges = head_ranges(call.query, call.key, call.values)
    if len(ranges) == 1:  # a query's statistics lie as its heads do
        stats = call.query.new_empty(batch, nodes, heads, 2).transpose(1, 2)
    else:
        stats = call.query.new_empty(batch, heads, nodes, 2)
    pair_size = heads // len(ranges) * call.pair_size
    blocks = num_blocks(call.pairs, nodes, pair_size)

    # What many pairs share gets a partial sum a block of rows.
    coded = {"key_vectors": call.key_code is not None, "value_vectors": call.value_code is not None}
    shared = [n for n in ("key_vectors", "value_vectors", "key_weight", "att") if need[n] and coded.get(n, True)]
    blocks = fewer_blocks(blocks, [grad[name] for name in shared])
    partial = {name: call.query.new_zeros(blocks, *grad[name].shape) for name in shared}
    for name in ("key_vectors", "value_vectors"):
        if need[name] and not coded[name]:
            partial[name] = grad[name][None]

    dv = grad.get("key" if call.value is None else "value")  # both are added to one, if they are of one tensor
    heads_of = {
        **call.heads(),
        "dk": (grad.get("key"), 1),
        "dv": (dv, 1),
        "dkvec": (partial.get("key_vectors"), 2),
        "dvvec": (partial.get("value_vectors"), 2),
        "dkweight": (partial.get("key_weight"), 1),
    }
    table = head_table(heads, heads_of)
    g_out, out, mixed = dense_last(g_out), dense_last(out), dense_last(mixed)
    # Compiled code hands over a gradient of what is empty, too.
    g_mixed = None if call.mixed_features is None else dense_last_or_none(g_mixed)
    both: dict[str, int | float] = {
        **call.record(),
        **strided("out", out),
        **strided("lse", lse),
        **strided("g_out", g_out),
        **strided("g_lse", g_lse),
        **strided("mixed", None if g_mixed is None else mixed),
        **strided("g_mixed", g_mixed),
        **strided("stats", stats),
        "heads": table.ctypes.data,
    }
    work = batch * call.pairs * heads * call.pair_size

    row_ranges = [(0, heads)] if _heads_share(call, need) else ranges
    by_rows = record(
        {
            **both,
            **strided("dq", grad.get("query")),
            **strided("dadd", grad.get("add"), broadcast=True),
            **strided("dkvec", partial.get("key_vectors"), broadcast=True),
            **strided("dvvec", partial.get("value_vectors"), broadcast=True),
            **strided("dkfeat", grad.get("key_features")),
            **strided("dkquery", grad.get("key_query")),
            **strided("dkweight", partial.get("key_weight")),
            **strided("dvfeat", grad.get("key_features" if call.one_features else "value_features")),
            **strided("datt", partial.get("att")),
            **prefetched(call.key, call.values, len(row_ranges)),
            **listed(call.indptr, call.col, call.edge),
        }
    )
    kernel = find_kernel("rows", call.form, call.feature_lanes, call.query, call.values)
    if not any(need[name] for name in _GRADIENTS[3:] if name != "key_query"):
        groups = [[(b, b + 1) for b in range(batch)]]
    elif call.indptr.size(0) == 1:
        groups = [[(0, batch)]]  # what belongs to a pair is added up over the batch
    else:
        groups = [[(b, b + 1)] for b in range(batch)]  # one number may lie in different rows: one after another
    for group in groups:
        tasks = [(*b, *some, block, blocks) for b in group for some in row_ranges for block in range(blocks)]
        run_tasks(kernel, by_rows, tasks, work)
    for name in shared:
        np.add.reduce(partial[name].numpy(), axis=0, out=grad[name].numpy())  # in order, on one thread

    if need["key"] or need["value"]:
        by_columns = record(
            {
                **both,
                **strided("dk", grad.get("key")),
                **strided("dv", dv),
                **prefetched(call.query, g_out, len(ranges)),
                **listed(call.t_indptr, call.t_row, call.t_edge),
            }
        )
        blocks = num_blocks(call.pairs, keys, pair_size)
        columns = [(b, *some, block, blocks) for b in range(batch) for some in ranges for block in range(blocks)]
        kernel = find_kernel("columns", call.form, call.feature_lanes, call.query, call.values)
        run_tasks(kernel, by_columns, columns, work)
    return grads


def _heads_share(call: _Call, need: dict[str, bool]) -> bool:
    """Whether heads of different tasks would add to one number of a gradient: then one task has to take them all."""
    fewer = {
        "add": call.add is not None and call.add.size(1) < call.query.size(1),
        "key_vectors": call.key_vectors is not None and call.key_vectors.size(1) < call.key.size(1),
        "value_vectors": call.value_vectors is not None and call.value_vectors.size(1) < call.values.size(1),
        "key_features": True,
        "value_features": True,
    }
    return any(need[name] and share for name, share in fewer.items())


def _empty_grads(call: _Call, needs: list[bool]) -> tuple[Tensor, ...]:
    """Space for each gradient, laid out as its operand; ``[0]`` where none is needed."""

    def empty(name: str, need: bool) -> Tensor:
        operand = getattr(call, name)
        if operand is None or not need:
            return call.query.new_empty(0)
        if name in ("query", "key", "value", "key_query"):
            return empty_nodes(operand, operand.shape[1], operand.shape[3])
        return zeros_add(operand) if name == "add" else operand.new_empty(operand.shape)

    return tuple(empty(name, need) for name, need in zip(_GRADIENTS, needs, strict=True))


@csr_backward.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    *rest, needs = inputs[6:]
    return _empty_grads(_Call(*rest), needs)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[: len(_TENSORS)])
    ctx.options = inputs[len(_TENSORS) :]
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, g_out: Tensor | None, g_lse: Tensor | None, g_mixed: Tensor | None
) -> tuple[Tensor | None, ...]:
    out, *saved = ctx.saved_tensors
    if g_out is None:
        g_out = torch.zeros_like(out)
    needs = [bool(need) for need in ctx.needs_input_grad[: len(_GRADIENTS)]]
    grads = torch.ops.unified_attn.csr_backward(g_out, g_lse, g_mixed, out, *saved, *ctx.options, needs)
    found = [grad if need else None for need, grad in zip(needs, grads, strict=True)]
    return (*found, *[None] * (len(_Call._fields) - len(found)))


csr_forward.register_autograd(_differentiate, setup_context=_save)
csr_backward.register_autograd(refuse_second_derivative)
