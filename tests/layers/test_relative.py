"""Relative attention against a double loop over queries and keys, in NumPy float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from everyhead.layers import masks
from everyhead.layers.positions import SinusoidalPositions
from everyhead.layers.relative import RelativeAttention, RelativeParts, attend, shifted, weights
from everyhead.layers.rotary import Rotary
from everyhead.layers.segments import RecentKeys, SegmentStates
from everyhead.models.transformer_xl import TransformerXL, TransformerXLConfig

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2}


def layer(reach: int, dtype: torch.dtype = torch.float64, *, d_model: int = 32):
    torch.manual_seed(0)
    made = RelativeAttention(
        d_model, 4, distances=SinusoidalPositions(reach + 1, d_model, layout="halves")
    )
    torch.nn.init.normal_(made.u), torch.nn.init.normal_(made.w)
    return made.to(dtype).eval()


def parts_of(made: RelativeAttention, n: int, n_keys: int) -> RelativeParts:
    x = torch.randn(2, n_keys, 32, dtype=torch.float64).to(made.u.dtype)
    with torch.no_grad():
        parts = made.project(x)
    return parts._replace(q=parts.q[:, :, n_keys - n :])


def sinusoid(distance: int, width: int) -> np.ndarray:
    """R of the paper's code: sines, then cosines."""
    angle = distance / 10000 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angle), np.cos(angle)])


def loop(made: RelativeAttention, parts: RelativeParts, reach: int) -> np.ndarray:
    """Equation A^rel of section 3.3, its four terms one by one, then softmax."""
    q, k, v, u, w = (x.detach().double().numpy() for x in (*parts[:3], parts.u, parts.w))
    maps = made.r_proj.weight.detach().double().numpy().reshape(4, 8, 32)
    batch, heads, n, width = q.shape
    offset = k.shape[2] - n
    out = np.zeros_like(q)
    for b, h, i in np.ndindex(batch, heads, n):
        seen = range(max(0, i + offset - reach), i + offset + 1)
        scores = []
        for j in seen:
            r = maps[h] @ sinusoid(i + offset - j, 32)
            content, place = q[b, h, i] @ k[b, h, j], q[b, h, i] @ r
            everywhere, always = u[h] @ k[b, h, j], w[h] @ r
            scores.append((content + place + everywhere + always) / np.sqrt(width))
        shares = np.exp(np.array(scores) - max(scores))
        out[b, h, i] = (shares / shares.sum()) @ v[b, h, list(seen)]
    return out


@pytest.mark.parametrize(("n", "n_keys"), [(1, 1), (6, 6), (1, 9), (9, 11)])
@pytest.mark.parametrize("reach", [0, 3, 50])
def test_every_score_by_a_plain_double_loop(reach: int, n: int, n_keys: int) -> None:
    made = layer(reach)
    parts = parts_of(made, n, n_keys)
    wanted = torch.from_numpy(loop(made, parts, reach))
    with torch.no_grad():
        found = attend(parts, made.visible(None))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


