"""Window: the dense mask is its oracle; its cache is bounded and changes nothing (laws 3, 5, 9)."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import everyhead
from everyhead.layers import masks
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.nearby import near
from everyhead.layers.sliding import Window
from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.models.llama import Llama, LlamaConfig
from everyhead.models.prepare import prepare
from everyhead.models.swap import swap

NEAR = {"rtol": 1e-5, "atol": 1e-5}
CHUNKS = (1, 2, 3, 7, 16)
SIZES = {"vocab_size": 23, "d_model": 32, "n_heads": 4, "n_layers": 2}


def llama(max_len: int = 64, **choices: object) -> Llama:
    return Llama(LlamaConfig(**SIZES, n_kv_heads=2, d_ff=48, max_len=max_len, **choices))


def gpt2(max_len: int = 64) -> GPT2:
    return GPT2(GPT2Config(**SIZES, max_len=max_len))


DECODERS: dict[str, Callable[..., nn.Module]] = {"llama": llama, "gpt2": gpt2}


def built(make: Callable[..., nn.Module], **sizes: int) -> nn.Module:
    """In eval, its attention sharp, so that a key more or less is seen."""
    torch.manual_seed(0)
    model = make(**sizes).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(12) if p.dim() > 1 else p.add_(0.3 * torch.randn_like(p))
    return model


def rows(n: int, length: int) -> Tensor:
    return torch.randint(0, 22, (n, length), generator=torch.Generator().manual_seed(3))


def in_chunks(model: nn.Module, ids: Tensor, real: Tensor | None, chunk: int) -> Tensor:
    cache, pieces = model.cache(ids.shape[1]), []
    for start in range(0, ids.shape[1], chunk):
        piece = slice(start, start + chunk)
        seen = None if real is None else real[:, piece]
        pieces.append(model.hidden(ids[:, piece], seen, cache=cache))
    assert cache.length == ids.shape[1]
    return torch.cat(pieces, 1)


def left_padded(n: int) -> Tensor:
    return torch.arange(n) >= torch.tensor([[0], [7], [25]])


# ------------------------------------------------------------------------------- the rule itself


@pytest.mark.parametrize(("size", "first"), [(1, 0), (3, 0), (3, 2), (1, 4), (9, 3)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_rule_is_a_comparison_of_numbers(size: int, first: int, causal: bool) -> None:
    mask = near(masks.causal() if causal else None, size, first)
    seen = mask.rows(9, 9, torch.device("cpu")).expand(1, 1, 9, 9)
    for i in range(9):
        for j in range(9):
            wanted = (abs(i - j) < size or j < first) and (not causal or j <= i)
            assert bool(seen[0, 0, i, j]) == wanted, (i, j)


@pytest.mark.parametrize("left", [False, True])
def test_first_tokens_are_the_first_real_ones_of_each_text(left: bool) -> None:
    lengths = torch.tensor([9, 5, 1])
    real = torch.arange(9) >= 9 - lengths[:, None] if left else torch.arange(9) < lengths[:, None]
    seen = near(masks.keys(real), 2, 3).rows(9, 9, torch.device("cpu")).expand(3, 1, 9, 9)
    for b, n in enumerate(lengths.tolist()):
        begin = 9 - n if left else 0
        wanted = near(None, 2, 3).rows(n, n, torch.device("cpu"))[0, 0].expand(n, n)
        assert torch.equal(seen[b, 0, begin : begin + n, begin : begin + n], wanted)


def test_first_tokens_are_those_of_each_document_of_a_packed_row() -> None:
    ids = torch.tensor([[0] * 5 + [1] * 7 + [2]])
    mask = near(masks.causal() & masks.documents(ids), 2, 2)
    seen = mask.rows(13, 13, torch.device("cpu"))[0, 0]
    for begin, end in ((0, 5), (5, 12), (12, 13)):
        n = end - begin
        alone = near(masks.causal(), 2, 2).rows(n, n, torch.device("cpu"))[0, 0]
        assert torch.equal(seen[begin:end, begin:end], alone)
        assert not seen[begin:end, :begin].any()


@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 1025, 1100])
def test_at_any_length_it_is_the_dense_mask(n: int) -> None:
    torch.manual_seed(1)
    plain = MultiHeadAttention(16, 2).eval()
    layer, x = Window(70, first=3).of(plain), torch.randn(1, n, 16)
    seen = near(masks.causal(), 70, 3).rows(n, n, torch.device("cpu"))[0, 0].expand(n, n)
    with torch.no_grad():
        found, wanted = layer(x, masks.causal()), plain(x, masks.dense(seen))
    torch.testing.assert_close(found, wanted, **NEAR)


@torch.no_grad()
def test_defect_a_window_that_read_a_long_text_is_right_for_a_short_one() -> None:
    """A mask that was made once, for 1,024 tokens, would hide the wrong keys of 12."""
    torch.manual_seed(1)
    plain = MultiHeadAttention(16, 2).eval()
    layer = Window(5, first=2).of(plain)
    for n in (1024, 12, 4, 1, 40):
        x = torch.randn(1, n, 16)
        i, j = torch.arange(n)[:, None], torch.arange(n)
        seen = (j <= i) & ((i - j < 5) | (j < 2))
        torch.testing.assert_close(layer(x, masks.causal()), plain(x, masks.dense(seen)), **NEAR)


def test_sizes_that_make_no_sense_and_variants_are_refused() -> None:
    for wrong in ((0, 0), (5, -1)):
        with pytest.raises(ValueError, match="1 token or more"):
            Window(*wrong)
    variant = everyhead.RandomFeatures(8).of(MultiHeadAttention(16, 2))
    with pytest.raises(ValueError, match="Window takes the place of exact attention, not of Favor"):
        Window(4).of(variant)


# --------------------------------------------------------------------------------- the cache


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("size", "first"), [(5, 0), (1, 2), (6, 3), (80, 2)])
@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_in_chunks_is_the_mask_at_once(
    family: str, size: int, first: int, left: bool, prepared: bool
) -> None:
    model = swap(built(DECODERS[family]), Window(size, first=first))
    ids, real = rows(3, 60), left_padded(60) if left else None
    wanted = model.hidden(ids, real)
    reader = prepare(model) if prepared else model
    for chunk in CHUNKS:
        found = in_chunks(reader, ids, real, chunk)
        some = slice(None) if real is None else real
        torch.testing.assert_close(found[some], wanted[some], **NEAR, msg=f"chunks of {chunk}")


def by_pairs(model: Llama, ids: Tensor, size: int, first: int) -> Tensor:
    """Each score by its own distance, in float64: first tokens recede no further than max_len."""
    model = model.double()
    n, limit = ids.shape[1], model.config.max_len
    p = torch.arange(n)[None]
    own, capped = model.rotation(p), model.rotation(p.clamp_max(limit - 1))
    x = model.embed(ids, p)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None]
    seen = (j <= i) & ((i - j < size) | (j < first))
    for block in model.decoder.blocks:
        a = block.self_attn
        y = block.self_attn_norm(x)
        q, k, v = a._split(a._joined(y, a.q_proj, a.k_proj, a.v_proj), None, (4, 2, 2))
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        near_scores, far = (
            turned(q, r) @ turned(k, own).transpose(-2, -1) * a.scale for r in (own, capped)
        )
        scores = torch.where(j < first, far, near_scores).masked_fill(~seen, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + a.o_proj(mixed)
        x = x + block.feed_forward(block.feed_forward_norm(x))
    return model.decoder.norm(x)


def turned(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """x as complex pairs (i, i + D/2), times e^(ia)."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half], x[..., half:])
    cos, sin = (part[..., :half].double() for part in rotation)
    out = pairs * torch.complex(cos, sin)
    return torch.cat([out.real, out.imag], -1)


