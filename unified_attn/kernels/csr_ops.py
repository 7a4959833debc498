"""The two custom operators of fused attention over compressed rows, with fake and autograd.

Nothing of size pairs x heads x features is formed, forward or backward: the backward pass computes scores again from
lse, once by rows and once by columns. The cut into blocks depends on the rows alone and no two tasks write one number,
so that results are equal bit for bit in every run and for any number of threads.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from unified_attn._watched import is_batch, watched
from unified_attn.errors import UnsupportedError, refuse_second_derivative
from unified_attn.kernels import csr_passes, csr_pieces
from unified_attn.kernels.csr_call import GRADIENTS, SCHEMA, TENSORS, Call, layout_of
from unified_attn.kernels.csr_launch import Plans, empty_nodes, longest_row, zeros_add
from unified_attn.kernels.csr_passes import Grads, Launches, Saved
from unified_attn.kernels.pages import empty_strided

_NODES = ("query", "key", "value", "key_query")
_FIRST_KEPT = Call._fields.index("indptr")
"""From here on a call's fields are the library's own."""


def attend(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """``out``, ``lse`` and ``mixed [B, Hq, Nq, F]``, the sums of value features; differentiable once."""
    results: tuple[Tensor, Tensor, Tensor]
    if watched(call.query):
        results = torch.ops.unified_attn.csr_forward(*call)
    elif torch.is_grad_enabled():
        results = _Attend.apply(call[_FIRST_KEPT:], *call[:_FIRST_KEPT])
    else:
        results = _forward(call, facts_of(call))
    return results


class _Attend(torch.autograd.Function):
    """What the operators do, called directly; what no user can reach (rows, options) goes along in one piece."""

    @staticmethod
    def forward(ctx: Any, kept: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        call = Call(*inputs, *kept)
        results = _forward(call, facts_of(call))
        ctx.kept = kept
        ctx.save_for_backward(*results, *inputs)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        call, needs = Call(*saved[3:], *ctx.kept), ctx.needs_input_grad[1:]
        return (None, *_gradients(grads, saved[:3], call, needs), *[None] * (_FIRST_KEPT - len(GRADIENTS)))


class Facts:
    """What follows from a layout alone, worked out once: for a small problem that is most of the time.

    Args:
        call: A call of that layout, which is checked.

    Attributes:
        readable: Whether kernels can read it as it is.
        empty: Whether there is nothing to compute.
        longest: Rows of more pairs are cut into pieces of as many.
        launches: Kernels that were made for it.

    Raises:
        ValueError: If sizes do not fit.
        TypeError: If dtypes do not.
    """

    def __init__(self, call: Call) -> None:
        call.check()
        batch, heads, nodes, _ = call.query.shape
        self.readable = call.readable() is call
        self.empty = batch == 0 or heads == 0 or nodes == 0 or call.key.size(2) == 0
        self.longest = 0 if self.empty else longest_row(csr_passes.cut_heads(call)[1])
        self.launches: Launches = {}
        self._results = tuple((tuple(x.shape), x.stride()) for x in _results(call))
        self._backward = Plans()

    def results(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Space for out, lse and mixed."""
        out, lse, mixed = self._results
        return empty_strided(like, *out), like.new_empty_strided(*lse), like.new_empty_strided(*mixed)

    def launches_of(self, backward: object) -> Launches:
        """Those of a backward pass with this layout and these gradients."""
        made: Launches = self._backward.find(backward, dict)
        return made


_facts = Plans()


def facts_of(call: Call) -> Facts:
    """Those of a call's layout."""
    found: Facts = _facts.find(call.layout, lambda: Facts(call))
    return found


