"""A linear map whose input size may be left open until the first input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.parameter import UninitializedParameter

from unified_attn._autocast import autocasts
from unified_attn._watched import watched
from unified_attn.kernels import large, mostly_zero
from unified_attn.pairs import check_count


def glorot(weight: Tensor) -> None:
    """Draws uniformly from +-sqrt(6 / (m + n)), m and n being the last two sizes.

    Reference: Glorot and Bengio, 2010, Eq. 16.
    """
    bound = (6.0 / (weight.shape[-2] + weight.shape[-1])) ** 0.5
    nn.init.uniform_(weight, -bound, bound)


def _open() -> nn.Parameter:
    weight: nn.Parameter = UninitializedParameter()  # type: ignore[assignment]  # it becomes one when its size is known
    return weight


class Linear(nn.Module):
    """x W^T + b, with the names, the lazy size and the starting values of torch-geometric's layer of that name.

    Features that are mostly zero (bags of words, one-hot codes) and get no gradient are multiplied as a sparse matrix,
    on a CPU: the same numbers but for rounding, in a fraction of the time.

    Args:
        in_channels: Size of the last dimension of x; -1: that of the first x.
        out_channels: Size of the output.
        bias: Whether b is there. It starts uniformly in +-1 / sqrt(in_channels).
        init: How W starts: ``"glorot"``, or ``"fan_in"``, uniformly in +-1 / sqrt(in_channels).

    Raises:
        TypeError: If x and the weight differ in dtype, and autocast is off.
        ValueError: If a size is not positive (``in_channels`` may be -1), or x has another size.

    Example:
        >>> lazy = Linear(-1, 3)
        >>> lazy(torch.zeros(2, 5)).shape, lazy.weight.shape
        (torch.Size([2, 3]), torch.Size([3, 5]))
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        bias: bool = True,
        init: Literal["glorot", "fan_in"] = "fan_in",
    ) -> None:
        super().__init__()
        check_count("in_channels", in_channels, "give the size of an input row, or -1 to take it from the first one")
        check_count("out_channels", out_channels, "give the size of an output row")
        if in_channels != -1 and in_channels < 1:
            raise ValueError(f"in_channels is {in_channels}; it must be positive, or -1 for that of the first input")
        if out_channels < 1:
            raise ValueError(f"out_channels is {out_channels}; it must be positive")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.init = init
        self.weight = _open() if in_channels == -1 else nn.Parameter(torch.empty(out_channels, in_channels))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws weight and bias anew, where the input size is known."""
        if self.in_channels == -1:
            return
        bound = self.in_channels**-0.5
        if self.init == "glorot":
            glorot(self.weight)
        else:
            nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def fit(self, x: Tensor) -> None:
        """Takes the input size from x if it is open, and holds x to it if it is known."""
        if self.in_channels == -1:
            self._materialize(x.shape[-1])
            self.reset_parameters()
        if x.shape[-1] != self.in_channels:
            raise ValueError(
                f"rows of features have size {x.shape[-1]} (shape {list(x.shape)}), but the layer was made for "
                f"{self.in_channels} channels"
            )
        if x.dtype != self.weight.dtype and not autocasts(x.device):
            raise TypeError(f"features are {x.dtype}, but the layer's weights {self.weight.dtype}; convert one of them")

    def forward(self, x: Tensor) -> Tensor:
        """x ``[..., in_channels]`` to ``[..., out_channels]``."""
        out: Tensor = _maps(x, [self])[0]
        return out

    def _materialize(self, in_channels: int) -> None:
        self.in_channels = in_channels
        if isinstance(self.weight, UninitializedParameter):
            self.weight.materialize((self.out_channels, in_channels))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if self.in_channels != -1:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            return
        destination[prefix + "weight"] = self.weight  # nothing to detach yet
        if self.bias is not None:
            destination[prefix + "bias"] = self.bias if keep_vars else self.bias.detach()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        given = state_dict.get(prefix + "weight")
        if isinstance(given, UninitializedParameter):
            self.in_channels, self.weight = -1, _open()
        elif isinstance(given, Tensor) and self.in_channels == -1 and given.dim() == 2:
            self._materialize(given.shape[1])
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __repr__(self) -> str:
        return f"Linear({self.in_channels}, {self.out_channels}, bias={self.bias is not None})"


def project(x: Tensor, *linears: Linear | None) -> list[Any]:
    """What each of these makes of x, in one step where nobody looks at a single one of them.

    Args:
        x: ``[..., in_channels]``.
        linears: Maps, or None.

    Returns:
        ``[..., out_channels]`` each, None for None.
    """
    there = [each for each in linears if each is not None]
    outs = iter([each(x) for each in there] if any(map(_observed, there)) else _maps(x, there))
    return [None if each is None else next(outs) for each in linears]


def _observed(module: nn.Module) -> bool:
    """Whether calling it does more than its class says: by hooks, or by a method that was put on the object."""
    return bool(
        type(module) is not Linear
        or "forward" in vars(module)
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or _has_any_global_hook()
    )


def _maps(x: Tensor, linears: Sequence[Linear]) -> Sequence[Tensor]:
    for each in linears:
        each.fit(x)
    weights, biases = [each.weight for each in linears], [each.bias for each in linears]
    if autocasts(x.device) or any(map(watched, weights)):
        return [linear(x, w, b) for w, b in zip(weights, biases, strict=True)]
    few = mostly_zero.nonzeros(x)
    if few is None:
        return large.linears(x, weights, biases)
    return mostly_zero.linears(x, few, weights, biases)
