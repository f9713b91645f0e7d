"""Feed-forwards as inference wants them: the same equations in fewer calls.

f(x W₁ + b₁) W₂ + b₂              ReLU inside the first product
(f(x W_gate) ∘ x W_up) W_down     gate and up in one product
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyhead.layers.feed_forward import FeedForward, GatedFeedForward
from everyhead.layers.linear import Linear, WideLinear, stacked
from everyhead.layers.packed import PackedLinear, packed_map


class PackedFeedForward(FeedForward):
    """The feed-forward for inference, with ReLU inside its first product."""

    def __init__(self, plain: FeedForward, *, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        inside = plain.activation is F.relu
        self.activation = _same if inside else plain.activation
        self.up_proj = packed_map(plain.up_proj, dtype=dtype, f="relu" if inside else "none")
        self.down_proj = _down(plain.down_proj, dtype)
        self.maps = (self.up_proj.forward, self.down_proj.forward)

    def forward(self, x: Tensor) -> Tensor:
        up, down = self.maps
        return down(self.activation(up(x)))


class PackedGatedFeedForward(GatedFeedForward):
    """The gated feed-forward for inference: gate and up are one product."""

    def __init__(self, plain: GatedFeedForward, *, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.activation = plain.activation
        joint = PackedLinear(*stacked((plain.gate_proj, plain.up_proj)), dtype=dtype)
        self.gate_proj = self.up_proj = joint
        self.down_proj = _down(plain.down_proj, dtype)
        self.maps = (joint.forward, self.down_proj.forward)

    def forward(self, x: Tensor) -> Tensor:
        both, down = self.maps
        gate, up = both(x).chunk(2, -1)
        return down(self.activation(gate).mul_(up))


def _down(plain: Linear, dtype: torch.dtype) -> Linear:
    """The last map, packed unless its result is to stay in float32 (layers/linear.py)."""
    wide = isinstance(plain, WideLinear) and dtype == torch.float16
    return plain if wide else packed_map(plain, dtype=dtype)


def _same(x: Tensor) -> Tensor:
    return x
