"""What a search finds: generated ids and how good they are.

    log_prob = Σ log p(yₜ | y₁ … yₜ₋₁, source)            over the generated tokens, `</s>` included
    score    = log_prob / lengthᵅ                         length: the number of terms of that sum

α is the length penalty: 0 compares plain probabilities, which favours short answers, 1 compares the
mean of a token. Wu et al. 2016 (1609.08144) section 7 divide by another power; this form is the one
in common use.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from everyhead.layers import masks
from everyhead.layers.blocks import Memory
from everyhead.layers.cache import DecoderCache


class Hypothesis(NamedTuple):
    """Ids without `</s>`; `ended` is False where the length limit cut the sentence off."""

    ids: list[int]
    log_prob: float
    score: float
    ended: bool


EMPTY = Hypothesis([], 0.0, 0.0, True)


class Numbers(Protocol):
    """What a search reads of a model's config."""

    @property
    def pad_id(self) -> int: ...
    @property
    def eos_id(self) -> int: ...
    @property
    def max_len(self) -> int: ...


class EncoderDecoder(Protocol):
    """The verbs that a search uses: any model that has them can be searched."""

    training: bool

    @property
    def config(self) -> Numbers: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def train(self, mode: bool = True) -> object: ...
    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Memory: ...
    def decode(
        self, target: Tensor, memory: Memory, *, cache: DecoderCache | None = None
    ) -> Tensor: ...
    def head(self, hidden: Tensor) -> Tensor: ...
    def cache(self, memory: Memory, max_len: int, *, beams: int = 1) -> DecoderCache: ...


def score_of(log_prob: float, length: int, length_penalty: float) -> float:
    """log_prob / lengthᵅ."""
    return log_prob / length**length_penalty


def length_limits(real: Tensor, max_len: int | None, model_max_len: int) -> Tensor:
    """The most tokens, `</s>` included, that each sentence may become: int64 (B,).

    real: bool (B, S). Without max_len 2 S + 16: of the sentence itself, not of its batch.
    """
    if max_len is None:
        return (2 * real.sum(1) + 16).clamp_max(model_max_len)
    return torch.full_like(real.sum(1), min(max_len, model_max_len))


def kept(memory: Memory, cache: DecoderCache, sentences: Tensor) -> Memory:
    """The memory and its cache of these sentences alone."""
    cache.keep(sentences)
    if cache.key_mask is None:
        return memory
    return memory._replace(mask=masks.keys(cache.key_mask, zeroed=True))
