"""Law 5: cached = uncached in any chunks; beams reordered; finished sentences dropped."""

import pytest
import torch
from torch import Tensor, nn

from everyhead.layers import masks
from everyhead.layers.blocks import Memory
from tests.laws.families import ENCODER_DECODERS, batch, build

NEAR = {"rtol": 1e-5, "atol": 1e-5}
LENGTH = 10


def targets(model: nn.Module, rows: int) -> Tensor:
    rng = torch.Generator().manual_seed(3)
    return torch.randint(1, model.config.pad_id, (rows, LENGTH), generator=rng)


def memory_of(model: nn.Module, *, left: bool = False) -> Memory:
    sides = batch(model, left=left)
    return model.encode(sides.source, sides.source_mask)


def beams_of(model: nn.Module, n: int) -> Memory:
    """The memory with each sentence repeated, for the uncached computation."""
    sides = batch(model)
    return model.encode(
        sides.source.repeat_interleave(n, 0), sides.source_mask.repeat_interleave(n, 0)
    )


@pytest.mark.parametrize(
    ("chunk", "left"), [(1, False), (2, True), (3, False), (7, False), (LENGTH, True)]
)
@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_decoding_in_chunks_is_decoding_at_once(family: str, chunk: int, left: bool) -> None:
    model = build(family)
    memory, ids = memory_of(model, left=left), targets(model, 4)
    cache = model.cache(memory, LENGTH)
    pieces = [model.decode(piece, memory, cache=cache) for piece in ids.split(chunk, 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), model.decode(ids, memory), **NEAR)
    assert cache.length == LENGTH


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_a_batch_is_its_sentences_one_by_one(family: str) -> None:
    model = build(family)
    sides, ids = batch(model), targets(model, 4)
    memory = memory_of(model)
    cache = model.cache(memory, LENGTH)
    together = torch.cat([model.decode(x, memory, cache=cache) for x in ids.split(1, 1)], 1)
    for i in range(4):
        source = sides.source[i : i + 1, sides.source_mask[i]]
        alone, own = model.encode(source), None
        own = model.cache(alone, LENGTH)
        steps = [model.decode(x, alone, cache=own) for x in ids[i : i + 1].split(1, 1)]
        torch.testing.assert_close(together[i : i + 1], torch.cat(steps, 1), **NEAR)


@pytest.mark.parametrize("first", [1, 4])
@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_beams_share_a_memory_from_the_first_step_on(family: str, first: int) -> None:
    model = build(family)
    memory, ids = memory_of(model), targets(model, 12)
    expected = model.decode(ids, beams_of(model, 3))
    cache = model.cache(memory, LENGTH)
    pieces = [ids[:, :first], *ids[:, first:].split(1, 1)]
    steps = [model.decode(piece, memory, cache=cache) for piece in pieces]
    torch.testing.assert_close(torch.cat(steps, 1), expected, **NEAR)
    torch.testing.assert_close(model.decode(ids, memory), expected, **NEAR)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_padded_beams_share_a_memory_too(family: str) -> None:
    """Rescoring n-best lists: rows of several lengths against one memory a sentence."""
    model = build(family)
    memory, ids = memory_of(model), targets(model, 8)
    real = torch.arange(LENGTH) < torch.tensor([3, 10, 1, 7, 2, 2, 9, 4])[:, None]
    out = model.decode(ids, memory, target_mask=real)
    expected = model.decode(ids, beams_of(model, 2), target_mask=real)
    torch.testing.assert_close(out, expected, **NEAR)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_beams_reordered_go_on_as_the_rows_they_came_from(family: str) -> None:
    model = build(family)
    memory, ids = memory_of(model), targets(model, 8)
    cache = model.cache(memory, LENGTH)
    model.decode(ids[:, :5], memory, cache=cache)
    order = torch.tensor([1, 1, 2, 3, 5, 4, 6, 6])  # within each sentence's two rows
    cache.reorder(order)
    history = torch.cat([ids[order, :5], ids[:, 5:]], 1)
    steps = [model.decode(piece, memory, cache=cache) for piece in ids[:, 5:].split(2, 1)]
    expected = model.decode(history, beams_of(model, 2))[:, 5:]
    torch.testing.assert_close(torch.cat(steps, 1), expected, **NEAR)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_one_row_a_sentence_may_become_several_beams(family: str) -> None:
    model = build(family)
    memory, ids = memory_of(model), targets(model, 12)
    cache = model.cache(memory, LENGTH)
    model.decode(ids[::3, :4], memory, cache=cache)
    cache.reorder(torch.arange(4).repeat_interleave(3))
    history = torch.cat([ids[::3, :4].repeat_interleave(3, 0), ids[:, 4:]], 1)
    steps = [model.decode(piece, memory, cache=cache) for piece in ids[:, 4:].split(1, 1)]
    expected = model.decode(history, beams_of(model, 3))[:, 4:]
    torch.testing.assert_close(torch.cat(steps, 1), expected, **NEAR)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_finished_sentences_are_dropped_and_the_others_go_on(family: str) -> None:
    model = build(family)
    memory, ids = memory_of(model), targets(model, 8)
    expected = model.decode(ids, beams_of(model, 2))
    cache = model.cache(memory, LENGTH)
    model.decode(ids[:, :5], memory, cache=cache)
    stay, rows = torch.tensor([0, 3]), torch.tensor([0, 1, 6, 7])
    cache.keep(stay)
    cache.reorder(rows)
    memory = memory._replace(mask=masks.keys(cache.key_mask, zeroed=True))
    steps = [model.decode(piece, memory, cache=cache) for piece in ids[rows, 5:].split(1, 1)]
    torch.testing.assert_close(torch.cat(steps, 1), expected[rows, 5:], **NEAR)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_a_cropped_cache_goes_on_from_there(family: str) -> None:
    model = build(family)
    memory, ids = memory_of(model), targets(model, 4)
    cache = model.cache(memory, LENGTH)
    model.decode((ids + 3) % 20 + 1, memory, cache=cache)
    cache.crop(0)
    first = model.decode(ids[:, :6], memory, cache=cache)
    model.decode(ids[:, :4], memory, cache=cache)
    cache.crop(6)
    rest = model.decode(ids[:, 6:], memory, cache=cache)
    torch.testing.assert_close(torch.cat([first, rest], 1), model.decode(ids, memory), **NEAR)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_a_mask_without_padding_beside_a_cache_does_not_move_positions(family: str) -> None:
    model = build(family)
    memory, ids = memory_of(model), targets(model, 4)
    cache = model.cache(memory, LENGTH)
    steps = [
        model.decode(x, memory, target_mask=torch.ones_like(x, dtype=torch.bool), cache=cache)
        for x in ids.split(2, 1)
    ]
    torch.testing.assert_close(torch.cat(steps, 1), model.decode(ids, memory), **NEAR)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_padding_beside_a_cache_is_refused(family: str) -> None:
    model = build(family)
    memory = memory_of(model)
    ids, real = targets(model, 4)[:, :2], torch.ones(4, 2, dtype=torch.bool)
    real[0, 1] = False
    with pytest.raises(ValueError, match="takes no padding"):
        model.decode(ids, memory, target_mask=real, cache=model.cache(memory, 5))


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_more_steps_than_asked_for_are_refused(family: str) -> None:
    model = build(family)
    memory, ids = memory_of(model), targets(model, 4)
    cache = model.cache(memory, 3)
    model.decode(ids[:, :3], memory, cache=cache)
    with pytest.raises(ValueError, match="holds 3 positions and 4 are needed"):
        model.decode(ids[:, 3:4], memory, cache=cache)


