"""Sums and maxima over the pairs of a row, differentiable to any order: torch-scatter's if there, else torch's."""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from torch import Tensor


@functools.cache
def torch_scatter() -> tuple[ModuleType | None, str]:
    """The torch-scatter module or None, and one line that says which reductions are used and why."""
    try:
        import torch_scatter as module
    except ModuleNotFoundError as error:
        if error.name == "torch_scatter":
            return None, "torch's own reductions (torch-scatter is not installed)"
        return None, f"torch's own reductions (torch-scatter does not import: {error})"
    except Exception as error:  # a mismatched binary raises OSError, RuntimeError or ImportError
        return None, f"torch's own reductions (torch-scatter does not import: {str(error).splitlines()[0]})"
    return module, f"torch-scatter {module.__version__}"


@torch.library.custom_op("unified_attn::segment_sum", mutates_args=())
def segment_sum(src: Tensor, indptr: Tensor, row: Tensor) -> Tensor:
    """Sums of ``src [E, ...]`` over the pairs of each row: ``[N, ...]``.

    Args:
        src: ``[E, ...]``, sorted by row.
        indptr: ``[N + 1]``.
        row: ``[E]`` int64, the row of each pair: the same structure the other way round.
    """
    module, _ = torch_scatter()
    if module is None:
        return src.new_zeros(indptr.shape[0] - 1, *src.shape[1:]).index_add_(0, row, src)
    out: Tensor = torch.ops.torch_scatter.segment_sum_csr(src.contiguous(), indptr, None)
    return out


@segment_sum.register_fake
def _(src: Tensor, indptr: Tensor, row: Tensor) -> Tensor:
    return src.new_empty(indptr.shape[0] - 1, *src.shape[1:])


def _sum_backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:
    (row,) = ctx.saved_tensors  # type: ignore[attr-defined]
    return grad.index_select(0, row), None, None  # torch's own, so differentiable again


def _sum_setup(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[2])


segment_sum.register_autograd(_sum_backward, setup_context=_sum_setup)


@torch.library.custom_op("unified_attn::segment_max", mutates_args=())
def segment_max(src: Tensor, indptr: Tensor, row: Tensor) -> Tensor:
    """Maxima of ``src [E, ...]`` over the pairs of each row, ``[N, ...]``, or -inf. Not differentiable."""
    module, _ = torch_scatter()
    if module is None:
        index = row.reshape(-1, *[1] * (src.dim() - 1)).expand_as(src)
        low = src.new_full((indptr.shape[0] - 1, *src.shape[1:]), -torch.inf)
        return low.scatter_reduce_(0, index, src, "amax")
    top: Tensor = torch.ops.torch_scatter.segment_max_csr(src.contiguous(), indptr, None)[0]
    empty = (indptr.diff() == 0).reshape(-1, *[1] * (src.dim() - 1))  # torch-scatter fills these with 0
    return top.masked_fill(empty, -torch.inf)


@segment_max.register_fake
def _(src: Tensor, indptr: Tensor, row: Tensor) -> Tensor:
    return src.new_empty(indptr.shape[0] - 1, *src.shape[1:])
