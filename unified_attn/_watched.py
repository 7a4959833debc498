"""Whether an eager call may skip the dispatcher."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

PLAIN = (Tensor, torch.nn.Parameter)
"""Types of tensors that are no more than that."""


def watched(tensor: Tensor) -> bool:
    """Whether something traces or observes operators (a compiler, a mode, a transform, a subclass), and has to see one.

    What is not watched calls the same functions without the dispatcher, whose own time is several times that of a small
    problem.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or type(tensor) not in PLAIN
    )


def watched_gradient(grad: Tensor) -> bool:
    """The same of what a backward pass is given, which may also be a batch in disguise (``is_grads_batched``)."""
    return watched(grad) or is_batch(grad)


def is_batch(grad: Tensor) -> bool:
    """Whether it is a batch in disguise."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(grad))