@pytest.mark.parametrize("first", [0, 3])
@torch.no_grad()
def test_behind_the_trained_length_it_is_each_pair_at_its_own_distance(first: int) -> None:
    model = swap(built(llama, max_len=24), Window(6, first=first))
    ids = rows(2, 130)
    wanted = by_pairs(built(llama, max_len=24), ids, 6, first).float()
    for reader in (model, prepare(model)):
        for chunk in CHUNKS:
            found = in_chunks(reader, ids, None, chunk)
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5)


@torch.no_grad()
def test_behind_the_trained_length_left_padding_changes_nothing() -> None:
    model = swap(built(llama, max_len=24), Window(6, first=3))
    ids, real = rows(3, 90), left_padded(90)
    for chunk in CHUNKS:
        found = in_chunks(model, ids, real, chunk)
        for b in range(3):
            alone = in_chunks(model, ids[b : b + 1, real[b]], None, 5)
            torch.testing.assert_close(found[b, real[b]], alone[0], **NEAR)


@pytest.mark.parametrize("chunk", [1, 8])
@torch.no_grad()
def test_memory_is_bounded_at_any_length(chunk: int) -> None:
    model = prepare(swap(built(llama, max_len=128), Window(32, first=4)))
    cache, sizes = model.cache(5000), set()
    for x in rows(1, 2000).split(chunk, 1):
        model.hidden(x, cache=cache)
        for keys in cache.self_attn:
            k, v = keys.read()
            assert k.shape[2] == v.shape[2] <= 4 + 31 + max(16, chunk)
            sizes.add((keys._k.shape[2], keys._v.shape[2]))
    assert cache.length == 2000 and sizes == {(4 + 31 + 16,) * 2}


