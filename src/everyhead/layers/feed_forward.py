"""The position-wise feed-forward network.

    FFN(x) = f(x W₁ + b₁) W₂ + b₂                f = ReLU (1706.03762 equation 2; B450), GELU, SiLU
    GLU(x) = (f(x W_gate) ∘ x W_up) W_down       Shazeer 2020 (2002.05202): SwiGLU, GEGLU

It reads one token at a time; only attention carries anything from place to place.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyhead.layers.dropout import Dropout
from everyhead.layers.linear import Linear


def _tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # Hendrycks & Gimpel 2016 (1606.08415)
    "gelu_tanh": _tanh_gelu,
    "quick_gelu": _quick_gelu,  # 1606.08415 section 2; published CLIP
    "silu": F.silu,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name.

    Raises:
        ValueError: a name that is not in ACTIVATIONS.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"no activation {name!r}; there are {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


class FeedForward(nn.Module):
    """Two maps with a nonlinearity between; each token for itself (B456)."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        f: str = "relu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation = activation(f)
        self.inner_dropout = Dropout(dropout)  # of what the second map reads
        self.up_proj = Linear(d_model, d_ff, bias=bias)
        self.down_proj = Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.inner_dropout(self.activation(self.up_proj(x))))


class GatedFeedForward(nn.Module):
    """A gate decides, entry by entry, how much of the up map passes."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        f: str = "silu",
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation = activation(f)
        self.inner_dropout = Dropout(dropout)  # of what the second map reads
        self.gate_proj = Linear(d_model, d_ff, bias=bias)
        self.up_proj = Linear(d_model, d_ff, bias=bias)
        self.down_proj = Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.activation(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(self.inner_dropout(inner))
