"""Local attention: a text is cut into chunks, and a chunk sees itself and those beside it.

    i looks at j where  −before ≤ ⌊j/C⌋ − ⌊i/C⌋ ≤ after              C tokens a chunk

Kitaev et al. 2020 (2001.04451), published code: the other half of a Reformer's layers. It is plain
attention under one more rule, so O(n·C). Two things differ. Tokens are counted, not places, so
padding on the left moves no edge. And the published chunks stand in a ring: the first looks back at
the last where nothing is causal, and chunks of a text shorter than `before` of them are met twice,
and count twice; here nothing stands before the first.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from everyhead.layers import attention
from everyhead.layers.attention import Parts
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.positions import places
from everyhead.layers.rules import Span


class NearChunks(NamedTuple):
    """The key's chunk is the query's, or among so many before it and after it.

    numbers (B, S): how many real tokens came before each key; None: as many as there are keys.
    """

    size: int
    before: int
    after: int = 0
    numbers: Tensor | None = None

    def visible(self, i: Tensor, j: Tensor, offset: int) -> Tensor:
        """As rules.Rule: i (t, 1), j (1, s) → bool (t, s) or (B, 1, t, s)."""
        if self.numbers is None:
            own, other = (i + offset) // self.size, j // self.size  # (t, 1), (1, s)
        else:
            chunk = self.numbers // self.size  # (B, S)
            own = chunk[:, None, i[:, 0] + offset, None]  # (B, 1, t, 1)
            other = chunk[:, None, None, j[0]]  # (B, 1, 1, s)
        return (other >= own - self.before) & (other <= own + self.after)

    def span(self, start: int, stop: int, n_keys: int, offset: int) -> Span:
        """The keys that queries start … stop − 1 can reach at all."""
        first, last = start + offset, stop + offset - 1
        if self.numbers is None:
            return (
                (first // self.size - self.before) * self.size,
                (last // self.size + self.after + 1) * self.size,
            )
        chunk = self.numbers // self.size  # (B, S), grows along a row
        low, high = chunk[:, first, None] - self.before, chunk[:, last, None] + self.after
        begin = torch.searchsorted(chunk.contiguous(), low.contiguous()).min()
        end = torch.searchsorted(chunk.contiguous(), high.contiguous(), right=True).max()
        return int(begin), int(end)


class LocalAttention(MultiHeadAttention):
    """Multi-head attention among near chunks, any length from 1 up. 2001.04451, published code.

    chunk: tokens; look: how many chunks before and after its own a token sees. Without biases in
    its maps, as published.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        chunk: int = 64,
        look: tuple[int, int] = (1, 0),
        d_head: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(d_model, n_heads, d_head=d_head, bias=False, dropout=dropout)
        if chunk < 1 or min(look) < 0:
            raise ValueError(
                "a chunk holds at least 1 token and looks 0 or more chunks around; got chunk "
                f"{chunk}, look {look}"
            )
        self.chunk, self.look = chunk, look

    def visible(self, mask: Mask | None) -> Mask:
        """The mask, and near chunks alone; its key mask says which tokens are counted."""
        mask = mask or Mask()
        return Mask((*mask.rules, self._near(mask.key_mask)))

    def attend(self, parts: Parts, mask: Mask | None, dropout_p: float = 0.0) -> Tensor:
        """(B, H, T, Dv)."""
        return attention.attend(parts, self._ruled(parts, mask), dropout_p)

    def weights(
        self,
        parts: Parts,
        mask: Mask | None,
        heads: list[int] | slice | None = None,
        rows: slice | Tensor | None = None,
    ) -> Tensor:
        """Rows of the matrix, (B, h, t, S)."""
        return attention.weights(parts, self._ruled(parts, mask), heads, rows)

    def _near(self, real: Tensor | None) -> NearChunks:
        numbers = None if real is None else places(real, real.shape[1])
        return NearChunks(self.chunk, *self.look, numbers)

    def _ruled(self, parts: Parts, mask: Mask | None) -> Mask | None:
        """A step behind a cache may come with a bias in its mask's place: −∞ hides padding."""
        if mask is not None or parts.bias is None:
            return mask
        hidden = parts.bias.isneginf().all(2).all(1)  # (B|1, S)
        return Mask((self._near(~hidden),))
