"""Layer normalisation over each token's features.

    LayerNorm(x) = γ · (x − mean) / √(var + ε) + β          var biased, over the last axis

Ba, Kiros & Hinton 2016 (1607.06450) equation 4. The documents divide by (std + ε); the published
formula has ε under the root (B505).

    RMSNorm(x) = γ · x / √(mean(x²) + ε)

Zhang & Sennrich 2019 (1910.07467) equation 4: no mean is taken away and nothing is added.
"""

import torch
from torch import Tensor, nn


class LayerNorm(nn.Module):
    """γ and β of one width, starting at 1 and 0."""

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """γ of one width, starting at 1. Half precision is averaged in float32, as published.

    A stream wider than γ comes out in γ's type.
    """

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(self.weight.dtype)
