"""Search against looking at everything, and against the search as one writes it down first."""

import pytest
import torch

from everyhead.generation.hypotheses import Hypothesis
from everyhead.generation.search import search
from tests.generation.models import all_log_probs, lively, plain_beam, plain_greedy, sources

LONGEST = 4
PENALTIES = [-1.0, 0.0, 0.6, 1.0, 2.0]


def pieces_of(hypothesis: Hypothesis) -> list[int]:
    return [*hypothesis.ids, 0] if hypothesis.ended else hypothesis.ids


def exhaustive(seed: int, i: int, length_penalty: float) -> list[tuple[float, list[int]]]:
    answers, sums = all_log_probs(seed, i, LONGEST)
    scored = [
        (s / len(a) ** length_penalty, a) for a, s in zip(answers, sums.tolist(), strict=True)
    ]
    return sorted(scored, key=lambda pair: -pair[0])


@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_that_is_wide_enough_finds_the_best_of_all(seed: int, length_penalty: float) -> None:
    """A vocabulary of four: `</s>`, two words and `<pad>`."""
    source, real = sources([3, 5, 1], 4, seed)
    asked = {"beam": 2**LONGEST, "n_best": 5, "max_len": LONGEST}
    found = search(lively(4, seed), source, real, length_penalty=length_penalty, **asked)
    for i, best in enumerate(found):
        truth = exhaustive(seed, i, length_penalty)[:5]
        assert [pieces_of(h) for h in best] == [pieces for _, pieces in truth]
        expected = torch.tensor([score for score, _ in truth])
        torch.testing.assert_close(torch.tensor([h.score for h in best]), expected)


@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_more_beams_than_answers_find_each_answer_once_and_no_padding(
    length_penalty: float,
) -> None:
    source, real = sources([3, 5, 1], 4, 1)
    asked = {"beam": 40, "n_best": 40, "max_len": LONGEST}
    found = search(lively(4, 1), source, real, length_penalty=length_penalty, **asked)
    for i, best in enumerate(found):
        assert len(best) == 31
        assert sorted(map(pieces_of, best)) == sorted(a for _, a in exhaustive(1, i, 1.0))


@pytest.mark.parametrize("seed", range(3))
def test_greedy_search_is_the_best_next_piece_each_time(seed: int) -> None:
    model = lively(11, seed)
    source, real = sources([7, 2, 4], 11, seed)
    for i, (best,) in enumerate(search(model, source, real)):
        own = source[i, real[i]]
        assert pieces_of(best) == plain_greedy(model, own, 2 * len(own) + 16)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("beam", [2, 3])
def test_beams_reordered_and_stopped_find_what_the_plain_search_finds(
    beam: int, length_penalty: float
) -> None:
    model = lively(9, beam)
    source, real = sources([5, 2], 9, beam)
    asked = {"beam": beam, "length_penalty": length_penalty}
    found = search(model, source, real, max_len=8, n_best=2, **asked)
    for i, best in enumerate(found):
        truth = plain_beam(model, source[i, real[i]], 8, **asked)[:2]
        assert [pieces_of(h) for h in best] == [pieces for _, pieces in truth]
