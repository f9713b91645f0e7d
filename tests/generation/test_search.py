"""What holds of every search: batches, empty rows, limits, state, and what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor

from everyhead.errors import UserError
from everyhead.generation import tasks, translate
from everyhead.generation.hypotheses import EMPTY
from everyhead.generation.search import search
from tests.generation.models import Script, lively, log_probs, sources

BEAMS = [1, 3]
LENGTHS = [6, 2, 9, 4]


def ids_of(model: torch.nn.Module, source: Tensor, real: Tensor, **asked: object) -> list[object]:
    return [[h.ids for h in best] for best in search(model, source, real, **asked)]


@pytest.mark.parametrize("beam", BEAMS)
def test_a_batch_finds_what_its_sentences_find_alone(beam: int) -> None:
    """So translations are not mixed across sentences, and batch mates do not matter."""
    model = lively(13, 1)
    source, real = sources(LENGTHS, 13)
    alone = [
        ids_of(model, source[i : i + 1, real[i]], real[i : i + 1, real[i]], beam=beam)
        for i in range(4)
    ]
    assert ids_of(model, source, real, beam=beam) == [best for (best,) in alone]
    assert len({str(best) for best in alone}) == 4


@pytest.mark.parametrize("asked", [{"beam": 1}, {"beam": 3}, {"beam": 3, "eager": True}])
def test_a_batch_that_shrinks_in_steps_finds_the_same(asked: dict[str, Any]) -> None:
    """Finished sentences wait in a large batch until enough of them can leave it."""
    model = lively(23, 1)
    source, real = sources([2 + i % 7 for i in range(24)], 23)
    alone = [
        ids_of(model, source[i : i + 1, real[i]], real[i : i + 1, real[i]], **asked)
        for i in range(24)
    ]
    assert ids_of(model, source, real, **asked) == [best for (best,) in alone]
    assert len({len(best[0]) for (best,) in alone}) > 4


@pytest.mark.parametrize("beam", BEAMS)
def test_padding_on_either_side_changes_nothing(beam: int) -> None:
    model = lively(13, 2)
    source, real = sources(LENGTHS, 13)
    wanted = ids_of(model, source, real, beam=beam)
    flipped = torch.full_like(source, 12)
    for i, n in enumerate(LENGTHS):
        flipped[i, -n:] = source[i, :n]
    assert ids_of(model, flipped, real.flip(1), beam=beam) == wanted
    assert ids_of(model, source.masked_fill(~real, 5), real, beam=beam) == wanted


@pytest.mark.parametrize("beam", BEAMS)
def test_an_empty_sentence_stays_empty_and_disturbs_nobody(beam: int) -> None:
    model = lively(13, 1)
    source, real = sources([6, 0, 4, 0], 13)
    found = search(model, source, real, beam=beam)
    assert found[1] == found[3] == [EMPTY]
    others = torch.tensor([0, 2])
    assert [found[0], found[2]] == search(model, source[others], real[others], beam=beam)
    assert search(model, source[1:2], real[1:2], beam=beam) == [[EMPTY]]


@pytest.mark.parametrize("beam", BEAMS)
def test_a_second_call_finds_the_same(beam: int) -> None:
    model = lively(13, 3)
    first, others = sources(LENGTHS, 13), sources([3, 8], 13, 5)
    wanted = search(model, *first, beam=beam)
    search(model, *others, beam=beam)
    assert search(model, *first, beam=beam) == wanted


@pytest.mark.parametrize("beam", BEAMS)
def test_log_probabilities_are_those_of_teacher_forcing(beam: int) -> None:
    model = lively(13, 1)
    source, real = sources(LENGTHS, 13)
    for i, best in enumerate(search(model, source, real, beam=beam, n_best=beam)):
        answers = [[*h.ids, 0] if h.ended else h.ids for h in best]
        expected = log_probs(model, source[i, real[i]], answers)
        found = torch.tensor([h.log_prob for h in best])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("beam", BEAMS)
def test_lengths_end_at_the_sentence_s_own_limit(beam: int) -> None:
    endless = Script(5, lambda prefix: [0.0, 0.4, 0.3, 0.3, 0.0])
    source, real = sources([2, 9, 30], 5)
    found = search(endless, source, real, beam=beam)
    assert [len(best[0].ids) for best in found] == [20, 34, 50]  # 50: the model's own
    assert not any(best[0].ended for best in found)
    assert {len(best[0].ids) for best in search(endless, source, real, beam=beam, max_len=3)} == {3}


@pytest.mark.parametrize("beam", BEAMS)
def test_a_model_that_ends_at_once_gives_an_empty_sentence(beam: int) -> None:
    ((best,),) = search(Script(3, lambda prefix: [1.0, 0.0, 0.0]), torch.tensor([[1]]), beam=beam)
    assert best == EMPTY


@pytest.mark.parametrize("beam", [2, 8])
def test_fewer_answers_than_beams_are_all_there_is(beam: int) -> None:
    certain = Script(4, lambda prefix: [0.0, 1.0, 0.0, 0.0] if len(prefix) < 2 else [1.0, 0, 0, 0])
    (found,) = search(certain, torch.tensor([[1]]), beam=beam, n_best=beam)
    assert [h.ids for h in found] == [[1, 1]]


def test_a_model_in_training_goes_on_training_as_it_was() -> None:
    model = lively(13, 1, dropout=0.5).train()
    model.encoder.eval()
    source, real = sources(LENGTHS, 13)
    wanted = search(model, source, real)
    assert search(model, source, real) == wanted  # no dropout
    assert model.training and model.decoder.training and not model.encoder.training
    model(source, source, real, real)[real].logsumexp(-1).sum().backward()


@pytest.mark.parametrize("beam", BEAMS)
def test_a_model_whose_numbers_are_none_is_refused(beam: int) -> None:
    with pytest.raises(ValueError, match="not finite numbers"):
        search(Script(4, lambda prefix: [float("nan")] * 4), torch.tensor([[1]]), beam=beam)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"beam": 0}, "at least 1 beam"),
        ({"beam": 1001}, "beam is 1001; a search keeps at most 1000 beams"),
        ({"beam": 100_000, "n_best": 100_000}, "at most 1000 beams"),
        ({"beam": 2, "n_best": 3}, "ask for 1 to 2"),
        ({"n_best": 0}, "ask for 1 to 1"),
        ({"max_len": 0}, "room for at least 1 token"),
        ({"length_penalty": float("nan")}, "finite number"),
        ({"length_penalty": 1000.0}, "length_penalty is 1000.0; give a finite number from -10 to"),
        ({"length_penalty": -200.0, "beam": 3}, "length_penalty is -200.0"),
    ],
)
def test_options_that_make_no_sense_are_refused(asked: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        search(lively(13), *sources([2], 13), **asked)


@pytest.mark.parametrize("beam", BEAMS)
def test_a_max_len_beyond_all_measure_is_the_model_s_own(beam: int) -> None:
    endless = Script(5, lambda prefix: [0.0, 0.4, 0.3, 0.3, 0.0])
    found = search(endless, *sources([2], 5), beam=beam, max_len=10**30)
    assert len(found[0][0].ids) == 50


@pytest.mark.parametrize("beam", BEAMS)
@pytest.mark.parametrize("penalty", [-10.0, 10.0])
def test_the_greatest_length_penalties_find_a_sentence(beam: int, penalty: float) -> None:
    found = search(lively(13, 1), *sources(LENGTHS, 13), beam=beam, length_penalty=penalty)
    assert [len(best) for best in found] == [1] * len(LENGTHS)


def test_a_thousand_beams_are_searched_and_more_are_refused_wherever_one_asks() -> None:
    found = search(lively(13), *sources([2], 13), beam=1000, n_best=2, max_len=4)
    assert len(found[0]) == 2
    for options in (translate.Options(beam=1001), tasks.Options(beam=1001)):
        with pytest.raises(UserError, match="at most 1000 beams"):
            options.check()
