"""The decoding loop against Hugging Face's, and against the whole text each time."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from everyhead.errors import UserError
from everyhead.generation.decoder import left_padded, read, room, writes
from everyhead.generation.decoding import Row, write
from everyhead.generation.sampling import Sampler, Sampling
from tests.generation.decoders import (
    END,
    LONGEST,
    PAIRS,
    VOCAB,
    gpt2,
    llama,
    next_logits,
    plain_greedy,
    prompts,
    sequences,
    without_end,
)
from tests.generation.models import lively

LENGTHS = [5, 9, 1, 3, 17, 2]
families = pytest.mark.parametrize("family", PAIRS)
GREEDY = Sampling(temperature=0)


def loop(
    model: torch.nn.Module,
    ids: Sequence[Sequence[int]],
    rows: list[Row],
    how: Sampling = GREEDY,
    seeds: Sequence[tuple[int, int]] = (),
) -> list[list[str]]:
    """Write the rows to their ends; what each step showed."""
    per = len(rows) // len(ids)
    sampler = Sampler(
        how,
        [row for row in ids for _ in range(per)],
        seeds=seeds or [(0, i) for i in range(len(rows))],
        n_steps=max(row.limit for row in rows),
        vocab_size=VOCAB,
        device=torch.device("cpu"),
    )
    return list(write(model, ids, rows, sampler=sampler))


def greedy(
    model: torch.nn.Module, ids: Sequence[Sequence[int]], limit: int = 24
) -> list[list[int]]:
    rows = [Row(limit, frozenset([END])) for _ in ids]
    loop(model, ids, rows)
    return [row.ids for row in rows]


@families
@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_tokens_are_hugging_face_s(family: str, seed: int) -> None:
    make, twin = PAIRS[family]
    ours, ids = make(seed), prompts(LENGTHS, seed=seed)
    theirs = sequences(twin(ours), ids, max_new_tokens=24)
    assert greedy(ours, ids) == [without_end(row) for row in theirs]


@families
def test_greedy_tokens_are_those_of_the_whole_text_each_time(family: str) -> None:
    model, ids = PAIRS[family][0](2), prompts(LENGTHS, seed=2)
    assert greedy(model, ids) == [plain_greedy(model, row, 24) for row in ids]


@families
def test_a_batch_is_its_rows_alone(family: str) -> None:
    model, ids = PAIRS[family][0](3), prompts([7, 1, 12], seed=3)
    assert greedy(model, ids) == [greedy(model, [row])[0] for row in ids]
    assert greedy(model, ids) == greedy(model, ids[::-1])[::-1]


@families
@pytest.mark.parametrize("at_once", [1, 2, 3, 7, 21, 1000])
def test_a_prompt_read_in_pieces_is_read_at_once(family: str, at_once: int) -> None:
    model, ids = PAIRS[family][0](), prompts([5, 11, 1], seed=4)
    with torch.no_grad():
        hidden = read(model, ids, model.cache(11), at_once)
        found = model.head(hidden)
    wanted = torch.stack([next_logits(model, row) for row in ids])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_padding_is_on_the_left() -> None:
    ids, real = left_padded([[7, 8], [9]], torch.device("cpu"))
    assert ids.tolist() == [[7, 8], [0, 9]]
    assert real.tolist() == [[True, True], [False, True]]


def test_only_the_last_row_of_a_prompt_goes_through_the_head(monkeypatch) -> None:
    model, shapes = gpt2(), []
    head = model.head

    def seen(hidden: Tensor) -> Tensor:
        shapes.append(tuple(hidden.shape))
        return head(hidden)

    monkeypatch.setattr(model, "head", seen)
    rows = [Row(3) for _ in range(2)]
    loop(model, prompts([9, 4]), rows)
    assert shapes == [(2, 32)] * 3


@pytest.mark.parametrize("limit", [1, 2, 13])
def test_there_are_exactly_as_many_new_tokens_as_asked_for(limit: int) -> None:
    rows = [Row(limit), Row(limit + 1), Row(limit)]
    steps = loop(llama(), prompts([3, 5, 1]), rows)
    assert [len(row.ids) for row in rows] == [limit, limit + 1, limit]
    assert [row.reason for row in rows] == ["length"] * 3
    assert len(steps) == limit + 1


def test_a_row_ends_at_any_of_the_ends_and_does_not_keep_it() -> None:
    (ids,) = greedy(gpt2(), prompts([5]), limit=9)
    third = ids[2]
    row = Row(9, frozenset([END, third]))
    loop(gpt2(), prompts([5]), [row])
    assert (row.ids, row.reason) == (ids[: ids.index(third)], "end")
    assert row.take(5) == "" and row.ids == ids[: ids.index(third)]


def test_several_texts_of_a_prompt_read_it_once(monkeypatch) -> None:
    model, seen = llama(1), []
    hidden = model.hidden

    def counted(ids: Tensor, mask: Tensor | None = None, **more: object) -> Tensor:
        seen.append(tuple(ids.shape))
        return hidden(ids, mask, **more)

    ids = prompts([6, 4], seed=6)
    seeds = [(5, 0), (5, 1), (5, 2)] * 2
    alone = [Row(7) for _ in range(6)]
    for row, prompt, seed in zip(alone, [p for p in ids for _ in range(3)], seeds, strict=True):
        loop(model, [prompt], [row], Sampling(), [seed])
    monkeypatch.setattr(model, "hidden", counted)
    together = [Row(7) for _ in range(6)]
    loop(model, ids, together, Sampling(), seeds)
    assert seen[0] == (2, 6) and set(seen[1:]) == {(6, 1)}
    assert [row.ids for row in together] == [row.ids for row in alone]
    assert len({tuple(row.ids) for row in together[:3]}) == 3


def test_many_rows_leave_the_batch_one_after_another() -> None:
    ids = prompts([1 + i % 7 for i in range(20)], seed=7)
    rows = [Row(1 + i * 7 % 11, frozenset([END])) for i in range(20)]
    loop(gpt2(4), ids, rows)
    wanted = [plain_greedy(gpt2(4), row, 11) for row in ids]
    assert [row.ids for row in rows] == [
        row[: each.limit] for row, each in zip(wanted, rows, strict=True)
    ]


def test_the_model_s_longest_length_can_be_reached_and_not_passed() -> None:
    (prompt,) = prompts([LONGEST - 5])
    assert room(gpt2(), prompt) == 5
    row = Row(5)
    loop(gpt2(), [prompt], [row])
    assert len(row.ids) == 5
    with pytest.raises(UserError, match=f"{LONGEST} tokens and the model reads at most {LONGEST}"):
        room(gpt2(), prompts([LONGEST])[0])


def test_a_model_in_training_writes_as_in_inference_and_trains_on() -> None:
    model = gpt2(5)
    wanted = greedy(model, prompts([4]))
    model.train()
    try:
        assert greedy(model, prompts([4])) == wanted
        assert model.training
    finally:
        model.eval()


def test_logits_that_are_no_numbers_are_an_error() -> None:
    model = type(gpt2())(gpt2().config)
    with torch.no_grad():
        model.token_embed.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        loop(model.eval(), prompts([3]), [Row(2)])


def test_what_writes_is_a_decoder() -> None:
    assert writes(gpt2()) and writes(llama())
    assert not writes(lively(9)) and not writes(torch.nn.Linear(2, 2))
