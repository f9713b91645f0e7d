"""The cache: append, read, reorder, crop, keep."""

import pytest
import torch
from torch import Tensor

from everyhead.layers import masks
from everyhead.layers.cache import DecoderCache, KeyValueCache
from everyhead.layers.multi_head import MultiHeadAttention
from tests.layers.oracles import lengths_mask


def entries(batch: int, n: int, start: int = 0) -> tuple[Tensor, Tensor]:
    """k and v (batch, 1, n, 2) whose numbers name row and position."""
    k = torch.arange(batch)[:, None] * 100.0 + torch.arange(start, start + n)
    k = k.view(batch, 1, n, 1).expand(-1, -1, -1, 2)
    return k, -k


def test_what_is_appended_in_chunks_comes_back_in_one() -> None:
    cache = KeyValueCache(7)
    for start, n in ((0, 1), (1, 2), (3, 4)):
        k, v = cache.append(*entries(2, n, start))
    wanted = entries(2, 7)
    assert torch.equal(k, wanted[0]) and torch.equal(v, wanted[1])
    assert cache.length == 7


def test_more_than_the_capacity_is_refused_and_nothing_is_lost() -> None:
    cache = KeyValueCache(3)
    cache.append(*entries(1, 2))
    with pytest.raises(ValueError, match="holds 3 positions and 4 are needed"):
        cache.append(*entries(1, 2, 2))
    assert cache.length == 2 and torch.equal(cache.read()[0], entries(1, 2)[0])


def test_an_empty_cache_cannot_be_read_but_reordered_and_cropped() -> None:
    cache = KeyValueCache(3)
    cache.reorder(torch.tensor([1, 0]))
    cache.crop(0)
    with pytest.raises(ValueError, match="the cache is empty"):
        cache.read()


@pytest.mark.parametrize("index", [[2, 0, 1], [1, 1, 1], [2, 2, 0, 1, 0], [1], [0, 1, 2]])
def test_reorder_moves_repeats_and_drops_rows_and_goes_on(index: list[int]) -> None:
    cache = KeyValueCache(4)
    cache.append(*entries(3, 2))
    order = torch.tensor(index)
    cache.reorder(order)
    k, v = entries(3, 2)
    assert torch.equal(cache.read()[0], k[order]) and torch.equal(cache.read()[1], v[order])
    more = entries(len(index), 1, 2)
    grown, _ = cache.append(*more)
    assert torch.equal(grown, torch.cat([k[order], more[0]], 2))


def test_crop_forgets_the_end_alone() -> None:
    cache = KeyValueCache(4)
    cache.append(*entries(2, 3))
    cache.crop(5)
    assert cache.length == 3
    cache.crop(1)
    assert torch.equal(cache.read()[0], entries(2, 1)[0])
    cache.append(*entries(2, 3, 1))
    assert torch.equal(cache.read()[0], entries(2, 4)[0])


def test_a_fixed_cache_is_filled_once_has_no_capacity_and_is_never_cropped() -> None:
    cache = KeyValueCache(0, fixed=True)
    cache.append(*entries(2, 5))
    cache.crop(1)
    assert cache.length == 5
    cache.reorder(torch.tensor([1]))
    assert torch.equal(cache.read()[0], entries(2, 5)[0][1:])


def test_a_decoder_cache_reorders_targets_and_keeps_sentences_apart() -> None:
    real = lengths_mask([5, 3], 5)
    cache = DecoderCache(2, 4, memory_mask=real)
    for i in range(2):
        cache.self_attn[i].append(*entries(4, 2))
        cache.cross_attn[i].append(*entries(2, 5))
    assert cache.length == 2
    cache.reorder(torch.tensor([3, 3, 0, 1]))
    assert cache.self_attn[1].read()[0][:, 0, 0, 0].tolist() == [300, 300, 0, 100]
    wanted = entries(2, 5)[0].masked_fill(~real[:, None, :, None], 0)
    assert torch.equal(cache.cross_attn[1].read()[0], wanted)
    cache.keep(torch.tensor([1]))
    assert torch.equal(cache.key_mask, real[1:])
    assert torch.equal(cache.cross_attn[0].read()[0], wanted[1:])
    cache.crop(1)
    assert cache.length == 1 and cache.cross_attn[0].length == 5
    assert DecoderCache(0, 4).length == 0


def test_a_decoder_cache_without_a_memory_mask_keeps_none() -> None:
    cache = DecoderCache(1, 4)
    cache.keep(torch.tensor([0]))
    assert cache.key_mask is None


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e30])
def test_junk_under_the_key_mask_stays_out_of_a_fixed_cache(junk: float) -> None:
    layer = MultiHeadAttention(8, 2).eval()
    real = lengths_mask([5, 2, 0], 5)
    x, memory = torch.randn(3, 4, 8), torch.randn(3, 5, 8)
    expected = layer(x, masks.keys(real), memory)
    cache = KeyValueCache(0, fixed=True, key_mask=real)
    dirty = memory.masked_fill(~real[..., None], junk)
    for _ in range(2):
        out = layer(x, masks.keys(real), dirty, cache=cache)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
    cache.reorder(torch.tensor([2, 1]))
    out = layer(x[[2, 1]], masks.keys(real[[2, 1]]), dirty, cache=cache)
    torch.testing.assert_close(out, expected[[2, 1]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("n_kv_heads", [4, 2])
@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_attention_in_chunks_is_attention_at_once(chunk: int, n_kv_heads: int) -> None:
    layer = MultiHeadAttention(8, 4, n_kv_heads=n_kv_heads).eval()
    x = torch.randn(2, 7, 8)
    whole = layer(x, masks.causal())
    cache = KeyValueCache(9)
    with torch.no_grad():
        parts = [layer(piece, masks.causal(), cache=cache) for piece in x.split(chunk, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-6)


def test_the_memory_is_projected_once_and_shared_by_beams() -> None:
    layer = MultiHeadAttention(8, 2).eval()
    memory, real = torch.randn(2, 5, 8), lengths_mask([5, 2], 5)
    cache = KeyValueCache(0, fixed=True)
    x = torch.randn(2, 1, 8)
    layer(x, masks.keys(real), memory, cache=cache)
    kept = cache.read()[0]
    beams = torch.randn(6, 1, 8)
    wide = layer(beams, masks.keys(real), torch.full_like(memory, float("nan")), cache=cache)
    assert cache.read()[0].data_ptr() == kept.data_ptr()
    expected = layer(
        beams, masks.keys(real.repeat_interleave(3, 0)), memory.repeat_interleave(3, 0)
    )
    torch.testing.assert_close(wide, expected, rtol=0, atol=1e-6)
