"""Pairs of stretches of text with gaps, for learning to fill them and to tell neighbours.

    [CLS] A [SEP] B [SEP]      B follows A in its document, or is from another one: half and half
    [CLS] A [SEP]              one stretch as long as a row, where only gaps are learnt (1907.11692)

Of the pieces that are no specials 15 % are chosen; of these 80 % become [MASK], 10 % another piece,
10 % stay. Devlin et al. 2019 (1810.04805) sections 3.1 and A.1, A.2. Pairs follow from the seed;
the gaps from (seed, epoch, row), so each epoch has others (as in 1907.11692), where the paper's
code repeats ten drawn in advance. Another piece is never a special.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from everyhead.data.batching import pad_rows
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError

SHARE, MASKED, OTHER = 0.15, 0.8, 0.9  # chosen; of these the bounds of what they become
SENTENCE = re.compile(r"(?<=[.!?;:。！？；])[\"'”’)\]]*\s+|(?<=[。！？；])")
LONG = 200  # characters; a shorter line is a sentence as it stands


class GapBatch(NamedTuple):
    """B pairs of at most T ids.

    ids int64 (B, T) with gaps, mask bool (B, T) True = token, segments int64 (B, T); places bool
    (B, T) of the chosen pieces and labels int64 (N,) what they were; strangers int64 (B,): 1 where
    the second text does not follow the first. n_target counts tokens.
    """

    ids: Tensor
    mask: Tensor
    segments: Tensor
    places: Tensor
    labels: Tensor
    strangers: Tensor
    n_target: int

    def to(self, device: torch.device | str) -> Self:
        moved = {k: x.to(device) for k, x in self._asdict().items() if isinstance(x, Tensor)}
        return type(self)(**(self._asdict() | moved))


class Pair(NamedTuple):
    """Two stretches, or one where the second is empty."""

    first: list[int]
    second: list[int]
    stranger: bool


def sentences_of(text: str) -> list[str]:
    """Lines; long ones are cut where a sentence ends."""
    found: list[str] = []
    for line in text.split("\n"):
        found += SENTENCE.split(line) if len(line) > LONG else [line]
    return [each.strip() for each in found if each and each.strip()]


def pairs_of(documents: Sequence[list[list[int]]], length: int, seed: int) -> list[Pair]:
    """Pairs of `length` ids together, from documents of sentences of ids.

    Raises:
        UserError: there are no two documents, so no stranger can be drawn.
    """
    documents = [document for document in documents if document]
    if len(documents) < 2:
        raise UserError(
            "Telling whether one text follows another needs two documents or more: give more "
            "files, or a smaller data.block_bytes."
        )
    rng = np.random.default_rng([seed, 2])
    pairs: list[Pair] = []
    for number, document in enumerate(documents):
        start = 0
        while start < len(document):
            end = _reach(document, start, length)
            middle = start + 1 + int(rng.integers(max(end - start - 1, 1)))
            first = _joined(document[start:middle])
            stranger = end - start == 1 or rng.random() < 0.5
            if stranger:  # what follows is left for the next pair
                second = _drawn(documents, number, max(length - len(first), 1), rng)
                end = middle
            else:
                second = _joined(document[middle:end])
            pairs.append(Pair(*_shortened(first, second, length, rng), stranger))
            start = end
    return pairs


def stretches_of(documents: Sequence[list[list[int]]], length: int) -> list[Pair]:
    """Each document cut into stretches of `length` ids, the last as long as it is."""
    wholes = [_joined(document) for document in documents]
    return [
        Pair(whole[start : start + length], [], stranger=False)
        for whole in wholes
        for start in range(0, len(whole), length)
    ]


def _reach(document: list[list[int]], start: int, length: int) -> int:
    """The end of the stretch of whole sentences from `start` that fills `length` ids."""
    total, end = 0, start
    while end < len(document) and total < length:
        total += len(document[end])
        end += 1
    return end


def _joined(sentences: Sequence[list[int]]) -> list[int]:
    return [i for sentence in sentences for i in sentence]


def _drawn(
    documents: Sequence[list[list[int]]], but: int, length: int, rng: np.random.Generator
) -> list[int]:
    """A stretch of another document."""
    other = int(rng.integers(len(documents) - 1))
    document = documents[other + (other >= but)]
    start = int(rng.integers(len(document)))
    return _joined(document[start : _reach(document, start, length)])


def _shortened(
    first: list[int], second: list[int], length: int, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Together at most `length`: ids go from the longer, at either end alike often."""
    if len(first) + len(second) <= length:
        return first, second
    half = length // 2
    n = max(min(len(first), length - half), length - len(second))
    kept = []
    for side, size in ((first, n), (second, min(len(second), length - n))):
        begin = int(rng.binomial(len(side) - size, 0.5))
        kept.append(side[begin : begin + size])
    return kept[0], kept[1]


