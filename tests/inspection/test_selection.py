"""Heads and rows that are asked for, against the same cut of the whole matrix."""

import numpy as np
import pytest
import torch

from everyhead.inspection import selection
from everyhead.inspection.changes import HeadOff, Replaced, TokenHidden
from everyhead.inspection.trace import record
from tests.inspection.foreign import inputs, make
from tests.laws.families import batch, build

NEAR = {"rtol": 0, "atol": 1e-5}
MODELS = ["llama", "t5", "gpt2", "ours"]


def seen(name: str):
    """A recorded place of 4 heads; T5's has a bias, ours is a module's own matrix."""
    if name == "ours":
        model = build("transformer-post")
        with torch.no_grad(), record(model) as trace:
            model(*batch(model))
        return trace, trace["decoder.1.self_attn"]
    model = make(name)
    with torch.no_grad(), record(model) as trace:
        model(**inputs(name))
    return trace, trace["encoder.1.self_attn" if name == "t5" else "decoder.1.self_attn"]


@pytest.mark.parametrize("name", MODELS)
def test_one_number_is_a_list_of_one_and_a_list_is_what_a_slice_is(name: str):
    place = seen(name)[1]
    whole, out = place.weights(), place.output()
    b, h, t, s = place.shape
    assert h == 4 and t >= 4
    torch.testing.assert_close(place.weights(rows=2), whole[:, :, 2:3], **NEAR)
    torch.testing.assert_close(place.weights(heads=3), whole[:, 3:], **NEAR)
    one = place.weights(heads=1, rows=0)
    assert one.shape == (b, 1, 1, s)
    torch.testing.assert_close(one, whole[:, 1:2, :1], **NEAR)
    for rows in ([3, 1], (3, 1), torch.tensor([3, 1]), torch.arange(t) % 2 == 1):
        numbers = [i for i in range(t) if i % 2] if len(rows) == t else [3, 1]
        torch.testing.assert_close(place.weights(rows=rows), whole[:, :, numbers], **NEAR)
        torch.testing.assert_close(place.output(rows=rows), out[:, :, numbers], **NEAR)
    torch.testing.assert_close(place.weights(heads=-1, rows=[-1]), whole[:, -1:, -1:], **NEAR)
    torch.testing.assert_close(place.output(rows=2), out[:, :, 2:3], **NEAR)
    assert place.weights(heads=[], rows=slice(1, 3)).shape == (b, 0, 2, s)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_out_of_range_is_named(name: str):
    place = seen(name)[1]
    t = place.shape[2]
    for heads in (9, [0, 9], torch.tensor(9)):
        with pytest.raises(ValueError, match=rf"no 9 among the 4 heads of {place.name}"):
            place.weights(heads=heads)
    with pytest.raises(ValueError, match=r"no -5 among the 4 heads"):
        place.weights(heads=[-5])
    for ask in (place.weights, place.output):
        with pytest.raises(ValueError, match=rf"no {t} among the {t} rows of {place.name}"):
            ask(rows=[t])
    with pytest.raises(ValueError, match=rf"one yes or no for each of the {t} rows"):
        place.weights(rows=torch.tensor([True]))
    with pytest.raises(ValueError, match="give whole numbers"):
        place.weights(heads=1.5)


def test_the_logit_lens_takes_one_row_too():
    trace = seen("llama")[0]
    whole = trace.logits("decoder.0")
    torch.testing.assert_close(trace.logits("decoder.0", rows=2), whole[:, 2:3], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="no 9 among the 9 rows of decoder"):
        trace.logits("decoder.0", rows=[9])


@torch.no_grad()
def test_one_number_is_a_list_of_one_in_a_change_too():
    model, given = make("llama"), inputs("llama")
    output = torch.ones(1, 1, 1, 8)
    for one, many in (
        (HeadOff("decoder.0.self_attn", 3), HeadOff("decoder.0.self_attn", [3])),
        (TokenHidden("decoder.0.self_attn", 0), TokenHidden("decoder.0.self_attn", [0])),
        (
            Replaced("decoder.0.self_attn", output, heads=2, rows=1),
            Replaced("decoder.0.self_attn", output, heads=[2], rows=[1]),
        ),
    ):
        found = []
        for change in (one, many):
            with record(model, [change]):
                found.append(model(**given).logits)
        assert torch.equal(*found)
        assert not torch.equal(found[0], model(**given).logits)


