"""What decoding step by step remembers, so that a step costs one query and not the whole prefix.

One protocol serves keys and values here and the other states elsewhere: `length`, `key_mask`,
`append`, `reorder(index)`, `crop(n)`. Memory is taken once, at the longest length asked for.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Move(NamedTuple):
    """Row i becomes what row rows[i] was: rows `to` come from `origin`, the others stay."""

    rows: Tensor
    to: Tensor
    origin: Tensor

    @classmethod
    def of(cls, index: Tensor) -> "Move":
        to = (index != torch.arange(index.numel(), device=index.device)).nonzero()[:, 0]
        return cls(index, to, index.index_select(0, to))


class KeyValueCache:
    """Keys and values of one attention, (B, K, length, D) each; `fixed` ones are filled once.

    `key_mask` (B, S) says which of fixed keys are real; `bias` is the same as a term of the scores.
    """

    def __init__(
        self, capacity: int, *, fixed: bool = False, key_mask: Tensor | None = None
    ) -> None:
        self.capacity, self.fixed, self.length = capacity, fixed, 0
        self.key_mask = key_mask
        self.bias: Tensor | None = None
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add (B, K, T, D) at the end; all keys and all values so far come back.

        Raises:
            ValueError: the new keys do not fit into the capacity.
        """
        if self.fixed:
            self._fill(k, v)
            return self.read()
        end = self.length + k.shape[2]
        if end > self.capacity:
            raise ValueError(
                f"the cache holds {self.capacity} positions and {end} are needed: make it longer"
            )
        if self._k is None or self._v is None:
            self._k, self._v = self._room(k), self._room(v)
        self._k[:, :, self.length : end] = k
        self._v[:, :, self.length : end] = v
        self.length = end
        return self.read()

    def _fill(self, k: Tensor, v: Tensor) -> None:
        if self.key_mask is not None:
            seen = self.key_mask[:, None, None, :]  # (B, 1, 1, S)
            alive = seen.any(-1, keepdim=True)
            hidden = torch.zeros(seen.shape, dtype=k.dtype, device=k.device)
            self.bias = hidden.masked_fill_(~seen & alive, float("-inf"))
            v = v * alive  # who sees nothing gets the mean of zeros
        self._k, self._v, self.length = k.contiguous(), v.contiguous(), k.shape[2]

    def _room(self, x: Tensor) -> Tensor:
        """Place for rows like x, (B, K, capacity, D)."""
        return x.new_empty(x.shape[0], x.shape[1], self.capacity, x.shape[3])

    def read(self) -> tuple[Tensor, Tensor]:
        """All keys and values so far.

        Raises:
            ValueError: nothing was appended yet.
        """
        if self._k is None or self._v is None:
            raise ValueError("the cache is empty: append keys and values before reading them")
        return self._k[:, :, : self.length], self._v[:, :, : self.length]

    def reorder(self, index: Tensor) -> None:
        """Row i becomes what row index[i] was; rows may repeat or go (beams, finished rows)."""
        self.move(Move.of(index))

    def move(self, move: "Move") -> None:
        """`reorder`, where the moves are known already."""
        if self._k is None or self._v is None:
            return
        self._k, self._v = self._moved(self._k, move), self._moved(self._v, move)
        if self.key_mask is not None:
            self.key_mask = self.key_mask.index_select(0, move.rows)
        if self.bias is not None:
            self.bias = self.bias.index_select(0, move.rows)

    def _moved(self, x: Tensor, move: "Move") -> Tensor:
        n, so_far = move.rows.numel(), x[:, :, : self.length]
        if n > x.shape[0]:
            rows = so_far.index_select(0, move.rows)
            x = rows if self.fixed else self._room(rows)
            x[:, :, : self.length] = rows
            return x
        so_far.index_copy_(0, move.to, so_far.index_select(0, move.origin))
        return x[:n]

    def crop(self, n: int) -> None:
        """Forget everything after the first n positions."""
        if not self.fixed:
            self.length = min(self.length, n)


class DecoderCache:
    """One pair of caches for each decoder block: growing (self) and fixed (cross)."""

    def __init__(self, n_layers: int, capacity: int, *, memory_mask: Tensor | None = None) -> None:
        self.self_attn = [KeyValueCache(capacity) for _ in range(n_layers)]
        self.cross_attn = [
            KeyValueCache(0, fixed=True, key_mask=memory_mask) for _ in range(n_layers)
        ]
        self.key_mask = memory_mask  # (n, S) of the memory that the beams share

    @property
    def length(self) -> int:
        """Target positions decoded so far."""
        return self.self_attn[0].length if self.self_attn else 0

    def reorder(self, index: Tensor) -> None:
        """Choose target rows (beams) anew; the memory stays as it is."""
        move = Move.of(index)
        for cache in self.self_attn:
            cache.move(move)

    def keep(self, sentences: Tensor) -> None:
        """Go on with these sentences of the memory alone, the others are finished."""
        move = Move.of(sentences)
        for cache in self.cross_attn:
            cache.move(move)
        if self.key_mask is not None:
            self.key_mask = self.key_mask.index_select(0, sentences)

    def crop(self, n: int) -> None:
        for cache in self.self_attn:
            cache.crop(n)
