"""Beam search against looking at everything, on a vocabulary of `</s>`, two words and `<pad>`."""

import pytest
import torch
from tests.generation.models import exhaustive, lively, sources

from everyhead.generation.beam import Stop
from everyhead.generation.hypotheses import Hypothesis
from everyhead.generation.search import search

LONGEST = 4
PENALTIES = [-1.0, 0.0, 0.6, 1.0, 2.0]


def pieces_of(hypothesis: Hypothesis) -> list[int]:
    return [*hypothesis.ids, 0] if hypothesis.ended else hypothesis.ids


@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_that_is_wide_enough_finds_the_best_of_all(seed: int, length_penalty: float) -> None:
    model = lively(4, seed)
    source, real = sources([3, 5, 1], 4, seed)
    found = search(
        model,
        source,
        real,
        beam=2**LONGEST,
        length_penalty=length_penalty,
        n_best=5,
        max_len=LONGEST,
    )
    for i, best in enumerate(found):
        truth = exhaustive(model, source[i, real[i]], LONGEST, length_penalty)[:5]
        assert [pieces_of(h) for h in best] == [pieces for _, pieces in truth]
        scores = torch.tensor([score for score, _ in truth])
        torch.testing.assert_close(torch.tensor([h.score for h in best]), scores)


@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_more_beams_than_answers_find_every_answer_once_and_no_padding(
    length_penalty: float,
) -> None:
    model = lively(4, 5)
    source, real = sources([4], 4)
    (found,) = search(
        model, source, real, beam=40, n_best=40, length_penalty=length_penalty, max_len=LONGEST
    )
    truth = exhaustive(model, source[0], LONGEST, length_penalty)
    assert len(found) == len(truth) == 31
    assert sorted(map(pieces_of, found)) == sorted(pieces for _, pieces in truth)


@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize("beam", [2, 3, 5])
def test_the_search_stops_only_when_no_open_beam_can_win(
    beam: int, length_penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sooner, later = [], []
    for seed in range(12):
        model = lively(9, seed)
        source, real = sources([6, 2, 4], 9, seed)
        asked = {"beam": beam, "length_penalty": length_penalty, "max_len": 12}
        sooner += search(model, source, real, **asked)
        with monkeypatch.context() as patched:
            patched.setattr(
                Stop, "hopeless", lambda *_: torch.zeros((), dtype=torch.bool)
            )
            later += search(model, source, real, **asked)
    assert [h[0].ids for h in sooner] == [h[0].ids for h in later]


def test_the_search_does_stop_before_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lively(9, 1)
    source, real = sources([6, 2, 4], 9)
    steps = []
    plain = model.decode
    monkeypatch.setattr(model, "decode", lambda *a, **k: steps.append(1) or plain(*a, **k))
    search(model, source, real, beam=2, length_penalty=0.0, max_len=60)
    assert len(steps) < 60
