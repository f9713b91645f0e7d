"""What decoding step by step remembers, so that a step costs one query and not the whole prefix.

One protocol serves keys and values here and the other states elsewhere: `length`, `key_mask`,
`append`, `reorder(index)`, `crop(n)`. Memory is taken once, at the longest length asked for.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyhead.layers.positions import places


class Move(NamedTuple):
    """Row i becomes what row rows[i] was: rows `to` come from `origin`, the others stay."""

    rows: Tensor
    to: Tensor
    origin: Tensor

    @classmethod
    def of(cls, index: Tensor) -> "Move":
        to = (index != torch.arange(index.numel(), device=index.device)).nonzero()[:, 0]
        return cls(index, to, index.index_select(0, to))

    def apply(self, x: Tensor, length: int) -> Tensor:
        """Move rows of x (B, K, capacity, D), of which `length` places are in use."""
        n, so_far = self.rows.numel(), x[:, :, :length]
        if n > x.shape[0]:
            rows = so_far.index_select(0, self.rows)
            x = x.new_empty(n, *x.shape[1:])
            x[:, :, :length] = rows
            return x
        if self.to.numel():
            so_far[self.to] = so_far[self.origin]
        return x[:n]


class KeyValueCache:
    """Keys and values of one attention, (B, K, length, D) each; `fixed` ones are filled once.

    `key_mask` (B, S) says which of fixed keys are real; `bias` is the same as a term of the scores.
    """

    beams = 1  # rows that may share one row of keys, and those that do so now
    width = 1

    def __init__(
        self, capacity: int, *, fixed: bool = False, key_mask: Tensor | None = None
    ) -> None:
        self.capacity, self.fixed, self.length = capacity, fixed, 0
        self.key_mask = key_mask
        self._bias: Tensor | None = None
        self.step_bias: Tensor | None = None
        self._k: Tensor | None = None  # (B, K, capacity, D)
        self._v: Tensor | None = None

    @property
    def bias(self) -> Tensor | None:
        """(B|1, H|1, T or 1, S), −∞ where a key may not be seen; None where nothing is added."""
        return self._bias if self.step_bias is None else self.step_bias

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add (B, K, T, D) at the end; all keys and all values so far come back.

        Raises:
            ValueError: the new keys do not fit into the capacity.
        """
        if self.fixed:
            return self._fill(k, v)
        end = self.length + k.shape[2]
        self._check(end)
        if self._k is None or self._v is None:
            room = (*k.shape[:2], self.capacity)
            self._k, self._v = k.new_empty(*room, k.shape[3]), v.new_empty(*room, v.shape[3])
        self._k[:, :, self.length : end] = k
        self._v[:, :, self.length : end] = v
        self.length = end
        return self.read()

    def entered(self, parts: Any) -> Any:
        """An attention's parts, with all keys and values so far in the place of the new ones."""
        k, v = self.append(parts.k, parts.v)
        return parts._replace(k=k, v=v)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """`append` for keys and values that lie by sentence, (B, K, beams·T, D)."""
        return self.append(k, v)

    def enter(self) -> None:
        """One more position, whose keys and values are written into `whole()` by who calls.

        Raises:
            ValueError: there is no room, or no first position yet.
        """
        self._check(self.length + 1)
        self.whole()
        self.length += 1

    def whole(self) -> tuple[Tensor, Tensor]:
        """The memory of all keys and of all values, (B, K, capacity·beams, D) each.

        Raises:
            ValueError: nothing was appended yet.
        """
        if self._k is None or self._v is None:
            raise ValueError("the cache is empty: append keys and values before reading them")
        return self._k, self._v

    def _check(self, end: int) -> None:
        if end > self.capacity:
            raise ValueError(
                f"the cache holds {self.capacity} positions and {end} are needed: make it longer"
            )

    def _fill(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.key_mask is not None:
            seen = self.key_mask[:, None, None, :]  # (B, 1, 1, S)
            alive = seen.any(-1, keepdim=True)
            hidden = torch.zeros(seen.shape, dtype=k.dtype, device=k.device)
            self._bias = hidden.masked_fill_(~seen & alive, float("-inf"))
            padding = ~self.key_mask[:, None, :, None]  # (B, 1, S, 1)
            k = k.masked_fill(padding, 0)  # as layers/attention.py does: it may hold anything
            v = v.masked_fill(padding, 0)  # and who sees nothing gets the mean of zeros
        self._k, self._v, self.length = k.contiguous(), v.contiguous(), k.shape[2]
        return self.read()

    def read(self) -> tuple[Tensor, Tensor]:
        """All keys and values so far.

        Raises:
            ValueError: nothing was appended yet.
        """
        k, v = self.whole()
        in_use = self.length * self.beams
        return k[:, :, :in_use], v[:, :, :in_use]

    def reorder(self, index: Tensor) -> None:
        """Row i becomes what row index[i] was; rows may repeat or go (beams, finished rows)."""
        self.move(Move.of(index))

    def move(self, move: Move) -> None:
        """`reorder`, where the moves are known already."""
        if self._k is None or self._v is None:
            return
        if not move.to.numel() and move.rows.numel() == self._k.shape[0]:
            return
        in_use = self.length * self.beams
        self._k, self._v = move.apply(self._k, in_use), move.apply(self._v, in_use)
        if self.key_mask is not None:
            self.key_mask = self.key_mask.index_select(0, move.rows)
        if self._bias is not None:
            self._bias = self._bias.index_select(0, move.rows)

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

    def note_bias(self, bias: Tensor | None) -> None:
        """Before one more position enters: the scores' own bias (1, H, 1, length + 1), if any."""
        for cache in self.self_attn:
            cache.step_bias = bias

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


class TextCache(DecoderCache):
    """Of a decoder that reads no memory: which of its keys are real tokens (left padding)."""

    def __init__(self, n_layers: int, capacity: int) -> None:
        super().__init__(n_layers, capacity)
        self.real: Tensor | None = None  # (B, length), None while all are

    def note(self, real: Tensor | None, ids: Tensor) -> Tensor | None:
        """Before new ids (B, T) enter: the key mask (B, length + T) with theirs, None: all real."""
        if real is None and self.real is None:
            return None
        before = self.real
        if before is None:
            before = torch.ones(ids.shape[0], self.length, dtype=torch.bool, device=ids.device)
        real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        self.real = torch.cat([before, real], 1)
        return self.real

    @property
    def counts(self) -> Tensor | int:
        """Real tokens of each row so far, (B, 1), or one number for all."""
        return self.length if self.real is None else self.real.sum(1, keepdim=True)

    def places(self, real: Tensor | None, n: int) -> Tensor:
        """The positions of n tokens that enter next, int64 (B|1, n)."""
        return places(real, n, self.counts)

    @property
    def piece(self) -> int | None:
        """How many positions may enter at once; None: any number."""
        return None

    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        if self.real is not None:
            self.real = self.real.index_select(0, index)

    def crop(self, n: int) -> None:
        super().crop(n)
        if self.real is not None:
            self.real = self.real[:, :n]