def _results(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Space for out, lse and mixed; mixed is ``[0]`` without value features."""
    heads, features = call.query.shape[1], call.mixed_features
    return (
        empty_nodes(call.query, heads, call.values.shape[3]),
        empty_nodes(call.query, heads, 1)[..., 0],
        call.query.new_empty(0) if features is None else empty_nodes(call.query, heads, features.shape[1]),
    )


def _forward(call: Call, facts: Facts) -> tuple[Tensor, Tensor, Tensor]:
    if not facts.readable:
        call = call.readable()
        return _forward(call, facts_of(call))
    call.check_codes()
    out, lse, mixed = results = facts.results(call.query)
    if facts.empty:
        return out.zero_(), lse.fill_(-torch.inf), mixed.zero_()
    rows = csr_passes.all_rows(call.indptr, call.col, call.edge, facts.longest)
    if csr_passes.forward(call, rows, *results, facts.launches):
        for pieces in csr_pieces.cut(call.indptr, call.col, call.edge, facts.longest):
            csr_pieces.forward(call, pieces, *results)
    return results


def _backward(call: Call, facts: Facts, results: tuple[Any, ...], names: tuple[str, ...]) -> Grads:
    """Gradients of the inputs named; ``results``: their gradients, and they."""
    if not facts.readable:
        call = call.readable()
        return _backward(call, facts_of(call), results, names)
    grad = {name: _empty_grad(call, name) for name in names}
    if facts.empty:
        return {name: x.zero_() for name, x in grad.items()}
    saved = Saved.of(call, *results)
    launches = facts.launches_of((layout_of(saved), names))
    rows = csr_passes.all_rows(call.indptr, call.col, call.edge, facts.longest)
    if csr_passes.backward_rows(call, rows, saved, grad, launches):
        for pieces in csr_pieces.cut(call.indptr, call.col, call.edge, facts.longest):
            csr_pieces.backward_rows(call, pieces, saved, grad)
    if "key" in grad or "value" in grad:
        columns = csr_passes.all_rows(call.t_indptr, call.t_row, call.t_edge, facts.longest)
        if csr_passes.backward_columns(call, columns, saved, grad, launches):
            for pieces in csr_pieces.cut(call.t_indptr, call.t_row, call.t_edge, facts.longest):
                csr_pieces.backward_columns(call, pieces, saved, grad)
    return grad


def _empty_grad(call: Call, name: str) -> Tensor:
    """Space for a gradient, laid out as its operand: zeros where it is added to, or not every number is written."""
    operand: Tensor = getattr(call, name)
    if name in _NODES:
        return empty_nodes(operand, operand.shape[1], operand.shape[3])
    return zeros_add(operand) if name == "add" else operand.new_zeros(operand.shape)


@torch.library.custom_op(
    "unified_attn::csr_forward",
    mutates_args=(),
    device_types="cpu",
    schema=f"({SCHEMA}) -> (Tensor, Tensor, Tensor)",
)
def csr_forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Output, lse and ``mixed [B, Hq, Nq, F]``, the sums of value features; the transpose is for the gradient alone."""
    call = Call(*inputs)
    return _forward(call, facts_of(call))


@csr_forward.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _results(Call(*inputs))


@torch.library.custom_op(
    "unified_attn::csr_backward",
    mutates_args=(),
    device_types="cpu",
    schema=(
        f"(Tensor g_out, Tensor? g_lse, Tensor? g_mixed, Tensor out, Tensor lse, Tensor mixed, {SCHEMA}, bool[] needs)"
        f" -> ({', '.join(['Tensor'] * len(GRADIENTS))})"
    ),
)
def csr_backward(*inputs: Any) -> tuple[Tensor, ...]:
    """Gradients of the first inputs of :class:`Call`, up to att; empty where not needed."""
    results, call, names = _split(inputs)
    grad = _backward(call, facts_of(call), results, names)
    return tuple(grad[name] if name in grad else call.query.new_empty(0) for name in GRADIENTS)


@csr_backward.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    _, call, names = _split(inputs)
    return tuple(_empty_grad(call, name) if name in names else call.query.new_empty(0) for name in GRADIENTS)


def _split(inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], Call, tuple[str, ...]]:
    """The inputs of the backward operator."""
    *rest, needs = inputs
    names = tuple(itertools.compress(GRADIENTS, needs))
    return tuple(rest[:6]), Call(*rest[6:]), names


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[: len(TENSORS)])
    ctx.options = inputs[len(TENSORS) :]
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    call = Call(*saved[3:], *ctx.options)
    found = _gradients(grads, saved[:3], call, ctx.needs_input_grad)
    return (*found, *[None] * (len(Call._fields) - len(GRADIENTS)))


def _gradients(
    grads: tuple[Tensor | None, ...],
    results: tuple[Tensor, ...],
    call: Call,
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    """Those of the inputs that can have one, None where ``needs`` says no."""
    if any(grad is not None and is_batch(grad) for grad in grads):
        raise UnsupportedError("csr", ["it takes no batch of gradients at once; use backend='scatter' or 'reference'"])
    g_out, g_lse, g_mixed = (grad if grad is None else grad.resolve_neg() for grad in grads)
    if g_out is None:
        g_out = torch.zeros_like(results[0])
    around = (g_out, g_lse, g_mixed, *results)
    wanted = [bool(need) for need in needs[: len(GRADIENTS)]]
    # A graph of the backward pass holds the operator, which refuses to be differentiated.
    if torch.is_grad_enabled() or watched(g_out):
        found = torch.ops.unified_attn.csr_backward(*around, *call, wanted)
        return [x if need else None for x, need in zip(found, wanted, strict=True)]
    names = tuple(itertools.compress(GRADIENTS, wanted))
    grad = _backward(call, facts_of(call), around, names)  # what was saved may have been laid out anew meanwhile
    return [grad.get(name) for name in GRADIENTS]


csr_forward.register_autograd(_differentiate, setup_context=_save)
csr_backward.register_autograd(refuse_second_derivative)
