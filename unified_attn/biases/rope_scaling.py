"""How rotary frequencies are changed to reach beyond the length that a model was trained for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unified_attn.pairs import check_count, check_far, check_number


@dataclass(frozen=True)
class RoPEScaling:
    """The frequencies of :class:`~unified_attn.RoPE`; this one leaves them as they are. The others override it.

    Attributes:
        dynamic: Whether frequencies depend on the length of a call, so that a key's turn is not its position's alone.

    Example:
        >>> RoPEScaling().frequencies(4, 10000.0, torch.tensor(5))
        tensor([1.0000, 0.0100], dtype=torch.float64)
    """

    dynamic: ClassVar[bool] = False

    def frequencies(self, size: int, base: float, length: Tensor) -> Tensor:
        """Angles a position, ``[size / 2]`` float64 on the device of ``length``.

        Args:
            size: Number of coordinates that are turned.
            base: Base of the frequencies.
            length: Largest key position of the call, and 1: an integer without dimensions.
        """
        return base ** -_exponents(size, length)

    @property
    def magnitude(self) -> float:
        """Multiplies cosines and sines, of queries and of keys."""
        return 1.0


@dataclass(frozen=True)
class PositionInterpolation(RoPEScaling):
    """Positions divided by a factor.

    Args:
        factor: How many times as long; at least 1.

    Raises:
        TypeError: If it is no number.
        ValueError: If it is below 1 or not finite.

    Reference: Chen et al., 2023, arXiv 2306.15595, Eq. 4; ``linear`` in transformers.

    Example:
        >>> PositionInterpolation(2.0).frequencies(4, 10000.0, torch.tensor(5))
        tensor([0.5000, 0.0050], dtype=torch.float64)
    """

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def frequencies(self, size: int, base: float, length: Tensor) -> Tensor:
        return base ** -_exponents(size, length) / self.factor


@dataclass(frozen=True)
class NTK(RoPEScaling):
    """A larger base: the slowest pair turns as under interpolation, the fastest as before.

    Args:
        factor: How many times as long; at least 1.

    Raises:
        TypeError: If it is no number.
        ValueError: If it is below 1 or not finite.

    Reference: bloc97, 2023, as in Peng et al., YaRN, arXiv 2309.00071, Definition 1:
    base * factor ^ (size / (size - 2)).

    Example:
        >>> NTK(2.0).frequencies(4, 10000.0, torch.tensor(5))  # the slowest: 1/100 halved
        tensor([1.0000, 0.0050], dtype=torch.float64)
    """

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def frequencies(self, size: int, base: float, length: Tensor) -> Tensor:
        exponents = _exponents(size, length)  # of base and factor apart: their product may be too great for a number
        return base**-exponents * self.factor ** -(_stretch(size) * exponents)


@dataclass(frozen=True)
class DynamicNTK(RoPEScaling):
    """A base that grows with the length once that is above the trained one.

        base * (factor * length / max_position - (factor - 1)) ^ (size / (size - 2))

    The length is that of *this call*: its largest key position and 1. Nothing is remembered: after a long input a short
    one is as ever, and a step of decoding equals the last row of a whole pass of its length. So a cache has to hold
    keys that are not turned yet; and the rows of one whole pass share its base.

    Args:
        factor: How steeply the base grows; at least 1.
        max_position: Length that the model was trained for.

    Raises:
        TypeError: If one is no number.
        ValueError: If ``factor`` is below 1 or ``max_position`` below 1.

    Reference: emozilla, 2023, as in Peng et al., YaRN, arXiv 2309.00071, Section 3.3; ``dynamic`` in transformers.

    Example:
        >>> frequencies = DynamicNTK(2.0, max_position=8).frequencies(64, 10000.0, torch.tensor(16))
        >>> round(float(frequencies[1] ** -32), 2)  # base ^ (-2 / 64) back to the base
        31082.24
    """

    factor: float
    max_position: int
    dynamic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        _check_max_position(self.max_position)

    def frequencies(self, size: int, base: float, length: Tensor) -> Tensor:
        ratio = length.clamp(min=self.max_position).double() / self.max_position
        exponents = _exponents(size, length)
        return base**-exponents * (self.factor * ratio - (self.factor - 1.0)) ** -(_stretch(size) * exponents)


@dataclass(frozen=True)
class YaRN(RoPEScaling):
    """Fast pairs as they are, slow ones interpolated, a ramp between; and a magnitude against flat softmaxes.

    The magnitude is ``attention_factor`` if that is given. Otherwise it is m(mscale) / m(mscale_all_dim) if these two
    are, which is 1 where they are equal, and else m(1), where m(s) = 0.1 * s * ln(factor) + 1.

    Args:
        factor: How many times as long; at least 1.
        max_position: Length that the model was trained for.
        attention_factor: The magnitude itself.
        beta_fast: Pairs that turn more often than this within ``max_position`` stay as they are.
        beta_slow: Pairs that turn less often than this are interpolated.
        mscale: With ``mscale_all_dim``, as DeepSeek's configurations have them.
        mscale_all_dim: With ``mscale``.

    Raises:
        TypeError: If one is no number, or a field is unknown.
        ValueError: If one is out of range, or ``mscale`` is given without ``mscale_all_dim`` or the other way round;
            in ``RoPE``, if the base is not above 1.

    Reference: Peng et al., 2023, arXiv 2309.00071, Eq. 17 to 22, the ends of the ramp rounded as in the authors' code;
    ``yarn`` in transformers.

    Example:
        >>> round(YaRN(4.0, 4096).magnitude, 5), round(YaRN(16.0, 4096).magnitude, 5)
        (1.13863, 1.27726)
        >>> YaRN(40.0, 4096, mscale=0.707, mscale_all_dim=0.707).magnitude
        1.0
    """

    factor: float
    max_position: int
    attention_factor: float | None = None
    beta_fast: float = 32
    beta_slow: float = 1
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        _check_max_position(self.max_position)
        optional = ("attention_factor", "mscale", "mscale_all_dim")
        for name in ("beta_fast", "beta_slow", *optional):
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            _check_positive(name, value)
        if self.beta_fast <= self.beta_slow:
            raise ValueError(
                f"beta_fast is {self.beta_fast} and beta_slow {self.beta_slow}: fast pairs turn more often than slow "
                f"ones, so beta_fast must be the greater"
            )
        if (self.mscale is None) != (self.mscale_all_dim is None):
            raise ValueError(
                f"mscale is {self.mscale} and mscale_all_dim {self.mscale_all_dim}: the magnitude is a ratio of both, "
                f"so give both or neither"
            )

    def frequencies(self, size: int, base: float, length: Tensor) -> Tensor:
        if not base > 1:
            raise ValueError(f"base is {base}; YaRN asks how often a pair turns, so the base must be above 1")
        plain = base ** -_exponents(size, length)
        low = max(math.floor(self._pair(self.beta_fast, size, base)), 0)
        high = min(math.ceil(self._pair(self.beta_slow, size, base)), size - 1)
        width = high - low if high != low else 0.001  # a step where the ends meet
        pairs = torch.arange(size // 2, dtype=torch.float64, device=length.device)
        slow = ((pairs - low) / width).clamp(0.0, 1.0)
        return plain * (1.0 - slow) + plain / self.factor * slow

    def _pair(self, turns: float, size: int, base: float) -> float:
        """Number of the pair, as a fraction, that turns so many times within ``max_position``."""
        return size * math.log(self.max_position / (turns * 2 * math.pi)) / (2 * math.log(base))

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return float(self.attention_factor)
        if self.mscale is not None and self.mscale_all_dim is not None:
            return self._spread(self.mscale) / self._spread(self.mscale_all_dim)
        return self._spread(1.0)

    def _spread(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0


@dataclass(frozen=True)
class Llama3(RoPEScaling):
    """By wavelength: short ones as they are, long ones interpolated, a blend between (Llama 3.1).

    Args:
        factor: How many times as long; at least 1.
        low_freq_factor: Wavelengths above ``max_position / low_freq_factor`` are interpolated.
        high_freq_factor: Wavelengths below ``max_position / high_freq_factor`` stay; greater than the other.
        max_position: Length that the model was trained for.

    Raises:
        TypeError: If one is no number.
        ValueError: If one is out of range, or the factors are in the wrong order.

    Reference: Llama team, 2024, arXiv 2407.21783, and the formula of the model's code; ``llama3`` in transformers.

    Example:
        Wavelengths 6.3, 63, 628 and 6283: with 100 and 400 as the bounds, the last two are interpolated.

        >>> Llama3(8.0, 1.0, 4.0, max_position=400).frequencies(8, 10000.0, torch.tensor(5))
        tensor([1.0000e+00, 1.0000e-01, 1.2500e-03, 1.2500e-04], dtype=torch.float64)
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    max_position: int

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        _check_max_position(self.max_position)
        for name in ("low_freq_factor", "high_freq_factor"):
            _check_positive(name, getattr(self, name))
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor is {self.high_freq_factor} and low_freq_factor {self.low_freq_factor}: "
                f"high_freq_factor must be the greater"
            )

    def frequencies(self, size: int, base: float, length: Tensor) -> Tensor:
        plain = base ** -_exponents(size, length)
        periods = self.max_position * plain / (2 * math.pi)  # wavelengths within the trained length
        low, high = self.low_freq_factor, self.high_freq_factor
        kept = ((periods - low) / (high - low)).clamp(0.0, 1.0)
        return plain / self.factor * (1.0 - kept) + plain * kept


