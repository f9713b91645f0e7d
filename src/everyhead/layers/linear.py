"""The linear map y = x Wᵀ + b, the one seam through which every product with weights goes.

Weights are (out, in) as in PyTorch. Packed and private operators live here alone.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (…, in), weight (out, in), bias (out,) → (…, out)."""
    return F.linear(x, weight, bias)


class Linear(nn.Module):
    """A linear map with Xavier-uniform weights and zero bias (Glorot & Bengio 2010)."""

    def __init__(self, n_in: int, n_out: int, *, bias: bool = True, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_out, n_in))
        self.bias = nn.Parameter(torch.empty(n_out)) if bias else None
        self.reset(gain)

    def reset(self, gain: float = 1.0) -> None:
        """Draw the start: weights uniform in ±gain·√(6 / (in + out)), bias zero."""
        nn.init.xavier_uniform_(self.weight, gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]} → {self.weight.shape[0]}"


class WideLinear(Linear):
    """A map whose result may pass 65,504, the largest float16: then it is computed in float32."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dtype != torch.float16:
            return linear(x, self.weight, self.bias)
        bias = None if self.bias is None else self.bias.float()
        return linear(x.float(), self.weight.float(), bias)  # float32


def stacked(maps: Sequence[Linear]) -> tuple[Tensor, Tensor | None]:
    """Several maps of one x as one product: their weights and biases under one another."""
    weight = torch.cat([m.weight for m in maps])
    biases: list[Tensor] = [m.bias for m in maps if m.bias is not None]
    return weight, torch.cat(biases) if biases else None
