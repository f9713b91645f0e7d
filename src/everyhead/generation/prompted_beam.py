"""Beam search of a decoder without memory: the prompt takes the place of the source.

The search itself is beam.py's. The adapter gives it the verbs it knows: "encoding" keeps the
prompts, the cache is filled with them but for their last ids, and decoding begins with those. A
score counts the generated tokens alone.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from everyhead.generation.beam import Stop, beam_search
from everyhead.generation.decoder import Decoder, checked, device_of, left_padded, read
from everyhead.generation.hypotheses import Hypothesis
from everyhead.generation.search import inference
from everyhead.layers.blocks import Memory
from everyhead.layers.cache import TextCache

# No token: an id that is never chosen.
NONE = -1


class Numbers(NamedTuple):
    """What the search reads of a config."""

    pad_id: int
    eos_id: int
    more_eos_ids: tuple[int, ...]
    max_len: int


class Beams:
    """A decoder's cache as the search moves it; there is no memory to keep."""

    key_mask = None

    def __init__(self, inner: TextCache) -> None:
        self.inner = inner

    def reorder(self, index: Tensor) -> None:
        self.inner.reorder(index)

    def keep(self, sentences: Tensor) -> None:
        pass


class Prompted:
    """A decoder with prompts as the encoder-decoder that the search expects."""

    def __init__(
        self,
        model: Decoder,
        prompts: Sequence[Sequence[int]],
        *,
        limit: int,
        ends: frozenset[int],
        vocab_size: int | None = None,
    ) -> None:
        self.model, self.prompts, self.vocab_size = model, prompts, vocab_size
        first, *more = sorted(ends) or [NONE]
        self.config = Numbers(0, first, tuple(more), limit)
        self.training = False
        self._last: Tensor | None = None  # ids that the first step begins with

    def modules(self) -> Iterator[nn.Module]:
        return self.model.modules()

    def train(self, mode: bool = True) -> object:
        return self.model.train(mode)

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Memory:
        return Memory(source)

    def cache(self, memory: Memory, max_len: int, *, beams: int = 1) -> Beams:
        longest = max(map(len, self.prompts))
        device = device_of(self.model)
        cache = self.model.cache(longest + max_len, rows=len(self.prompts), device=device)
        self._last = torch.tensor([[row[-1]] for row in self.prompts], device=device)
        beginnings = [row[:-1] for row in self.prompts]
        if any(beginnings):
            read(self.model, beginnings, cache)
        return Beams(cache)

    def decode(self, target: Tensor, memory: Memory, *, cache: Beams) -> Tensor:
        if self._last is not None:
            target, self._last = self._last, None
        return self.model.hidden(target, cache=cache.inner)

    def head(self, hidden: Tensor) -> Tensor:
        return checked(self.model.head(hidden)[..., : self.vocab_size])


def prompted_beam(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    beam: int,
    limit: int,
    ends: frozenset[int] = frozenset(),
    length_penalty: float = 1.0,
    n_best: int = 1,
    eager: bool = False,
    vocab_size: int | None = None,
) -> list[list[Hypothesis]]:
    """The n best texts of at most `limit` new tokens after each prompt, best first.

    Equal to Hugging Face's beams with `early_stopping="never"`; `eager` is their default guess
    (beam.py). A hypothesis has the generated ids without what ended them.
    """
    adapter: Any = Prompted(model, prompts, limit=limit, ends=ends, vocab_size=vocab_size)
    ids, real = left_padded(prompts, device_of(model))
    stop = Stop(n_best, length_penalty, eager)
    with inference(model):
        return beam_search(adapter, ids, real, beam=beam, stop=stop, max_len=limit)