def test_the_shift_puts_each_distance_under_its_key() -> None:
    t, offset = 4, 3
    n = t + offset
    distances = torch.arange(n - 1, -1, -1).expand(t, n)  # of the last query
    found = shifted(distances.float()[None])[0]
    for a in range(t):
        for j in range(a + offset + 1):
            assert found[a, j] == a + offset - j


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("n", "n_keys"), [(1, 1), (7, 12), (257, 257), (300, 350)])
@torch.no_grad()
def test_it_is_a_matrix_at_any_length(n: int, n_keys: int, dtype: torch.dtype) -> None:
    """Few queries take W^R to themselves, many to the distances: both are the matrix."""
    for reach in (0, 3, 40):
        made = layer(reach, dtype)
        parts = parts_of(made, n, n_keys)
        real = torch.arange(n_keys) >= torch.tensor([0, n_keys // 2])[:, None]
        bias = torch.randn(1, 4, n, n_keys).to(dtype)
        for each, mask in ((parts, None), (parts, masks.keys(real)), (bias, None)):
            if each is bias:
                each = parts._replace(bias=bias)
            rule = made.visible(mask)
            matrix = made.weights(each, rule)
            sums = matrix.sum(-1)
            assert (((sums - 1).abs() < 1e-4) | (sums == 0)).all() and (matrix >= 0).all()
            error = (attend(each, rule) - made.mix(matrix, each, rule)).double().norm()
            assert error < TOLERANCE[dtype] * max(1.0, float(parts.v.double().norm()))
            some = weights(each, rule, heads=[2], rows=slice(n // 2, None))
            torch.testing.assert_close(some, matrix[:, [2], n // 2 :])


def test_gradients_are_those_of_the_plain_matrix() -> None:
    made = layer(3)
    x = torch.randn(1, 6, 32, dtype=torch.float64)
    share = torch.randn(1, 4, 6, 8, dtype=torch.float64)
    inputs = [made.u, made.w, made.r_proj.weight, made.q_proj.weight, made.k_proj.weight]
    parts, rule = made.project(x), made.visible(None)
    fast = torch.autograd.grad((made.attend(parts, rule) * share).sum(), inputs, retain_graph=True)
    plain = made.mix(made.weights(parts, rule), parts, rule)
    slow = torch.autograd.grad((plain * share).sum(), inputs)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@torch.no_grad()
def test_what_the_key_mask_hides_may_be_no_number() -> None:
    made = layer(20, torch.float32)
    parts = parts_of(made, 9, 9)
    rule = made.visible(masks.keys((torch.arange(9) > 2).expand(2, 9)))
    wanted = attend(parts, rule)
    k, v = parts.k.clone(), parts.v.clone()
    k[:, :, :3] = v[:, :, :3] = float("nan")
    found = attend(parts._replace(k=k, v=v), rule)
    assert torch.equal(found, wanted) and not found[:, :, :3].any()


def test_a_rotation_is_refused_at_once() -> None:
    made = layer(4, torch.float32)
    with pytest.raises(ValueError, match="positions of its own"):
        made(torch.randn(1, 3, 32), rotation=Rotary(8)(torch.arange(3)[None]))


# ------------------------------------------------------------------ the memory


def model(reach: int, **choices: object) -> TransformerXL:
    torch.manual_seed(0)
    numbers = {"vocab_size": 23, "d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48}
    made = TransformerXL(TransformerXLConfig(**numbers, memory_len=reach, dropout=0.0, **choices))
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(6)
    return made.double().eval()


IDS = torch.randint(0, 23, (3, 40), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("reach", [0, 1, 4, 39, 100])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("sizes", [(7,) * 5 + (5,), (1,) * 40, (20, 1, 1, 13, 5)])
@torch.no_grad()
def test_defect_segments_of_any_size_are_one_long_pass(
    reach: int, states: bool, sizes: tuple[int, ...]
) -> None:
    """The memory's first index is right, and a memory of length 0 is one."""
    made = model(reach)
    cache = made.states() if states else made.cache(40)
    found = [made.hidden(piece, cache=cache) for piece in IDS.split(sizes, 1)]
    torch.testing.assert_close(torch.cat(found, 1), made.hidden(IDS), rtol=1e-9, atol=1e-9)


def test_training_reads_segments_whose_memory_has_no_gradient() -> None:
    """Values are those of one pass; a row's gradient ends where its segment begins."""
    long, short = model(16, segment_len=None), model(16, segment_len=10)
    real = torch.arange(40) < torch.tensor([40, 25, 9])[:, None]
    documents = torch.arange(40).expand(3, 40) // 13
    for made in (long, short):
        made.train()
    for given in ({}, {"mask": real}, {"documents": documents}, {"mask": real.flip(1)}):
        a, b = (made.real_hidden(IDS, **given) for made in (long, short))
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    ids = torch.arange(20)[None]  # each id once
    for made, first in ((long, 0), (short, 10)):
        made.hidden(ids)[0, 15].square().sum().backward()
        touched = made.token_embed.weight.grad.abs().sum(1) > 0
        assert touched.nonzero()[:, 0].tolist() == list(range(first, 16))
        assert made.decoder.blocks[0].self_attn.k_proj.weight.grad.any()


def test_maps_of_keys_learn_from_the_memory_too() -> None:
    """A layer's own W^K sees states without gradient, as equation h̃ has it."""
    made = model(16)
    cache = made.states()
    with torch.no_grad():
        made.hidden(IDS[:, :10], cache=cache)
    before = cache.self_attn[0]._states
    assert before is not None and not before.requires_grad
    made.hidden(IDS[:, 10:11], cache=cache).square().sum().backward()
    alone = made.decoder.blocks[0].self_attn.v_proj.weight.grad.clone()
    made.zero_grad()
    made.hidden(IDS[:, 10:11]).square().sum().backward()
    assert not torch.allclose(alone, made.decoder.blocks[0].self_attn.v_proj.weight.grad)


@torch.no_grad()
def test_the_memory_is_bounded_by_its_reach_not_by_the_text() -> None:
    made, sizes = model(4).float(), []
    for states in (False, True):
        cache = made.states() if states else made.cache(1000)
        for n in (20, 80):
            for _ in range(n):
                made.hidden(IDS[:1, :1], cache=cache)
            sizes.append(sum(_bytes(each) for each in cache.self_attn))
        assert cache.length == 100 and sizes[-1] == sizes[-2]


def _bytes(cache: RecentKeys | SegmentStates) -> int:
    held = [x for x in vars(cache).values() if isinstance(x, Tensor)]
    return sum(x.untyped_storage().nbytes() for x in held)


@torch.no_grad()
def test_a_memory_goes_back_as_far_as_it_reaches_and_says_where_it_cannot() -> None:
    made = model(6)
    cache = made.cache(40)
    made.hidden(IDS[:, :8], cache=cache)
    made.hidden((IDS[:, 8:11] + 1) % 23, cache=cache)
    cache.crop(8)
    found = made.hidden(IDS[:, 8:12], cache=cache)
    torch.testing.assert_close(found, made.hidden(IDS[:, :12])[:, 8:], rtol=1e-9, atol=1e-9)
    for t in range(12, 30):
        made.hidden(IDS[:, t : t + 1], cache=cache)
    with pytest.raises(ValueError, match="what position 9 saw is gone"):
        cache.crop(9)
    cache.crop(0)
    torch.testing.assert_close(
        made.hidden(IDS[:, :5], cache=cache), made.hidden(IDS[:, :5]), rtol=1e-9, atol=1e-9
    )
