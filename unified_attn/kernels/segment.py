"""Sums and maxima over the pairs of a row, differentiable to any order: torch-scatter's if there, else torch's.

Compiled code always takes torch's own: torch-scatter's operators cannot be traced.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


@functools.cache
def torch_scatter() -> tuple[ModuleType | None, str]:
    """The torch-scatter module or None, and one line that says which reductions are used and why."""
    try:
        import torch_scatter as module

        found = f"torch-scatter {module.__version__}"
        for name in ("segment_sum_csr", "segment_max_csr"):
            getattr(torch.ops.torch_scatter, name)
    except Exception as error:  # a mismatched binary raises OSError, RuntimeError, ImportError, AttributeError
        if isinstance(error, ModuleNotFoundError) and error.name == "torch_scatter":
            return None, "torch's own reductions (torch-scatter is not installed)"
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return None, f"torch's own reductions (torch-scatter does not import: {reason})"
    return module, found


def _torch_alone(src: Tensor) -> bool:
    """Whether to use torch's own: for want of torch-scatter, or since its operators cannot be traced."""
    traced = torch.compiler.is_compiling() or isinstance(src, FakeTensor) or src.is_meta
    return traced or torch._C._are_functorch_transforms_active() or torch_scatter()[0] is None


class _SegmentSum(torch.autograd.Function):
    """torch-scatter's sum, whose own derivative can be taken once only."""

    @staticmethod
    def forward(src: Tensor, indptr: Tensor, row: Tensor) -> Tensor:
        out: Tensor = torch.ops.torch_scatter.segment_sum_csr(src.contiguous(), indptr, None)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        _, row = ctx.saved_tensors
        return grad.index_select(0, row), None, None  # torch's own, so differentiable again

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: None) -> Tensor:
        return segment_sum(tangent, *ctx.saved_tensors)


class _SegmentMax(torch.autograd.Function):
    """torch-scatter's maximum as a constant; a Function, since its own has no forward-mode derivative."""

    @staticmethod
    def forward(src: Tensor, indptr: Tensor) -> Tensor:
        top: Tensor = torch.ops.torch_scatter.segment_max_csr(src.contiguous(), indptr, None)[0]
        empty = (indptr.diff() == 0).reshape(-1, *[1] * (src.dim() - 1))  # torch-scatter fills these with 0
        return top.masked_fill(empty, -torch.inf)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        return None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, other: None) -> None:
        return None


def segment_sum(src: Tensor, indptr: Tensor, row: Tensor) -> Tensor:
    """Sums of ``src [E, ...]`` over the pairs of each row: ``[N, ...]``.

    Args:
        src: ``[E, ...]``, sorted by row.
        indptr: ``[N + 1]``.
        row: ``[E]`` int64, the row of each pair: the same structure the other way round.

    Example:
        >>> import torch
        >>> segment_sum(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 1, 3]), torch.tensor([1, 2, 2]))
        tensor([0., 1., 5.])
    """
    if _torch_alone(src):
        return src.new_zeros(indptr.shape[0] - 1, *src.shape[1:]).index_add(0, row, src)
    out: Tensor = _SegmentSum.apply(src, indptr, row)
    return out


def segment_max(src: Tensor, indptr: Tensor, row: Tensor) -> Tensor:
    """Maxima of ``src [E, ...]`` over the pairs of each row, ``[N, ...]``, or -inf. Not differentiable.

    Args:
        src: As in :func:`segment_sum`, like the others.
        indptr: ``[N + 1]``.
        row: ``[E]``.

    Example:
        >>> import torch
        >>> segment_max(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 1, 3]), torch.tensor([1, 2, 2]))
        tensor([-inf, 1., 3.])
    """
    src = src.detach()
    if _torch_alone(src):
        index = row.reshape(-1, *[1] * (src.dim() - 1)).expand_as(src)
        low = src.new_full((indptr.shape[0] - 1, *src.shape[1:]), -torch.inf)
        return low.scatter_reduce(0, index, src, "amax")
    top: Tensor = _SegmentMax.apply(src, indptr)
    return top
