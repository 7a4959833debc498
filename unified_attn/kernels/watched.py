"""Whether an eager call may skip the dispatcher."""

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)


def watched(tensor: Tensor) -> bool:
    """Whether something traces or observes operators (a compiler, a mode, a subclass), and so has to see one.

    What is not watched calls the same functions without the dispatcher, whose own time is several times that of a small
    problem.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or type(tensor) not in _PLAIN
    )
