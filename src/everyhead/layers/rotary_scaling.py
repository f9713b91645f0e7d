"""Rotary angles for texts longer than a model was trained on: other frequencies, one rule a class.

    θ_i = base^(−2i/d)
    linear  θ_i / s                                      Chen et al. 2023 (2306.15595) equation 4
    NTK     base · s^(d/(d−2)) for base                  Peng et al. 2023 (2309.00071) equation 16
    YaRN    (1 − γ_i) θ_i / s + γ_i θ_i                  the same, section 3.2 and equation 22
    Llama 3 θ_i, θ_i / s, or between, by wavelength      Llama Team 2024 (2407.21783) section 3.2,
                                                         numbers as published in its code

γ_i falls from 1 to 0 between the pairs that turn β_fast and β_slow times over the original length.
YaRN also makes q and k longer by 0.1 ln s + 1 each, since attention over more keys is flatter.

"Dynamic" NTK is not here: its frequencies depend on the length seen so far, so keys that were
turned earlier would have to be turned anew, and a cache would change the answer.
"""

import math
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

CPU = torch.device("cpu")  # tables are made here, whatever device is chosen around a constructor


class Scaling(Protocol):
    """Which frequencies stand in for θ, and by what cos and sin are multiplied."""

    @property
    def attention_factor(self) -> float: ...

    def frequencies(self, d_head: int, base: float) -> Tensor:
        """(D/2,) in float32, on the CPU."""
        ...

    def _asdict(self) -> dict[str, Any]: ...


def turns(d_head: int, base: float) -> Tensor:
    """base^(2i/d), (D/2,) float32: 1/θ with the rounding that published weights were trained by."""
    channel = torch.arange(0, d_head, 2, dtype=torch.float32, device=CPU)
    return torch.pow(float(base), channel / d_head)


class Linear(NamedTuple):
    """All positions are `factor` times nearer to one another."""

    factor: float

    @property
    def attention_factor(self) -> float:
        return 1.0

    def frequencies(self, d_head: int, base: float) -> Tensor:
        return 1.0 / turns(d_head, base) / self.factor


class NTK(NamedTuple):
    """A larger base: slow pairs are stretched by `factor`, the fastest pair not at all."""

    factor: float

    @property
    def attention_factor(self) -> float:
        return 1.0

    def base(self, d_head: int, base: float) -> float:
        """The base that does the same without any rule."""
        return float(base * self.factor ** (d_head / (d_head - 2)))

    def frequencies(self, d_head: int, base: float) -> Tensor:
        return 1.0 / turns(d_head, self.base(d_head, base))


class Yarn(NamedTuple):
    """Fast pairs stay, slow ones are stretched, those between are mixed.

    attention: what cos and sin are multiplied by; None: 0.1 ln(factor) + 1.
    truncate: the mixed pairs begin and end at whole channels.
    """

    factor: float
    original_len: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention: float | None = None
    truncate: bool = True

    @property
    def attention_factor(self) -> float:
        return lengthened(self.factor) if self.attention is None else self.attention

    def frequencies(self, d_head: int, base: float) -> Tensor:
        low, high = self._mixed(d_head, base)
        pair = torch.arange(d_head // 2, dtype=torch.float32, device=CPU)
        stay = 1 - ((pair - low) / (high - low)).clamp(0, 1)  # γ, (D/2,)
        whole = turns(d_head, base)
        return 1.0 / (self.factor * whole) * (1 - stay) + 1.0 / whole * stay

    def _mixed(self, d_head: int, base: float) -> tuple[float, float]:
        """The pairs between which γ falls; equation 17 solved for the channel."""
        low, high = (
            d_head * math.log(self.original_len / (beta * 2 * math.pi)) / (2 * math.log(base))
            for beta in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, d_head - 1)
        return low, high + 0.001 if low == high else high


def lengthened(factor: float, share: float = 1.0) -> float:
    """0.1 · share · ln(factor) + 1, and 1 where nothing is stretched; 2309.00071 equation 22."""
    return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0


class Llama3(NamedTuple):
    """Wavelengths over original_len / low are stretched, under original_len / high they stay."""

    factor: float
    original_len: int
    low: float = 1.0
    high: float = 4.0

    @property
    def attention_factor(self) -> float:
        return 1.0

    def frequencies(self, d_head: int, base: float) -> Tensor:
        plain = 1.0 / turns(d_head, base)
        wavelength = 2 * math.pi / plain
        stretched = plain / self.factor
        share = (self.original_len / wavelength - self.low) / (self.high - self.low)
        mixed = (1 - share) * plain / self.factor + share * plain
        longest, shortest = self.original_len / self.low, self.original_len / self.high
        slow = torch.where(wavelength > longest, stretched, mixed)
        return torch.where(wavelength < shortest, plain, slow)
