"""Beams of a decoder: tokens equal to Hugging Face's, and beam 1 is greedy."""

import pytest

from everyhead.generation.prompted_beam import prompted_beam
from tests.generation.decoders import END, PAIRS, gpt2, plain_greedy, prompts, sequences

LENGTHS = [5, 9, 1, 3, 17]
LIMIT = 16


@pytest.mark.slow
@pytest.mark.parametrize("family", PAIRS)
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -1.0])
def test_tokens_are_hugging_face_s(family: str, length_penalty: float) -> None:
    make, twin = PAIRS[family]
    ours, ids = make(), prompts(LENGTHS)
    wanted = sequences(
        twin(ours),
        ids,
        num_beams=4,
        early_stopping="never",
        length_penalty=length_penalty,
        max_new_tokens=LIMIT,
    )
    found = prompted_beam(
        ours, ids, beam=4, limit=LIMIT, ends=frozenset({END}), length_penalty=length_penalty
    )
    for (best,), row in zip(found, wanted, strict=True):
        tokens = [*best.ids, END] if best.ended else best.ids
        assert row == tokens + [END] * (len(row) - len(tokens))


def test_hugging_face_s_default_guess_is_eager() -> None:
    make, twin = PAIRS["gpt2"]
    ours, ids = make(1), prompts(LENGTHS, seed=1)
    wanted = sequences(twin(ours), ids, num_beams=3, max_new_tokens=LIMIT)
    found = prompted_beam(ours, ids, beam=3, limit=LIMIT, ends=frozenset({END}), eager=True)
    for (best,), row in zip(found, wanted, strict=True):
        tokens = [*best.ids, END] if best.ended else best.ids
        assert row == tokens + [END] * (len(row) - len(tokens))


def test_one_beam_is_greedy_and_a_batch_is_its_rows_alone() -> None:
    model, ids = gpt2(2), prompts([4, 1, 8], seed=2)
    found = prompted_beam(model, ids, beam=1, limit=9, ends=frozenset({END}), length_penalty=0)
    assert [best.ids for (best,) in found] == [plain_greedy(model, row, 9) for row in ids]
    several = prompted_beam(model, ids, beam=3, limit=9, ends=frozenset({END}), n_best=3)
    for row, best in zip(ids, several, strict=True):
        (alone,) = prompted_beam(model, [row], beam=3, limit=9, ends=frozenset({END}), n_best=3)
        assert [each.ids for each in alone] == [each.ids for each in best]
        assert [each.score for each in best] == sorted((x.score for x in best), reverse=True)
