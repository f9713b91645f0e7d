"""Attention within a window and to the first tokens, in the place of exact attention: O(n·w).

    softmax over the keys j with |i − j| < w, or j < f         layers/nearby.py

Beltagy et al. 2020 (2004.05150) section 3.1; first tokens: Xiao et al. 2023 (2309.17453). There are
no parameters of its own, so it takes those of a model that was trained with full attention. A
decoder's cache is bounded (layers/sliding_cache.py).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from everyhead.layers import attention
from everyhead.layers.attention import Parts
from everyhead.layers.exact import check_exact, with_maps_of
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.nearby import near
from everyhead.layers.rotary import Rotary
from everyhead.layers.sliding_cache import SlidingCache


class SlidingAttention(MultiHeadAttention):
    """Multi-head attention that sees less than `size` places away, and the first tokens.

    Made by `Window.of`. Masks, biases and rotary positions are honoured as by exact attention.
    """

    size: int
    first: int

    def visible(self, mask: Mask | None) -> Mask:
        """The mask and the window."""
        return near(mask, self.size, self.first)

    def attend(self, parts: Parts, mask: Mask | None, dropout_p: float = 0.0) -> Tensor:
        """(B, H, T, Dv), where q and k may be wider than v (layers/sliding_keys.py)."""
        more = parts.q.shape[-1] - parts.v.shape[-1]
        if more == 0:
            return attention.attend(parts, mask, dropout_p)
        out = attention.attend(parts._replace(v=F.pad(parts.v, (0, more))), mask, dropout_p)
        return out[..., : parts.v.shape[-1]]

    def text_cache(
        self, n_layers: int, capacity: int, *, max_len: int, rotary: Rotary | None
    ) -> SlidingCache:
        """An empty cache for a decoder of such attentions."""
        return SlidingCache(
            n_layers, capacity, size=self.size, first=self.first, max_len=max_len, rotary=rotary
        )

    def step_bias(self, n_keys: int, like: Tensor) -> Tensor | None:
        """(1, 1, 1, S) what the last of S positions does not see is −∞; None: it sees all."""
        if n_keys <= self.size:
            return None
        seen = near(None, self.size, self.first).rows(1, n_keys, like.device)
        bias = torch.zeros(seen.shape, dtype=like.dtype, device=like.device)
        return bias.masked_fill_(~seen, float("-inf"))


@dataclass(frozen=True)
class Window:
    """The method: `size` places to each side, the token itself among them, and the first tokens.

    A decoder sees its last `size` tokens and the `first` first ones of its text. `everyhead.load`
    and `everyhead.swap` put it into a model's place.
    """

    size: int
    first: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.first < 0:
            raise ValueError(
                f"a window has 1 token or more, and 0 or more first tokens are kept; got size "
                f"{self.size}, first {self.first}"
            )

    def of(self, plain: MultiHeadAttention) -> SlidingAttention:
        """Attention within the window with the parameters of `plain`, shared.

        Raises:
            ValueError: `plain` is a variant of its own, whose equation would be lost.
        """
        check_exact(plain, "Window")
        made = with_maps_of(plain, SlidingAttention)
        made.size, made.first = self.size, self.first
        return made
