"""When a beam search may stop, and that stopping never changes what it finds."""

import math

import pytest
import torch

from everyhead.generation.beam import Stop
from everyhead.generation.search import search
from tests.generation.models import Script, lively, sources

PENALTIES = [-1.0, 0.0, 0.6, 1.0, 2.0]
ONE = torch.tensor([[5, 0]])


def never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stop, "hopeless", lambda *_: torch.zeros((), dtype=torch.bool))


@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_the_search_stops_only_when_no_open_beam_can_win(
    length_penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, beam in enumerate([2, 3, 5, 2, 3]):
        model = lively(9, seed)
        source, real = sources([6, 2, 4], 9, seed)
        asked = {"beam": beam, "n_best": 2, "length_penalty": length_penalty, "max_len": 10}
        sooner = search(model, source, real, **asked)
        with monkeypatch.context() as patched:
            never(patched)
            later = search(model, source, real, **asked)
        assert [[h.ids for h in best] for best in sooner] == [
            [h.ids for h in best] for best in later
        ]


def a_late_winner(prefix: tuple[int, ...]) -> list[float]:
    """`</s>` at once has p = 0.4; the word 1 five times and `</s>` 0.3 · 1 · … = 0.3."""
    if not prefix:
        return [0.4, 0.3, 0.2, 0.1, 0.0]
    if set(prefix) == {1}:
        return [0.0, 1.0, 0.0, 0.0, 0.0] if len(prefix) < 5 else [1.0, 0.0, 0.0, 0.0, 0.0]
    return [0.1, 0.3, 0.3, 0.3, 0.0]


def test_the_search_goes_on_although_the_best_candidate_ended() -> None:
    """Length penalty above 0: −0.92 / 1 loses against −1.2 / 6, which is still open."""
    ((best,),) = search(Script(5, a_late_winner), ONE, beam=2, length_penalty=1.0)
    assert best.ids == [1, 1, 1, 1, 1]
    assert best.score == pytest.approx(math.log(0.3) / 6)


def test_short_answers_are_preferred_only_without_a_length_penalty() -> None:
    ((best,),) = search(Script(5, a_late_winner), ONE, beam=2, length_penalty=0.0)
    assert best.ids == [] and best.score == pytest.approx(math.log(0.4))


def test_a_negative_length_penalty_leaves_room_for_an_end_at_the_next_step() -> None:
    """−1.2 · 1 loses against −0.51 · 2, which is one step away."""

    def rows(prefix: tuple[int, ...]) -> list[float]:
        return [1.0, 0.0, 0.0, 0.0, 0.0] if prefix else [0.3, 0.6, 0.1, 0.0, 0.0]

    ((best,),) = search(Script(5, rows), ONE, beam=2, length_penalty=-1.0)
    assert best.ids == [1] and best.score == pytest.approx(2 * math.log(0.6))


def a_long_shot(prefix: tuple[int, ...]) -> list[float]:
    """Two short answers soon; the word 1 ten times has p = 0.05 and the best mean."""
    if not prefix:
        return [0.45, 0.05, 0.5, 0.0, 0.0]
    if set(prefix) == {1}:
        return [0.0, 1.0, 0.0, 0.0, 0.0] if len(prefix) < 10 else [1.0, 0.0, 0.0, 0.0, 0.0]
    return [0.9, 0.04, 0.03, 0.03, 0.0]


def test_eager_stops_where_the_open_beams_are_behind_now() -> None:
    asked = {"beam": 2, "length_penalty": 1.0}
    ((best,),) = search(Script(5, a_long_shot), ONE, **asked)
    assert best.ids == [1] * 10
    ((best,),) = search(Script(5, a_long_shot), ONE, eager=True, **asked)
    assert best.ids == [2]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_scores_are_normalised_by_the_generated_length_whatever_the_source(
    length_penalty: float,
) -> None:
    model = lively(9, 2)
    source, real = sources([2, 30], 9)
    for best in search(model, source, real, beam=3, length_penalty=length_penalty, max_len=9):
        length = len(best[0].ids) + best[0].ended
        assert best[0].score == pytest.approx(best[0].log_prob / length**length_penalty)


def test_a_higher_length_penalty_never_makes_the_best_of_all_shorter() -> None:
    source, real = sources([3, 5, 2], 4)
    model = lively(4, 5)
    lengths = [
        [len(best[0].ids) for best in search(model, source, real, beam=16, max_len=4, **alpha)]
        for alpha in ({"length_penalty": p} for p in PENALTIES)
    ]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]


def test_a_search_that_is_decided_ends_before_the_limit() -> None:
    steps: list[int] = []

    def rows(prefix: tuple[int, ...]) -> list[float]:
        steps.append(len(prefix))
        return [0.8, 0.1, 0.05, 0.05, 0.0]

    search(Script(5, rows), ONE, beam=2, length_penalty=0.0, max_len=40)
    assert max(steps) < 3


@pytest.mark.parametrize("n_best", [1, 2, 3])
def test_n_best_shows_more_of_the_same_list(n_best: int) -> None:
    model = lively(9, 4)
    source, real = sources([6, 2, 4], 9)
    whole = search(model, source, real, beam=4, n_best=4)
    part = search(model, source, real, beam=4, n_best=n_best)
    assert [[h.ids for h in best] for best in part] == [
        [h.ids for h in best[:n_best]] for best in whole
    ]
