"""Beam search: at each step the K most probable beginnings of a translation go on.

    candidates   log p(y₁ … yₜ) of every beginning and every next token; the best 2 K in order
                 (with e tokens that end a text, the best (1 + e) K)
    finished     those among the best K that end in `</s>`, or that reach the length limit
    open         the best K of the others: each of the K may end, so 2 K candidates are enough
    score        log p / lengthᵅ of finished ones (hypotheses.py)

A sentence is done when no open beam can win any more. Log-probabilities only fall, so the best that
an open beam with sum s < 0 after t tokens can still become is

    s / Lᵅ   for α > 0 (it ends at the limit L for nothing)      s / (t + 1)ᵅ   for α ≤ 0 (at once)

and with n hypotheses wanted it must beat the n-th best finished one. So what is asked for changes
how long the search lasts, never what it finds: the best of n = 4 is the only one of n = 1.

`eager` is the rule of thumb that Hugging Face's `early_stopping=False` names: K hypotheses are
finished, and the best open beam, were it to end where it is (s / tᵅ), would not be among them. For
α > 0 that is a guess; it saves the steps in which a bad beginning might still become long.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from everyhead.generation.choosing import NEVER, Candidates, candidates
from everyhead.generation.hypotheses import (
    EncoderDecoder,
    Hypothesis,
    kept,
    length_limits,
    score_of,
)
from everyhead.generation.open_rows import smaller


class Open(NamedTuple):
    """The open beams of the n sentences that go on, best first."""

    sentence: Tensor  # (n,) place in the batch
    limit: Tensor  # (n,) most tokens
    sums: Tensor  # (n, K) log-probabilities; −∞: no such beam
    tokens: Tensor  # (n, K, L)

    def select(self, index: Tensor) -> "Open":
        return Open(*(x.index_select(0, index) for x in self))


class Stop(NamedTuple):
    """When a sentence is done."""

    n_best: int = 1
    length_penalty: float = 1.0
    eager: bool = False

    def wanted(self, beam: int) -> int:
        """Finished hypotheses that are kept."""
        return beam if self.eager else self.n_best

    def reach(self, limit: Tensor, step: int) -> Tensor:
        """(n,) the length at which an open beam would score best."""
        if self.eager:
            return torch.full_like(limit, step)
        return limit if self.length_penalty > 0 else torch.full_like(limit, step + 1)

    def hopeless(self, open_: Open, bars: list[float], step: int) -> Tensor:
        """(n,) no open beam can beat the bar, the score of the last finished one that counts."""
        length = self.reach(open_.limit, step).float()
        best = open_.sums[:, 0] / length**self.length_penalty
        return ~(best > best.new_tensor(bars))


class Pools:
    """The best finished hypotheses of each sentence, best first, earlier ones first in a tie."""

    def __init__(self, n: int, size: int, *, length_penalty: float) -> None:
        self.best: list[list[Hypothesis]] = [[] for _ in range(n)]
        self.size, self.length_penalty = size, length_penalty

    def add(self, i: int, ids: list[int], log_prob: float, ended: bool) -> None:
        """ids with `</s>` if it has ended."""
        score = score_of(log_prob, len(ids), self.length_penalty)
        pool = self.best[i]
        pool.append(Hypothesis(ids[:-1] if ended else ids, log_prob, score, ended))
        pool.sort(key=lambda hypothesis: -hypothesis.score)
        del pool[self.size :]

    def bars(self, sentences: list[int]) -> list[float]:
        """What a new hypothesis must beat: the last of a full pool."""
        pools = [self.best[i] for i in sentences]
        return [pool[-1].score if len(pool) == self.size else NEVER for pool in pools]


def beam_search(
    model: EncoderDecoder,
    source: Tensor,
    real: Tensor,
    *,
    beam: int,
    stop: Stop,
    max_len: int | None = None,
) -> list[list[Hypothesis]]:
    """source int64 (B, S), real bool (B, S) with a token in every row → n best of each, best first.

    There are fewer where fewer exist.
    """
    limit = length_limits(real, max_len, model.config.max_len)
    longest = int(limit.max())
    memory = model.encode(source, None if bool(real.all()) else real)
    cache = model.cache(memory, longest, beams=beam)
    pools = Pools(source.shape[0], stop.wanted(beam), length_penalty=stop.length_penalty)
    open_, last = _start(source, limit, longest, model.config.pad_id)
    further: tuple[int, ...] = getattr(model.config, "more_eos_ids", ())
    for step in range(1, longest + 1):
        hidden = model.decode(last.view(-1, 1), memory, cache=cache)  # (n·w, 1, C)
        logits = model.head(hidden[:, -1])  # (n·w, V)
        best = candidates(logits, open_.sums, (2 + len(further)) * beam)
        ends = best.token == model.config.eos_id
        for other in further:
            ends |= best.token == other
        _finish(pools, open_, best, ends, beam, step)
        chosen = going_on(best, ends, beam)
        rows = chosen.parent + _first_rows(open_.sums)  # (n, K) what the cache calls them
        open_, last = _extended(open_, chosen, rows, step), chosen.token
        bars = pools.bars(open_.sentence.tolist())
        done = (open_.limit <= step) | stop.hopeless(open_, bars, step)
        if bool(done.all()):
            break
        if bool(done.any()):
            open_.sums.masked_fill_(done[:, None], NEVER)  # until it leaves the batch
            stay = smaller(done)
            if stay is not None:
                open_, rows, last = open_.select(stay), rows[stay], last[stay]
                memory = kept(memory, cache, stay)
        cache.reorder(rows.flatten())
    return [pool[: stop.n_best] for pool in pools.best]


def going_on(best: Candidates, ends: Tensor, beam: int) -> Candidates:
    """The best K of those that do not end; what ends must not go on for want of others."""
    alive = best._replace(sums=best.sums.masked_fill(ends, NEVER))
    return alive.gather(ends.to(torch.uint8).sort(stable=True).indices[:, :beam])


def _start(source: Tensor, limit: Tensor, longest: int, pad_id: int) -> tuple[Open, Tensor]:
    """One beginning a sentence, from which all its beams come: padding."""
    n = source.shape[0]
    sentence = torch.arange(n, device=source.device)
    sums = torch.zeros(n, 1, device=source.device)
    tokens = source.new_full((n, 1, longest), pad_id)
    return Open(sentence, limit, sums, tokens), source.new_full((n, 1), pad_id)


def _first_rows(sums: Tensor) -> Tensor:
    """(n, 1) the row of each sentence's first beam."""
    n, width = sums.shape
    return torch.arange(0, n * width, width, device=sums.device)[:, None]


def _extended(open_: Open, chosen: Candidates, rows: Tensor, step: int) -> Open:
    """The open beams one token longer; rows (n, K): which row each comes from."""
    longest = open_.tokens.shape[-1]
    tokens = open_.tokens.view(-1, longest).index_select(0, rows.flatten())
    tokens = tokens.view(*rows.shape, longest)
    tokens[:, :, step - 1] = chosen.token
    return open_._replace(sums=chosen.sums, tokens=tokens)


def _finish(
    pools: Pools, open_: Open, best: Candidates, ends: Tensor, beam: int, step: int
) -> None:
    """Put what ends among the best K into the pools."""
    finished = (ends | (open_.limit <= step)[:, None]) & (best.sums > NEVER)
    places = finished[:, :beam].nonzero()
    if places.shape[0] == 0:
        return
    row, rank = places.unbind(1)
    sums, parent, token = (x[row, rank] for x in best)
    prefixes = open_.tokens[row, parent, : step - 1].tolist()
    ended = ends[row, rank].tolist()
    for i, log_prob, prefix, last, end in zip(
        open_.sentence[row].tolist(), sums.tolist(), prefixes, token.tolist(), ended, strict=True
    ):
        pools.add(i, [*prefix, last], log_prob, end)