def test_numbers_below_0_are_refused_before_anything_runs():
    place, output = "decoder.0.self_attn", torch.ones(1, 1, 1, 8)
    for make_change, words in (
        (lambda: HeadOff(place, [-1]), rf"no -1 among the heads of {place}"),
        (lambda: TokenHidden(None, [0, -1]), r"no -1 among the keys of any place"),
        (lambda: TokenHidden(place, -2), rf"no -2 among the keys of {place}"),
        (lambda: Replaced(place, output, rows=[-1]), rf"no -1 among the rows of {place}"),
        (lambda: Replaced(place, output, heads=[-3]), r"no -3 among the heads"),
        (lambda: Replaced(place, output[0]), r"must be \(batch, heads, rows, width\)"),
    ):
        with pytest.raises(ValueError, match=words):
            make_change()


@pytest.mark.parametrize("name", ["llama", "t5", "gpt2"])
@torch.no_grad()
def test_positions_that_no_call_reached_are_an_error_when_the_block_ends(name: str):
    model, given = make(name), inputs(name)
    place = "decoder.0.self_attn"
    n = 9 if name != "t5" else given["decoder_input_ids"].shape[1]
    output = torch.ones(1, 4, 1, 8)
    for change, words in (
        (TokenHidden(place, [0, n]), rf"key {n} of {place} was to be hidden .* longest .* {n};"),
        (Replaced(place, output, rows=[n]), rf"row {n} of {place} was to be replaced"),
        (TokenHidden(None, [99]), r"key 99 of any place"),
    ):
        with pytest.raises(LookupError, match=words), record(model, [change]) as trace:
            model(**given)
        assert trace[place].shape[2] == n, "what was recorded is still there"
    with record(model, [TokenHidden(place, [n - 1]), Replaced(place, output, rows=[n - 1])]):
        model(**given)
    if name == "t5":  # positions that one half has are enough for a change of every place
        with record(model, [TokenHidden(None, [8])]):
            model(**given)


@torch.no_grad()
def test_a_position_that_is_only_written_counts_and_an_error_of_the_users_own_goes_before():
    model, given = make("gpt2"), inputs("gpt2")
    with record(model, [TokenHidden("decoder.0.self_attn", [12])]):
        model.generate(**given, max_new_tokens=5, do_sample=False)
    sentence = r"key 14 .* and was never reached: the longest call there had 13"
    with pytest.raises(LookupError, match=sentence):  # noqa: SIM117
        with record(model, [TokenHidden("decoder.0.self_attn", [14])]):
            model.generate(**given, max_new_tokens=5, do_sample=False)
    with pytest.raises(KeyError, match="mine"), record(model, [TokenHidden(None, [99])]):
        raise KeyError("mine")


@torch.no_grad()
def test_a_replacement_of_another_batch_or_width_is_named():
    model, given = make("llama"), inputs("llama")
    place = "decoder.0.self_attn"
    with record(model) as trace:
        model(**given)
    out = trace[place].output()
    for wrong, got in ((out[[0, 1, 0]], r"\(3, 4, 9, 8\)"), (out[..., :1], r"\(2, 4, 9, 1\)")):
        words = (
            rf"at {place} must be \(batch, 4 heads, 9 rows, width 8\) of batch 1 or 2; got {got}"
        )
        with pytest.raises(ValueError, match=words), record(model, [Replaced(place, wrong)]):
            model(**given)
    with record(model, [Replaced(place, out[:1])]) as changed:  # one for every row of the batch
        model(**given)
    assert changed[place].shape == (*out.shape[:3], 9)


def test_yes_or_no_for_each_head_is_a_mask_however_it_is_written():
    found = selection.heads_of([True, False, True], 3, "a")
    assert found == selection.heads_of(torch.tensor([True, False, True]), 3, "a") == [0, 2]
    assert selection.heads_of(np.array([False, True, False]), 3, "a") == [1]
    assert selection.rows_of(np.array([False, True]), 2, "a").tolist() == [1]
    with pytest.raises(ValueError, match="one yes or no for each of the 3 heads of a; got 2"):
        selection.heads_of([True, False], 3, "a")
    for wrong in ([1.5], ["0"], [True, 1], 2.0):
        with pytest.raises(ValueError, match=r"whole numbers|yes or no"):
            selection.heads_of(wrong, 3, "a")
    with pytest.raises(ValueError, match="yes or no"):
        HeadOff("decoder.0.self_attn", [True, False])