@torch.no_grad()
def test_a_piece_that_no_position_is_left_for_is_refused_and_the_cache_goes_on() -> None:
    model = swap(built(llama, max_len=24), Window(6, first=3))
    ids = rows(1, 60)
    cache = model.cache(60)
    model.hidden(ids[:, :20], cache=cache)
    assert cache.piece == 16
    with pytest.raises(ValueError, match="read fewer at once"):
        model.hidden(ids[:, 20:37], cache=cache)
    found = model.hidden(ids[:, 20:36], cache=cache)
    torch.testing.assert_close(found, in_chunks(model, ids[:, :36], None, 3)[:, 20:], **NEAR)


@torch.no_grad()
def test_learned_positions_end_where_their_table_ends() -> None:
    model = swap(built(gpt2, max_len=24), Window(6, first=3))
    assert model.longest == 24
    with pytest.raises(ValueError, match="more than the model's max_len 24"):
        in_chunks(model, rows(1, 25), None, 1)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("max_len", [24, 64])
@torch.no_grad()
def test_rows_reordered_repeated_and_dropped_go_on_as_those_they_came_from(
    max_len: int, left: bool
) -> None:
    model = swap(built(llama, max_len=max_len), Window(6, first=3))
    ids, real = rows(3, 40), left_padded(40) if left else torch.ones(3, 40, dtype=torch.bool)
    cache = model.cache(60)
    for start in range(0, 40, 8):
        seen = real[:, start : start + 8] if left else None
        model.hidden(ids[:, start : start + 8], seen, cache=cache)
    history, whole = ids, real
    for order in ([0, 2, 2, 1], [3, 0], [1, 0, 0]):
        index, fresh = torch.tensor(order), rows(len(order), 3)
        cache.reorder(index)
        history = torch.cat([history[index], fresh], 1)
        whole = torch.cat([whole[index], torch.ones_like(fresh, dtype=torch.bool)], 1)
        found = torch.cat([model.hidden(x, cache=cache) for x in fresh.split([1, 2], 1)], 1)
        wanted = in_chunks(model, history, whole, 8)[:, -3:]
        torch.testing.assert_close(found, wanted, **NEAR)


@torch.no_grad()
def test_a_cropped_cache_goes_on_from_there_or_says_that_it_cannot() -> None:
    model = swap(built(llama), Window(6, first=3))
    ids = rows(2, 40)
    wanted = model.hidden(ids)
    cache = model.cache(40)
    model.hidden((ids + 1)[:, :30] % 22, cache=cache)
    cache.crop(0)
    model.hidden(ids[:, :20], cache=cache)
    model.hidden((ids + 1)[:, 20:30] % 22, cache=cache)
    cache.crop(20)
    found = torch.cat([model.hidden(x, cache=cache) for x in ids[:, 20:].split(4, 1)], 1)
    torch.testing.assert_close(found, wanted[:, 20:], **NEAR)
    with pytest.raises(ValueError, match="what position 10 saw has left the window"):
        cache.crop(10)


# ----------------------------------------------------------------------------------- law 9


@pytest.mark.parametrize("prepared", [False, True])
@torch.no_grad()
def test_who_looks_sees_the_windows_matrix_whole_or_step_by_step(prepared: bool) -> None:
    model = swap(built(llama), Window(4, first=2))
    ids = rows(1, 20)
    seen = near(masks.causal(), 4, 2).rows(20, 20, torch.device("cpu"))
    reader = prepare(model) if prepared else model
    with everyhead.record(reader) as whole:
        reader.hidden(ids)
    expected = whole["decoder.1.self_attn"].weights()
    assert (expected.masked_select(~seen.expand_as(expected)) == 0).all()
    torch.testing.assert_close(expected.sum(-1), torch.ones(1, 4, 20), **NEAR)
    with everyhead.record(reader) as stepwise:
        in_chunks(reader, ids, None, 1)
    torch.testing.assert_close(stepwise["decoder.1.self_attn"].weights(), expected, **NEAR)


@torch.no_grad()
def test_looking_changes_no_step() -> None:
    model = swap(built(llama), Window(4, first=2))
    ids = rows(2, 30)
    plain = in_chunks(model, ids, None, 1)
    with everyhead.record(model):
        looked = in_chunks(model, ids, None, 1)
    torch.testing.assert_close(looked, plain, **NEAR)
