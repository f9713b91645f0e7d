"""A history kept by sentence is the history that was copied for each beam."""

import pytest
import torch
from torch import Tensor

from everyhead.layers import masks
from everyhead.layers.beam_cache import Ancestry, BeamCache, BeamDecoderCache
from everyhead.layers.cache import DecoderCache
from everyhead.layers.multi_head import MultiHeadAttention

NEAR = {"rtol": 0, "atol": 1e-6}
BEAMS, SENTENCES = 3, 4


def choices(steps: int) -> list[Tensor]:
    """What a search may choose at each step: rows of the same sentence, repeated or dropped."""
    rng = torch.Generator().manual_seed(0)
    first = torch.arange(SENTENCES).repeat_interleave(BEAMS)
    later = [
        torch.randint(0, BEAMS, (SENTENCES, BEAMS), generator=rng)
        + BEAMS * torch.arange(SENTENCES)[:, None]
        for _ in range(steps - 1)
    ]
    return [first, *(rows.flatten() for rows in later)]


@torch.no_grad()
def test_a_shared_history_is_the_copied_history() -> None:
    layers = [MultiHeadAttention(8, 2).eval() for _ in range(2)]
    shared = BeamDecoderCache(2, 9, beams=BEAMS)
    copied = DecoderCache(2, 9)
    n = SENTENCES
    for rows in choices(9):
        x = torch.randn(n, 1, 8)
        for i, layer in enumerate(layers):
            got = layer(x, masks.causal(), cache=shared.self_attn[i])
            wanted = layer(x, masks.causal(), cache=copied.self_attn[i])
            torch.testing.assert_close(got, wanted, **NEAR)
        shared.reorder(rows)
        copied.reorder(rows)
        n = rows.numel()
    assert shared.length == copied.length == 9


@torch.no_grad()
def test_sentences_leave_and_the_others_go_on() -> None:
    layer = MultiHeadAttention(8, 2).eval()
    shared, copied = BeamDecoderCache(1, 6, beams=2), DecoderCache(1, 6)
    rows = [[0, 0, 1, 1, 2, 2], [5, 4, 2, 2], [1, 0], [0, 0], [1, 1]]
    n = 3
    for index in map(torch.tensor, rows):
        x = torch.randn(n, 1, 8)
        got = layer(x, masks.causal(), cache=shared.self_attn[0])
        torch.testing.assert_close(got, layer(x, masks.causal(), cache=copied.self_attn[0]), **NEAR)
        shared.reorder(index)
        copied.reorder(index)
        n = index.numel()


@torch.no_grad()
def test_a_cropped_shared_history_goes_on_from_there() -> None:
    layer = MultiHeadAttention(8, 2).eval()
    shared, copied = BeamDecoderCache(1, 6, beams=2), DecoderCache(1, 6)
    n = 2
    for step, index in enumerate([[0, 0, 1, 1], [1, 0, 3, 3], [0, 0, 2, 3], [1, 1, 3, 2]]):
        x = torch.randn(n, 1, 8)
        if step == 2:
            shared.crop(1)
            copied.crop(1)
        got = layer(x, masks.causal(), cache=shared.self_attn[0])
        torch.testing.assert_close(got, layer(x, masks.causal(), cache=copied.self_attn[0]), **NEAR)
        shared.reorder(torch.tensor(index))
        copied.reorder(torch.tensor(index))
        n = 4


def test_several_positions_at_once_and_too_many_are_refused() -> None:
    cache = BeamCache(1, Ancestry(2))
    with pytest.raises(ValueError, match="one position at a time; got 2"):
        cache.append(torch.zeros(1, 2, 2, 4), torch.zeros(1, 2, 2, 4))
    cache.append(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    with pytest.raises(ValueError, match="holds 1 positions and 2 are needed"):
        cache.append(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))


def test_choosing_beams_copies_no_keys() -> None:
    cache = BeamDecoderCache(1, 5, beams=2)
    own = cache.self_attn[0]
    own.append(torch.randn(3, 2, 1, 4), torch.randn(3, 2, 1, 4))
    with pytest.raises(ValueError, match="decode a position first"):
        cache.reorder(torch.tensor([0, 0, 1, 1, 2, 2]))
    assert own.bias is not None and own.bias.shape == (3, 1, 1, 2)
    before, place = own.read()[0].clone(), own.read()[0].data_ptr()
    cache.reorder(torch.tensor([0, 0, 1, 1, 2, 2]))
    assert torch.equal(own.read()[0], before) and own.read()[0].data_ptr() == place
