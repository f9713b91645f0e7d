"""Greedy search: yₜ = argmax p(· | y₁ … yₜ₋₁, source), until `</s>` or the length limit.

All sentences of a batch go one step at a time; whoever has finished leaves the batch.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from everyhead.generation.hypotheses import (
    EncoderDecoder,
    Hypothesis,
    kept,
    length_limits,
    score_of,
)


class Rows(NamedTuple):
    """The sentences that are still open, one row each."""

    sentence: Tensor  # (n,) place in the batch
    limit: Tensor  # (n,) most tokens
    log_prob: Tensor  # (n,)
    tokens: Tensor  # (n, L)

    def select(self, index: Tensor) -> "Rows":
        return Rows(*(x.index_select(0, index) for x in self))


def greedy(
    model: EncoderDecoder,
    source: Tensor,
    real: Tensor,
    *,
    length_penalty: float = 1.0,
    max_len: int | None = None,
) -> list[Hypothesis]:
    """source int64 (B, S), real bool (B, S) with a token in every row → B hypotheses."""
    config = model.config
    limit = length_limits(real, max_len, config.max_len)
    longest = int(limit.max())
    memory = model.encode(source, None if bool(real.all()) else real)
    cache = model.cache(memory, longest)
    found: dict[int, Hypothesis] = {}
    last = source.new_full((source.shape[0],), config.pad_id)  # decoding starts from padding
    rows = Rows(
        torch.arange(source.shape[0], device=source.device),
        limit,
        torch.zeros(source.shape[0], device=source.device),
        source.new_full((source.shape[0], longest), config.pad_id),
    )
    for step in range(1, longest + 1):
        hidden = model.decode(last[:, None], memory, cache=cache)  # (n, 1, C)
        log_probs = model.head(hidden[:, -1]).float().log_softmax(-1)  # (n, V)
        best, last = log_probs.max(-1)
        rows.log_prob.add_(best)
        rows.tokens[:, step - 1] = last
        ended = last == config.eos_id
        done = ended | (rows.limit <= step)
        if not bool(done.any()):
            continue
        _collect(found, rows, done, ended, step, length_penalty)
        if bool(done.all()):
            break
        stay = (~done).nonzero()[:, 0]
        rows, last = rows.select(stay), last.index_select(0, stay)
        cache.reorder(stay)
        memory = kept(memory, cache, stay)
    return [found[i] for i in range(source.shape[0])]


def _collect(
    found: dict[int, Hypothesis],
    rows: Rows,
    done: Tensor,
    ended: Tensor,
    step: int,
    length_penalty: float,
) -> None:
    """Write down the rows that are done."""
    finished, ends = rows.select(done.nonzero()[:, 0]), ended[done].tolist()
    for i, log_prob, ids, end in zip(
        finished.sentence.tolist(),
        finished.log_prob.tolist(),
        finished.tokens[:, :step].tolist(),
        ends,
        strict=True,
    ):
        score = score_of(log_prob, step, length_penalty)
        found[i] = Hypothesis(ids[:-1] if end else ids, log_prob, score, end)
