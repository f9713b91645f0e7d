"""The door to greedy and beam search: checks what is asked for, and sees to the model's state.

One beam is greedy search: the only beam ends where its best next token is `</s>`. More than 1,000
are refused: so many are the most that Koehn and Knowles tried (2017, arXiv:1706.03872), whose best
were 4 to about 30, and every beam needs a cache and a row of logits of its own.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from everyhead.errors import UserError
from everyhead.generation.beam import Stop, beam_search
from everyhead.generation.greedy import greedy
from everyhead.generation.hypotheses import EMPTY, EncoderDecoder, Hypothesis

MOST_BEAMS = 1000
MOST_PENALTY = 10  # of either sign: beyond it a power of a length is no finite number


class Trainable(Protocol):
    """What has a mode for training and parts that have one."""

    training: bool

    def modules(self) -> Iterator[nn.Module]: ...
    def train(self, mode: bool = True) -> object: ...


def search(
    model: EncoderDecoder,
    source: Tensor,
    source_mask: Tensor | None = None,
    *,
    beam: int = 1,
    length_penalty: float = 1.0,
    n_best: int = 1,
    max_len: int | None = None,
    eager: bool = False,
) -> list[list[Hypothesis]]:
    """The n best target sentences for each source sentence, best first.

    source: int64 (B, S), each ending in `</s>`; source_mask: bool (B, S), True = token. A row
    without a token gives an empty hypothesis. max_len counts target tokens, `</s>` included; by
    default it is twice the source's and 16 more. `eager` stops by a rule of thumb (beam.py).

    Raises:
        UserError: beam, n_best, max_len or length_penalty make no sense together.
        ValueError: the model's probabilities are no numbers.
    """
    check_options(beam=beam, length_penalty=length_penalty, n_best=n_best, max_len=max_len)
    real = torch.ones_like(source, dtype=torch.bool) if source_mask is None else source_mask
    rows = real.any(1).nonzero()[:, 0]
    found = [[EMPTY] for _ in range(source.shape[0])]
    if rows.numel() == 0:
        return found
    if rows.numel() < source.shape[0]:
        source, real = source.index_select(0, rows), real.index_select(0, rows)
    with inference(model):
        if beam == 1:
            best = greedy(model, source, real, length_penalty=length_penalty, max_len=max_len)
            several = [[hypothesis] for hypothesis in best]
        else:
            stop = Stop(n_best, length_penalty, eager)
            several = beam_search(model, source, real, beam=beam, stop=stop, max_len=max_len)
    for i, hypotheses in zip(rows.tolist(), several, strict=True):
        found[i] = _checked(hypotheses)
    return found


def check_options(
    *, beam: int, length_penalty: float, n_best: int, max_len: int | None = None
) -> None:
    """Raises UserError as `search` does."""
    if beam < 1:
        raise UserError(f"beam is {beam}; a search needs at least 1 beam.")
    if beam > MOST_BEAMS:
        raise UserError(
            f"beam is {beam}; a search keeps at most {MOST_BEAMS} beams, since each needs memory "
            "of its own and texts get worse, not better, long before that. Ask for 4 to 10."
        )
    if not 1 <= n_best <= beam:
        raise UserError(
            f"n_best is {n_best} and beam is {beam}: ask for 1 to {beam} translations of a "
            "sentence, or for a wider beam."
        )
    if max_len is not None and max_len < 1:
        raise UserError(f"max_len is {max_len}; a translation needs room for at least 1 token.")
    if not abs(length_penalty) <= MOST_PENALTY:
        raise UserError(
            f"length_penalty is {length_penalty}; give a finite number from -{MOST_PENALTY} "
            f"to {MOST_PENALTY}, such as 1."
        )


@contextmanager
def inference(model: Trainable) -> Iterator[None]:
    """Without gradients and dropout; afterwards each part of a model in training trains on."""
    modes = [(part, part.training) for part in model.modules()] if model.training else []
    if modes:
        model.train(False)
    try:
        with torch.inference_mode():
            yield
    finally:
        for part, training in modes:
            part.training = training


def _checked(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    if not hypotheses or not all(math.isfinite(h.log_prob) for h in hypotheses):
        raise ValueError(
            "the model's probabilities are not finite numbers, so nothing can be chosen by them: "
            "its weights are broken, or its training diverged"
        )
    return hypotheses