# ------------------------------------------------------------------ beams that share a history


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_beams_that_share_a_history_are_their_rows_one_by_one(family: str, width: int) -> None:
    """One row a sentence at first, then `width`, chosen anew at every step; sentences end."""
    model = build(family)
    memory, ids = memory_of(model), targets(model, 4 * width)
    rng = torch.Generator().manual_seed(7)
    cache = model.cache(memory, LENGTH, beams=width)
    sentences, rows = torch.arange(4), 1
    history = ids[::width, :1]  # of each row in use
    for t in range(LENGTH):
        out = model.decode(history[:, -1:], memory, cache=cache)[:, 0]
        plain = model.encode(*(side[sentences] for side in source_of(model)))
        expected = model.decode(history, repeated(plain, model, sentences, rows))[:, -1]
        torch.testing.assert_close(out, expected, **NEAR)
        if t + 1 == LENGTH:
            break
        stay = torch.arange(len(sentences)) if t != 4 else torch.tensor([0, 2])
        within = torch.randint(rows, (len(stay), width), generator=rng)
        index = (stay[:, None] * rows + within).flatten()
        if t == 4:
            sentences = sentences[stay]
            cache.keep(stay)
            memory = memory._replace(mask=masks.keys(cache.key_mask, zeroed=True))
        cache.reorder(index)
        rows = width
        fresh = torch.randint(1, 20, (index.numel(), 1), generator=rng)
        history = torch.cat([history[index], fresh], 1)


def source_of(model: nn.Module) -> tuple[Tensor, Tensor]:
    sides = batch(model)
    return sides.source, sides.source_mask


def repeated(plain: Memory, model: nn.Module, sentences: Tensor, rows: int) -> Memory:
    source, real = source_of(model)
    again = sentences.repeat_interleave(rows)
    return plain if rows == 1 else model.encode(source[again], real[again])


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_a_shared_history_is_cropped_and_held_to_its_capacity(family: str) -> None:
    model = build(family)
    memory, ids = memory_of(model), targets(model, 8)
    cache = model.cache(memory, 3, beams=2)
    model.decode(ids[::2, :1], memory, cache=cache)
    cache.reorder(torch.arange(4).repeat_interleave(2))
    step = model.decode(ids[:, 1:2], memory, cache=cache)
    model.decode(ids[:, 2:3], memory, cache=cache)
    with pytest.raises(ValueError, match="holds 3 positions and 4 are needed"):
        model.decode(ids[:, 3:4], memory, cache=cache)
    cache.crop(1)
    torch.testing.assert_close(model.decode(ids[:, 1:2], memory, cache=cache), step, **NEAR)
    if family.startswith("recurrent"):  # rows have states of their own: several positions at once
        return
    with pytest.raises(ValueError, match="one position at a time"):
        model.decode(ids[:, :2], memory, cache=model.cache(memory, 3, beams=2))