class GapRows:
    """The pairs of documents, or their stretches, and the batches of an epoch."""

    def __init__(
        self,
        texts: Sequence[str],
        tokenizer: TextTokenizer,
        *,
        length: int,
        seed: int,
        in_pairs: bool = True,
    ) -> None:
        self.tokenizer, self.seed = tokenizer, seed
        self.cls, self.sep, self.gap = _needed(tokenizer)
        documents = [
            [ids for ids in tokenizer.encode_batch(sentences_of(text), special=False) if ids]
            for text in texts
        ]
        if in_pairs:
            self.pairs = pairs_of(documents, length - 3, seed)
        else:
            self.pairs = stretches_of(documents, length - 2)
        special = tokenizer.special_ids
        self.others = np.array([i for i in range(tokenizer.vocab_size) if i not in special])
        self.special = np.isin(np.arange(tokenizer.vocab_size), list(special))

    @property
    def lengths(self) -> list[int]:
        return [len(self.segments_of(pair)) for pair in self.pairs]

    def segments_of(self, pair: Pair) -> list[int]:
        """0 for the ids of the first stretch, 1 for those of the second."""
        return [0] * (len(pair.first) + 2) + [1] * (len(pair.second) + bool(pair.second))

    def with_gaps(self, row: int, epoch: int) -> tuple[list[int], list[int], list[bool]]:
        """Ids as they are and with gaps, and which places were chosen."""
        pair = self.pairs[row]
        second = [*pair.second, self.sep] if pair.second else []
        ids = [self.cls, *pair.first, self.sep, *second]
        rng = np.random.default_rng([self.seed, epoch, row])
        may = np.flatnonzero(~self.special[ids])
        n = min(max(1, int(SHARE * len(may) + rng.random())), len(may))  # 15 % on average
        chosen = rng.choice(may, n, replace=False)
        draw, other = rng.random(n), rng.choice(self.others, n)
        gaps = np.array(ids)
        became = np.where(draw < MASKED, self.gap, np.where(draw < OTHER, other, gaps[chosen]))
        gaps[chosen] = became
        places = np.zeros(len(ids), dtype=bool)
        places[chosen] = True
        return ids, gaps.tolist(), places.tolist()

    def batch(self, rows: Sequence[int], epoch: int) -> GapBatch:
        made = [self.with_gaps(row, epoch) for row in rows]
        pad = self.tokenizer.pad_id or 0
        ids, mask = pad_rows([gaps for _, gaps, _ in made], pad)
        original, _ = pad_rows([whole for whole, _, _ in made], pad)
        places = pad_rows([[int(p) for p in chosen] for _, _, chosen in made], 0)[0].bool()
        pairs = [self.pairs[row] for row in rows]
        segments, _ = pad_rows([self.segments_of(pair) for pair in pairs], 0)
        strangers = torch.tensor([int(pair.stranger) for pair in pairs])
        return GapBatch(ids, mask, segments, places, original[places], strangers, int(mask.sum()))

    @property
    def content(self) -> list[bytes]:
        """All that the batches are made of, for a fingerprint."""
        return [np.array([*p.first, -1, *p.second], dtype=np.int64).tobytes() for p in self.pairs]


def _needed(tokenizer: TextTokenizer) -> tuple[int, int, int]:
    ids = tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
    if None in ids:
        raise UserError(
            "Filling gaps needs a tokenizer with [CLS], [SEP] and [MASK]: set "
            'tokenizer.kind="wordpiece".'
        )
    return ids  # type: ignore[return-value]
