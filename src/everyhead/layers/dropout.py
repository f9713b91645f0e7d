"""Dropout: y = x · m / (1 − p), m Bernoulli(1 − p), in training only.

Srivastava et al. 2014. On a processor, drawing a Bernoulli number for each entry costs more than
the products around it; here sixteen random bits are drawn for each entry and compared with
p · 2¹⁶, so p is exact to 1/65,536 and the mean is kept by dividing by the share really kept.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 1 << 16


def kept(x: Tensor, p: float) -> Tensor:
    """The mask m / (1 − p) for x on a processor: 0 or the scale, in x's type and shape."""
    threshold = min(round(p * _LEVELS), _LEVELS - 1)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64)
    words.random_(torch.iinfo(torch.int64).min, None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    mask = bits.ge(threshold - _LEVELS // 2).to(x.dtype)
    return mask.mul_(_LEVELS / (_LEVELS - threshold))


def dropout(x: Tensor, p: float) -> Tensor:
    """x with a share p of its entries dropped; p = 0 leaves x as it is.

    Raises:
        ValueError: p outside [0, 1).
    """
    if not 0 <= p < 1:
        raise ValueError(f"dropout is a share in [0, 1); got {p}")
    if p == 0:
        return x
    return x * kept(x, p) if x.device.type == "cpu" else F.dropout(x, p)


def add_dropped(x: Tensor, y: Tensor, p: float) -> Tensor:
    """x + dropout(y) in one pass over memory."""
    if p == 0:
        return x + y
    if x.device.type != "cpu":
        return x + F.dropout(y, p)
    return torch.addcmul(x, y, kept(y, p))


class Dropout(nn.Module):
    """`dropout` as a module: off in eval."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p if self.training else 0.0)
