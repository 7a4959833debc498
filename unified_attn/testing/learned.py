"""What a bias or a score learns: gradients by finite differences, and halves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from unified_attn.testing.law import LawBroken, require

Module = TypeVar("Module", bound=nn.Module)


def in_dtype(module: Module, dtype: torch.dtype) -> Module:
    """A copy of a bias or score in another dtype, with new leaves for what it learns."""
    learned = [(name, x.requires_grad) for name, x in held(module)]
    with torch.no_grad():
        memo = {id(x): x.detach().clone() for _, x in held(module) if not x.is_leaf}  # only leaves can be copied
        new = copy.deepcopy(module, memo).to(dtype)
    tensors = dict(held(new))
    for name, needs in learned:
        tensors[name].requires_grad_(needs)
    return new


def held(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and float buffers by name."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [(name, x) for name, x in tensors if x.is_floating_point()]


def check_gradients(name: str, learned: list[tuple[str, Tensor]], run: Callable[[], Tensor]) -> None:
    """Every learned tensor gets a finite gradient, which finite differences confirm.

    Args:
        name: What is checked.
        learned: Its tensors in float64 by name; those that ask for no gradient are left out.
        run: The output, from these very tensors.
    """
    learned = [(key, x) for key, x in learned if x.requires_grad and x.numel()]
    if not learned:
        return
    law = "what is learned gets its gradient"
    tensors = [x for _, x in learned]
    out = run()
    require(law, out.requires_grad, f"{name}: the output depends on none of {', '.join(key for key, _ in learned)}")
    weight = torch.linspace(-1.0, 2.0, out.numel(), dtype=out.dtype).reshape(out.shape).cos()
    grads = torch.autograd.grad((out * weight).sum(), tensors, allow_unused=True)
    for (key, _), grad in zip(learned, grads, strict=True):
        require(law, grad is not None, f"{name}: {key} gets none")
        require(law, grad is not None and bool(grad.isfinite().all()), f"{name}: that of {key} is not finite")
    try:
        torch.autograd.gradcheck(lambda *_: run(), tensors)
    except GradcheckError as error:
        raise LawBroken("gradients are those of finite differences", f"{name}: {error}") from error
