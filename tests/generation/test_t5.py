"""T5's greedy and beam search find transformers' tokens."""

from typing import Any

import pytest
import torch
from torch import Tensor

from everyhead.generation.search import search
from everyhead.models.prepare import prepare
from everyhead.models.t5 import T5
from tests.laws.families import padded
from tests.models.test_t5 import SMALL, V11, pair

VOCAB, LONGEST = 80, 20


def lively(kind: str, seed: int) -> tuple[T5, Any]:
    """Random weights whose answers differ, and end at different lengths."""
    # As many layers a half: their cache is made for as many as the encoder has.
    values = SMALL | {"num_decoder_layers": 2} | (V11 if kind == "v1.1" else {})
    ours, theirs = pair(values, seed)
    with torch.no_grad():
        for table in (ours.output_head.weight, theirs.lm_head.weight):
            # A tied table says again what it read, unless the stream is more than its rows.
            table.mul_(0.03 if ours.config.tie_output else 1.0)
            table[1].mul_(3.0 if ours.config.tie_output else 1.6)  # the end
    return ours, theirs


def sources(seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    rows = [torch.randint(2, VOCAB, (1, n), generator=rng) for n in (9, 3, 6, 1, 12, 5)]
    return padded(rows, 0)


@pytest.mark.parametrize(("beam", "length_penalty"), [(1, 1.0), (4, 0.0), (4, 1.0)])
@pytest.mark.parametrize(("kind", "seed"), [("v1.0", 2), ("v1.1", 1)])
def test_the_tokens_are_the_same(kind: str, seed: int, beam: int, length_penalty: float) -> None:
    ours, theirs = lively(kind, seed)
    source, real = sources(seed)
    asked: dict[str, Any] = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    if beam > 1:
        asked |= {"length_penalty": length_penalty, "early_stopping": "never"}
    wanted = theirs.generate(
        source, attention_mask=real.long(), num_beams=beam, max_new_tokens=LONGEST, **asked
    )
    for model in (ours, prepare(ours)):
        found = search(
            model, source, real, beam=beam, length_penalty=length_penalty, max_len=LONGEST
        )
        for (best,), row in zip(found, wanted.tolist(), strict=True):
            pieces = [*best.ids, 1] if best.ended else best.ids
            assert row[1 : len(pieces) + 1] == pieces
            # Theirs fills up with the end, since padding's id of 0 is false to it.
            assert best.ended or len(row) == LONGEST + 1
            assert set(row[len(pieces) + 1 :]) <= {0, 1}
    assert len({tuple(best.ids) for (best,) in found}) >= 4
    assert len({len(best.ids) for (best,) in found}) > 1
