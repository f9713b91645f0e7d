"""Beam search: at each step the K most probable beginnings of a translation go on.

    candidates   log p(y₁ … yₜ) of every beginning and every next token; the best 2 K in order
    finished     those among the best K that end in `</s>`, or that reach the length limit
    open         the best K of the others: each of the K may end, so 2 K candidates are enough
    score        log p / lengthᵅ of finished ones (hypotheses.py)

A sentence is done when no open beam can win any more. Log-probabilities only fall, so the best that
an open beam with sum s < 0 after t tokens can still become is

    s / Lᵅ   for α > 0 (it ends at the limit L for nothing)      s / (t + 1)ᵅ   for α ≤ 0 (at once)

and with n hypotheses wanted it must beat the n-th best finished one. So what is asked for changes
how long the search lasts, never what it finds: the best of n = 4 is the only one of n = 1.
`eager` stops sooner, at s / tᵅ: the usual guess that a mean which is worse now stays worse.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from everyhead.generation.hypotheses import (
    EncoderDecoder,
    Hypothesis,
    kept,
    length_limits,
    score_of,
)
from everyhead.layers.cache import DecoderCache

NEVER = float("-inf")


class Open(NamedTuple):
    """The open beams of the n sentences that go on, best first."""

    sentence: Tensor  # (n,) place in the batch
    limit: Tensor  # (n,) most tokens
    sums: Tensor  # (n, K) log-probabilities; −∞: no such beam
    tokens: Tensor  # (n, K, L)

    def select(self, index: Tensor) -> "Open":
        return Open(*(x.index_select(0, index) for x in self))


class Candidates(NamedTuple):
    """Continuations of each sentence's beams, best first, (n, k) each."""

    sums: Tensor
    parent: Tensor  # the beam that is continued
    token: Tensor

    def gather(self, rank: Tensor) -> "Candidates":
        return Candidates(*(x.gather(1, rank) for x in self))


class Stop(NamedTuple):
    """When a sentence is done."""

    n_best: int = 1
    length_penalty: float = 1.0
    eager: bool = False

    def bar(self, pool: list[Hypothesis]) -> float:
        """The score that an open beam must beat."""
        return pool[self.n_best - 1].score if len(pool) >= self.n_best else NEVER

    def hopeless(self, open_: Open, pools: list[list[Hypothesis]], step: int) -> Tensor:
        """(n,) no open beam can enter the n best."""
        if self.eager:
            length = torch.full_like(open_.limit, step)
        elif self.length_penalty > 0:
            length = open_.limit
        else:
            length = torch.full_like(open_.limit, step + 1)
        bars = [self.bar(pools[i]) for i in open_.sentence.tolist()]
        best = open_.sums[:, 0] / length.float() ** self.length_penalty
        return ~(best > best.new_tensor(bars))


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
    pools: list[list[Hypothesis]] = [[] for _ in range(source.shape[0])]
    open_, last = _start(source, limit, longest, model.config.pad_id)
    for step in range(1, longest + 1):
        hidden = model.decode(last.view(-1, 1), memory, cache=cache)  # (n·w, 1, C)
        log_probs = model.head(hidden[:, -1]).float().log_softmax(-1)  # (n·w, V)
        best = candidates(log_probs, open_.sums, 2 * beam)
        ends = best.token == model.config.eos_id
        _finish(pools, open_, best, ends, beam=beam, step=step, stop=stop)
        chosen = going_on(best, ends, beam)
        rows = chosen.parent + _first_rows(open_.sums)  # (n, K) what the cache calls them
        n_rows, open_, last = open_.sums.numel(), _extended(open_, chosen, step), chosen.token
        done = (open_.limit <= step) | stop.hopeless(open_, pools, step)
        if bool(done.all()):
            break
        if bool(done.any()):
            stay = (~done).nonzero()[:, 0]
            open_, rows, last = open_.select(stay), rows[stay], last[stay]
            memory = kept(memory, cache, stay)
        _reorder(cache, rows.flatten(), n_rows)
    return [pool[: stop.n_best] for pool in pools]


def candidates(log_probs: Tensor, sums: Tensor, k: int) -> Candidates:
    """The best k continuations; log_probs (n·w, V) and sums (n, w) → (n, k) each.

    Where fewer than k exist the rest has the sum −∞.
    """
    n, width = sums.shape
    totals = (log_probs.view(n, width, -1) + sums[:, :, None]).flatten(1)  # (n, w·V)
    best, index = totals.topk(min(k, totals.shape[1]))
    missing = (0, k - best.shape[1])
    best, index = F.pad(best, missing, value=NEVER), F.pad(index, missing)
    n_tokens = log_probs.shape[1]
    return Candidates(best, index // n_tokens, index % n_tokens)


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


def _extended(open_: Open, chosen: Candidates, step: int) -> Open:
    """The open beams one token longer."""
    n, longest = chosen.token.shape[0], open_.tokens.shape[-1]
    parents = (chosen.parent + _first_rows(open_.sums)).flatten()
    tokens = open_.tokens.view(-1, longest).index_select(0, parents).view(n, -1, longest)
    tokens[:, :, step - 1] = chosen.token
    return open_._replace(sums=chosen.sums, tokens=tokens)


def _finish(
    pools: list[list[Hypothesis]],
    open_: Open,
    best: Candidates,
    ends: Tensor,
    *,
    beam: int,
    step: int,
    stop: Stop,
) -> None:
    """Put what ends among the best K into the pools of the n best, earlier ones first in a tie."""
    finished = (ends | (open_.limit <= step)[:, None]) & best.sums.isfinite()
    places = finished[:, :beam].nonzero()
    if places.shape[0] == 0:
        return
    row, rank = places.unbind(1)
    sums, parent, token = (x[row, rank].tolist() for x in best)
    prefixes = open_.tokens[row, parent, : step - 1].tolist()
    for i, log_prob, ids, last, end in zip(
        open_.sentence[row].tolist(), sums, prefixes, token, ends[row, rank].tolist(), strict=True
    ):
        score = score_of(log_prob, step, stop.length_penalty)
        pools[i].append(Hypothesis(ids if end else [*ids, last], log_prob, score, end))
        pools[i].sort(key=lambda hypothesis: -hypothesis.score)
        del pools[i][stop.n_best :]


def _reorder(cache: DecoderCache, rows: Tensor, n_rows: int) -> None:
    """Let the cache's rows be the chosen beams; mostly they are already."""
    if rows.numel() != n_rows or not torch.equal(rows, torch.arange(n_rows, device=rows.device)):
        cache.reorder(rows)