def check_scaling(scaling: object) -> RoPEScaling:
    """What RoPE computes with: the scaling given, or the one that changes nothing.

    Raises:
        TypeError: If it is something else, such as a configuration's dictionary.
    """
    if scaling is None:
        return RoPEScaling()
    if not isinstance(scaling, RoPEScaling):
        raise TypeError(f"scaling is {scaling!r}; give a scaling object such as YaRN(factor, max_position), or None")
    return scaling


def _exponents(size: int, length: Tensor) -> Tensor:
    """2p / size for each pair p: ``[size / 2]`` float64."""
    return torch.arange(0, size, 2, dtype=torch.float64, device=length.device) / size


def _stretch(size: int) -> float:
    """Power of the factor by which a base grows; of a single pair, which has frequency 1, any will do."""
    return size / max(size - 2, 1)


def _check_factor(factor: object) -> None:
    check_number("factor", factor, "give a number, at least 1")
    if not 1.0 <= factor < math.inf:  # type: ignore[operator]
        raise ValueError(f"factor is {factor}; it says how many times as long, so it must be at least 1 and finite")


def _check_max_position(max_position: object) -> None:
    check_count("max_position", max_position, "give the length that the model was trained for")
    if max_position < 1:  # type: ignore[operator]
        raise ValueError(f"max_position is {max_position}; it must be at least 1")
    check_far("max_position", max_position, "")  # type: ignore[arg-type]  # just checked


def _check_positive(name: str, value: object) -> None:
    check_number(name, value, "give a positive number")
    if not 0.0 < value < math.inf:  # type: ignore[operator]
        raise ValueError(f"{name} is {value}; it must be positive and finite")
