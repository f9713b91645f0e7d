"""Rotary positions: q and k are turned, pair by pair, by an angle that grows with the position.

    (x_i, x_{i+d/2}) ← (x_i cos a − x_{i+d/2} sin a,  x_{i+d/2} cos a + x_i sin a),  a = pos · θ_i
    θ_i = base^(−2i/d)

Su et al. 2021 (2104.09864) equation 34; the pairs are (i, i + d/2) as in the published Llamas, not
(2i, 2i + 1) as in the paper: the same up to an order of the channels. A product of turned q and k
depends on the distance of their positions alone.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from everyhead.layers.rotary_scaling import Scaling, turns


class Rotation(NamedTuple):
    """cos and sin of the angles at each position: (B|1, 1, T, D) each."""

    cos: Tensor
    sin: Tensor


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """x (B, H, T, D) turned by its positions' angles."""
    half = x.shape[-1] // 2
    swapped = torch.cat([-x[..., half:], x[..., :half]], -1)  # (B, H, T, D)
    return x * rotation.cos.to(x.dtype) + swapped * rotation.sin.to(x.dtype)


class Rotary(nn.Module):
    """The angles of d_head / 2 pairs; nothing of it is saved, since it can be computed.

    θ is no buffer, so that `.to(torch.bfloat16)` cannot round it: float32 is the rounding that
    published checkpoints were trained with. scaling: other frequencies (layers/rotary_scaling.py).
    """

    def __init__(
        self, d_head: int, *, base: float = 10_000.0, scaling: Scaling | None = None
    ) -> None:
        super().__init__()
        if d_head % 2:
            raise ValueError(f"rotary positions turn pairs, and d_head {d_head} is odd")
        self.d_head, self.base, self.scaling = d_head, base, scaling
        self.theta, self.attention_factor = 1.0 / turns(d_head, base), 1.0
        if scaling is not None:
            self.theta = scaling.frequencies(d_head, base)
            self.attention_factor = scaling.attention_factor

    def forward(self, positions: Tensor) -> Rotation:
        """positions int64 (B|1, T) → cos and sin (B|1, 1, T, D) in float32."""
        angle = positions[:, None, :, None] * self.theta.to(positions.device)  # (B, 1, T, D/2)
        angle = torch.cat([angle, angle], -1)  # (B, 1, T, D)
        if self.attention_factor == 1.0:
            return Rotation(angle.cos(), angle.sin())
        return Rotation(angle.cos() * self.attention_factor, angle.sin() * self.attention_factor)

    def turn(self, by: Tensor) -> Rotation:
        """by int64 (B|1, T): turns what stands at p as if it stood at p + by, no longer than it is.

        For q and k that were turned by `forward` already.
        """
        angle = by[:, None, :, None] * self.theta.to(by.device)  # (B|1, 1, T, D/2)
        angle = torch.cat([angle, angle], -1)  # (B|1, 1, T, D)
        return Rotation(angle.cos(), angle.sin())
