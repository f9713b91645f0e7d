"""Greedy search: yₜ = argmax p(· | y₁ … yₜ₋₁, source), until `</s>` or the length limit.

All sentences of a batch go one step at a time; whoever has finished leaves the batch.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from everyhead.generation.choosing import candidates
from everyhead.generation.hypotheses import (
    EncoderDecoder,
    Hypothesis,
    kept,
    length_limits,
    score_of,
)
from everyhead.generation.open_rows import smaller


class Rows(NamedTuple):
    """The sentences that are still in the batch, one row each."""

    sentence: Tensor  # (n,) place in the input
    limit: Tensor  # (n,) most tokens
    done: Tensor  # (n,) finished, but not gone yet
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
    limit = length_limits(real, max_len, model.config.max_len)
    longest = int(limit.max())
    memory = model.encode(source, None if bool(real.all()) else real)
    cache = model.cache(memory, longest)
    found: dict[int, Hypothesis] = {}
    rows = _start(source, limit, longest, model.config.pad_id)
    last = source.new_full((source.shape[0],), model.config.pad_id)  # decoding starts from padding
    for step in range(1, longest + 1):
        hidden = model.decode(last[:, None], memory, cache=cache)  # (n, 1, C)
        best = candidates(model.head(hidden[:, -1]), rows.log_prob[:, None], 1)
        rows.log_prob.copy_(best.sums[:, 0])
        last = best.token[:, 0]
        rows.tokens[:, step - 1] = last
        ended = last == model.config.eos_id
        new = (ended | (rows.limit <= step)) & ~rows.done
        if not bool(new.any()):
            continue
        _collect(found, rows, new, ended, step, length_penalty)
        if bool(rows.done.logical_or_(new).all()):
            break
        stay = smaller(rows.done)
        if stay is not None:
            rows, last = rows.select(stay), last.index_select(0, stay)
            cache.reorder(stay)
            memory = kept(memory, cache, stay)
    return [found[i] for i in range(source.shape[0])]


def _start(source: Tensor, limit: Tensor, longest: int, pad_id: int) -> Rows:
    n, device = source.shape[0], source.device
    return Rows(
        sentence=torch.arange(n, device=device),
        limit=limit,
        done=torch.zeros(n, dtype=torch.bool, device=device),
        log_prob=torch.zeros(n, device=device),
        tokens=source.new_full((n, longest), pad_id),
    )


def _collect(
    found: dict[int, Hypothesis],
    rows: Rows,
    new: Tensor,
    ended: Tensor,
    step: int,
    length_penalty: float,
) -> None:
    """Write down the rows that are done now."""
    finished = rows.select(new.nonzero()[:, 0])
    for i, log_prob, ids, end in zip(
        finished.sentence.tolist(),
        finished.log_prob.tolist(),
        finished.tokens[:, :step].tolist(),
        ended[new].tolist(),
        strict=True,
    ):
        score = score_of(log_prob, step, length_penalty)
        found[i] = Hypothesis(ids[:-1] if end else ids, log_prob, score, end)
