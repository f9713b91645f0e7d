"""The cache of a model without keys: its state, which holds all of the past in a fixed size.

The same protocol as of keys and values (layers/cache.py). A state cannot be run backwards, so
`crop` goes back to where a call ended: the states of earlier calls are kept until rows move.
"""

from torch import Tensor

from everyhead.layers.cache import DecoderCache, KeyValueCache

State = tuple[Tensor, ...]  # (B, …) each


class StateCache:
    """length: positions so far, padding counted; state: None before the first."""

    key_mask: Tensor | None = None  # there are no keys
    piece: int | None = None  # any number of positions may enter at once

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self.state: State | None = None
        self._before: list[tuple[int, State | None]] = []

    def append(self, n: int, state: State) -> None:
        """n more positions were read, and this is the state after them.

        Raises:
            ValueError: they do not fit into the capacity.
        """
        self.check(n)
        self._before.append((self.length, self.state))
        self.length, self.state = self.length + n, state

    def check(self, n: int) -> None:
        """Raises ValueError if n more positions do not fit."""
        if self.length + n > self.capacity:
            raise ValueError(
                f"the cache holds {self.capacity} positions and {self.length + n} are needed: "
                "make it longer"
            )

    def reorder(self, index: Tensor) -> None:
        """Row i becomes what row index[i] was; rows may repeat or go."""
        if self.state is not None:
            self.state = tuple(x.index_select(0, index) for x in self.state)
        self._before = []

    def crop(self, n: int) -> None:
        """Forget everything after the first n positions.

        Raises:
            ValueError: no call ended there since rows were last moved.
        """
        if n >= self.length:
            return
        ends = dict(self._before) | {0: None}
        if n not in ends:
            raise ValueError(
                f"a state cannot be taken back to position {n}; it can to those where a call "
                f"ended: {', '.join(map(str, sorted(ends)))}"
            )
        self.length, self.state = n, ends[n]
        self._before = [(length, state) for length, state in self._before if length < n]


class StateDecoderCache(DecoderCache):
    """Of a decoder with a state and one attention over a memory, whose keys are made once."""

    def __init__(self, capacity: int, *, memory_mask: Tensor | None = None) -> None:
        super().__init__(0, capacity, memory_mask=memory_mask)
        self.cross_attn = [KeyValueCache(0, fixed=True, key_mask=memory_mask)]
        self.states = StateCache(capacity)
        self.parents: Tensor | None = None  # where rows came from since the last position

    @property
    def length(self) -> int:
        return self.states.length

    def append(self, n: int, state: State) -> None:
        """n more positions, and the state after them; raises as `StateCache.append` does."""
        self.states.append(n, state)
        self.parents = None

    def reorder(self, index: Tensor) -> None:
        """Choose target rows anew; the memory stays as it is."""
        self.states.reorder(index)
        self.parents = index if self.parents is None else self.parents.index_select(0, index)

    def crop(self, n: int) -> None:
        """Back to where a call ended; raises as `StateCache.crop` does."""
        self.states.crop(n)
