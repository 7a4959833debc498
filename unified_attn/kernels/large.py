"""The dense steps of a layer into memory that is used again, where torch would be given fresh pages: see ``pages``.

What is small, traced, transformed or not on a CPU goes to torch's own operators, which give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unified_attn._watched import watched, watched_gradient
from unified_attn.kernels.pages import LARGE, empty


def linears(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Sequence[Tensor]:
    """Several linear maps of one x, whose gradients by x are added up as they are computed.

    Args:
        x: ``[N, F]``.
        weights: ``[D, F]`` each.
        biases: ``[D]`` or None, each.

    Returns:
        ``[N, D]`` each; differentiable to any order.
    """
    if x.dim() != 2 or not all(_pays(x.shape[0] * weight.shape[0], x, weight) for weight in weights):
        return [torch.nn.functional.linear(x, w, b) for w, b in zip(weights, biases, strict=True)]
    outs: tuple[Tensor, ...] = _Linears.apply(x, *weights, *biases)
    return outs


def add(a: Tensor, b: Tensor) -> Tensor:
    """a ``[N, D]`` + b ``[N, D]`` or ``[D]``; differentiable to any order."""
    if a.dim() != 2 or a.dtype != b.dtype or not _pays(a.numel(), a, b):
        return a + b
    out: Tensor = _Add.apply(a, b)
    return out


def _pays(size: int, a: Tensor, b: Tensor) -> bool:
    """Whether a result of so many numbers is large, and nothing looks on that knows torch's operators alone."""
    return (
        not watched(a)  # first: what follows would bound the sizes of exported code
        and not watched(b)
        and size * a.element_size() >= LARGE
        and a.device.type == "cpu"
    )


def _product(a: Tensor, b: Tensor, start: Tensor | None = None) -> Tensor:
    out = empty(a, a.shape[0], b.shape[1])
    return torch.mm(a, b, out=out) if start is None else torch.addmm(start, a, b, out=out)


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights_and_biases: Any) -> tuple[Tensor, ...]:
        count = len(weights_and_biases) // 2
        weights, biases = weights_and_biases[:count], weights_and_biases[count:]
        # As torch does: what no gradient asks for is not held, and may change.
        need_x, *needs = ctx.needs_input_grad
        ctx.save_for_backward(x if any(needs[:count]) else None, *(w if need_x else None for w in weights))
        ctx.set_materialize_grads(False)
        return tuple(_product(x, w.t(), b) for w, b in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        need_x, *needs = ctx.needs_input_grad
        again = torch.is_grad_enabled()  # what is to be differentiated again is torch's own
        dx: Tensor | None = None
        found: list[Tensor | None] = [None] * len(needs)
        for n, (grad, weight) in enumerate(zip(grads, weights, strict=True)):
            if grad is None:
                continue
            if need_x and (again or watched_gradient(grad)):
                dx = grad @ weight if dx is None else dx + grad @ weight
            elif need_x:
                dx = _product(grad, weight) if dx is None else dx.addmm_(grad, weight)
            if needs[n]:
                found[n] = grad.t() @ x
            if needs[len(weights) + n]:
                found[len(weights) + n] = grad.sum(0)
        return dx, *found


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.b_is_row = b.dim() == 1
        return torch.add(a, b, out=empty(a, *a.shape))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_a, need_b = ctx.needs_input_grad
        return grad if need_a else None, (grad.sum(0) if ctx.b_is_row else grad) if need_b else None
