"""Where autocast is set aside."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def autocasts(device: torch.device) -> bool:
    """Whether autocast is on for this device (a meta device has none)."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


_AS_IT_IS = nullcontext()


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Where the library computes: in the dtypes that it names, whatever autocast would choose."""
    return torch.autocast(device.type, enabled=False) if autocasts(device) else _AS_IT_IS
