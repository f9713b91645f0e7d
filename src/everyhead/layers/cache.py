"""What decoding step by step remembers, so that a step costs one query and not the whole prefix.

One protocol serves keys and values here and the other states elsewhere: `length`, `key_mask`,
`append`, `reorder(index)`, `crop(n)`. Memory is taken once, at the longest length asked for.
"""

from torch import Tensor


class KeyValueCache:
    """Keys and values of one attention, (B, K, length, D) each; `fixed` ones are filled once."""

    def __init__(self, capacity: int, *, fixed: bool = False) -> None:
        self.capacity, self.fixed, self.length = capacity, fixed, 0
        self.key_mask: Tensor | None = None
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add (B, K, T, D) at the end; all keys and all values so far come back.

        Raises:
            ValueError: the new keys do not fit into the capacity.
        """
        if self.fixed:
            self._k, self._v, self.length = k, v, k.shape[2]
            return k, v
        end = self.length + k.shape[2]
        if end > self.capacity:
            raise ValueError(
                f"the cache holds {self.capacity} positions and {end} are needed: make it longer"
            )
        if self._k is None or self._v is None:
            room = (k.shape[0], k.shape[1], self.capacity)
            self._k, self._v = k.new_empty(*room, k.shape[3]), v.new_empty(*room, v.shape[3])
        self._k[:, :, self.length : end] = k
        self._v[:, :, self.length : end] = v
        self.length = end
        return self.read()

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
        if self._k is None or self._v is None:
            return
        k, v = self.read()
        k, v = k.index_select(0, index), v.index_select(0, index)
        if self.fixed:
            self._k, self._v = k, v
        elif index.numel() == self._k.shape[0]:
            self._k[:, :, : self.length], self._v[:, :, : self.length] = k, v
        else:
            self._k = self._k.new_empty(index.numel(), *self._k.shape[1:])
            self._v = self._v.new_empty(index.numel(), *self._v.shape[1:])
            self._k[:, :, : self.length], self._v[:, :, : self.length] = k, v

    def crop(self, n: int) -> None:
        """Forget everything after the first n positions."""
        if not self.fixed:
            self.length = min(self.length, n)


class DecoderCache:
    """One pair of caches for each decoder block: growing (self) and fixed (cross)."""

    def __init__(self, n_layers: int, capacity: int, memory_mask: Tensor | None = None) -> None:
        self.self_attn = [KeyValueCache(capacity) for _ in range(n_layers)]
        self.cross_attn = [KeyValueCache(0, fixed=True) for _ in range(n_layers)]
        self.key_mask = memory_mask  # (n, S) of the memory that the beams share

    @property
    def length(self) -> int:
        """Target positions decoded so far."""
        return self.self_attn[0].length if self.self_attn else 0

    def reorder(self, index: Tensor) -> None:
        """Choose target rows (beams) anew; the memory stays as it is."""
        for cache in self.self_attn:
            cache.reorder(index)

    def keep(self, sentences: Tensor) -> None:
        """Go on with these sentences of the memory alone, the others are finished."""
        for cache in self.cross_attn:
            cache.reorder(sentences)
        if self.key_mask is not None:
            self.key_mask = self.key_mask.index_select(0, sentences)

    def crop(self, n: int) -> None:
        for cache in self.self_attn:
            cache.crop(n)
