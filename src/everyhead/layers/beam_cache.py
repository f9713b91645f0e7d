"""The history of beams, kept by sentence: choosing beams anew moves pointers, not keys.

    slot t·W + w of a sentence      the entry that row w wrote at position t; W rows a sentence
    ancestors[b, t] = w             row b's own history at position t stands in slot t·W + w
    bias[b, t·W + w]                0 where ancestors[b, t] = w, else −∞; plus the scores' own bias

All rows of a sentence ask its one history together, as they ask its one memory. Each reads W
times the keys it needs, but as one product, and a step copies nothing.
"""

import torch
from torch import Tensor

from everyhead.layers.cache import DecoderCache, KeyValueCache, Move


class Ancestry:
    """Whose entries a row's history is made of; the same in every layer."""

    def __init__(self, beams: int) -> None:
        self.beams = beams
        self.ancestors: Tensor | None = None  # (n, rows a sentence, t)
        self.step_bias: Tensor | None = None  # (1, H, 1, t·W), of the newest position
        self._bias: Tensor | None = None

    @property
    def width(self) -> int:
        """Rows a sentence: 1 until the first choice of beams."""
        return 1 if self.ancestors is None else self.ancestors.shape[1]

    def bias(self, n: int, length: int, like: Tensor) -> Tensor:
        """(n, 1|H, rows a sentence, length·W), after the newest position's rows were written."""
        ancestors = self.history(n, length, like.device)
        if self._bias is None:
            self._bias = self._seen(ancestors).to(like.dtype)
            if self.step_bias is not None:
                self._bias = self._bias + self.step_bias.to(like.dtype)
        return self._bias

    def history(self, n: int, length: int, device: torch.device) -> Tensor:
        """`ancestors` with the newest position, which every row wrote for itself."""
        if self.ancestors is None or self.ancestors.shape[2] < length:
            self.ancestors, self._bias = self._grown(n, device), None
        return self.ancestors

    def _grown(self, n: int, device: torch.device) -> Tensor:
        own = torch.arange(self.width, device=device).expand(n, -1)[..., None]  # (n, rows, 1)
        return own if self.ancestors is None else torch.cat([self.ancestors, own], 2)

    def _seen(self, ancestors: Tensor) -> Tensor:
        slots = torch.arange(self.beams, device=ancestors.device)
        hidden = (ancestors[..., None] != slots).flatten(2)[:, None]  # (n, 1, rows, t·W)
        return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, float("-inf"))

    def choose(self, index: Tensor) -> Tensor:
        """Rows anew, W a sentence; → the sentences that they belong to (n,).

        Raises:
            ValueError: there is no history yet.
        """
        if self.ancestors is None:
            raise ValueError("beams are chosen after their first step: decode a position first")
        sentences = index.view(-1, self.beams)[:, 0] // self.width
        self.ancestors = self.ancestors.flatten(0, 1).index_select(0, index)
        self.ancestors = self.ancestors.unflatten(0, (-1, self.beams))
        self._bias = None
        return sentences

    def crop(self, n: int) -> None:
        if self.ancestors is not None:
            self.ancestors, self._bias = self.ancestors[..., :n], None


class BeamCache(KeyValueCache):
    """Keys and values of n sentences, (n, K, length·W, D), asked by n rows at first, n·W later."""

    def __init__(self, capacity: int, ancestry: Ancestry) -> None:
        super().__init__(capacity)
        self.beams, self.ancestry = ancestry.beams, ancestry

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.ancestry.width

    @property
    def bias(self) -> Tensor | None:
        if self._k is None:
            return None
        return self.ancestry.bias(self._k.shape[0], self.length, self._k)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add one position (n or n·W, K, 1, D); all slots of the sentences come back.

        Raises:
            ValueError: several positions at once, or more than the capacity.
        """
        if k.shape[2] != 1:
            raise ValueError(f"beams go one position at a time; got {k.shape[2]} at once")
        return self.extend(self._by_sentence(k), self._by_sentence(v))

    def _by_sentence(self, x: Tensor) -> Tensor:
        """(n or n·W, K, 1, D) → (n, K, W, D); a single row fills all slots."""
        x = x.unflatten(0, (-1, self.ancestry.width))[:, :, :, 0].transpose(1, 2)
        return x.expand(-1, -1, self.beams, -1)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """`append` for a position that is by sentence already: (n, K, W, D)."""
        self._check(self.length + 1)
        start, end = self.length * self.beams, (self.length + 1) * self.beams
        if self._k is None or self._v is None:
            room = (*k.shape[:2], self.capacity * self.beams)
            self._k, self._v = k.new_empty(*room, k.shape[3]), v.new_empty(*room, v.shape[3])
        self._k[:, :, start:end] = k
        self._v[:, :, start:end] = v
        self.length += 1
        return self.read()


class BeamDecoderCache(DecoderCache):
    """A decoder's cache in which `beams` rows a sentence share one history."""

    def __init__(
        self, n_layers: int, capacity: int, *, beams: int, memory_mask: Tensor | None = None
    ) -> None:
        super().__init__(0, capacity, memory_mask=memory_mask)
        self.ancestry = Ancestry(beams)
        self.self_attn = [BeamCache(capacity, self.ancestry) for _ in range(n_layers)]
        self.cross_attn = [
            KeyValueCache(0, fixed=True, key_mask=memory_mask) for _ in range(n_layers)
        ]

    def note_bias(self, bias: Tensor | None) -> None:
        """As `DecoderCache.note_bias`: each slot of a position takes that position's bias."""
        wide = None if bias is None else bias.repeat_interleave(self.ancestry.beams, -1)
        self.ancestry.step_bias = wide

    def reorder(self, index: Tensor) -> None:
        """Choose target rows anew: W a sentence, each from rows of that one sentence."""
        move = Move.of(self.ancestry.choose(index))
        for cache in self.self_attn:
            cache.move(move)

    def crop(self, n: int) -> None:
        super().crop(n)
        self.ancestry.crop(n)
