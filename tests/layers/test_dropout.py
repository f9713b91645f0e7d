"""Dropout: the share, the mean, the seed, the gradient; by the program and by PyTorch's calls."""

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everyhead.layers import dropout as module
from everyhead.layers.compiled import library
from everyhead.layers.dropout import Dropout, add_dropped, dropout

compiled = pytest.mark.skipif(library() is None, reason="there is no C compiler here")


@pytest.fixture(params=["program", "calls"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways where there is a compiler."""
    if request.param == "calls":
        monkeypatch.setattr(module, "library", lambda: None)
    elif library() is None:
        pytest.skip("there is no C compiler here")
    return request.param


@pytest.mark.parametrize("p", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_the_share_dropped_and_the_mean_kept(p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, 400)
    out = dropout(x, p)
    n, share = x.numel(), out.eq(0).float().mean().item()
    assert abs(share - p) < 5 * (p * (1 - p) / n) ** 0.5
    assert abs(out.mean().item() - 1) < 5 * (p / (1 - p) / n) ** 0.5
    values = out.unique()
    assert len(values) == 2 and values[1].item() == pytest.approx(1 / (1 - p), rel=1e-4)


def test_entries_fall_independently_of_their_neighbours_rows_and_columns() -> None:
    torch.manual_seed(0)
    mask = dropout(torch.ones(1024, 1024), 0.5).ne(0).float() - 0.5
    for near in (mask[1:] * mask[:-1], mask[:, 1:] * mask[:, :-1], mask[:, 4:] * mask[:, :-4]):
        assert abs(near.mean().item()) < 0.25 * 5 / 1024
    assert mask.mean(0).abs().max() < 0.5 * 6 / 32 and mask.mean(1).abs().max() < 0.5 * 6 / 32


def test_the_seed_decides_and_every_call_draws_anew() -> None:
    x = torch.ones(64, 64)
    torch.manual_seed(1)
    a, b = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(1)
    c, d = dropout(x, 0.5), dropout(x, 0.5)
    assert torch.equal(a, c) and torch.equal(b, d) and not torch.equal(a, b)


def test_the_gradient_is_the_same_mask() -> None:
    x = torch.randn(50, 20, dtype=torch.float64, requires_grad=True)
    y = torch.randn(50, 20, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    out = dropout(x, 0.4)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(out, x * grad)

    def seeded(f):
        def run(*leaves):
            torch.manual_seed(0)
            return f(*leaves)

        return run

    small = [v.detach()[:3, :4].clone().requires_grad_() for v in (x, y)]
    assert torch.autograd.gradcheck(seeded(lambda a: dropout(a, 0.4)), small[:1])
    assert torch.autograd.gradcheck(seeded(lambda a, b: add_dropped(a, b, 0.4)), small)


def test_add_dropped_is_x_plus_dropped_y() -> None:
    x, y = torch.randn(20, 30), torch.randn(20, 30)
    torch.manual_seed(0)
    together = add_dropped(x, y, 0.3)
    torch.manual_seed(0)
    torch.testing.assert_close(together, x + dropout(y, 0.3), rtol=0, atol=1e-6)
    assert torch.equal(add_dropped(x, y, 0.0), x + y)


def test_nothing_is_dropped_at_zero_or_in_eval() -> None:
    x = torch.randn(3, 4)
    assert dropout(x, 0.0) is x
    assert Dropout(0.9).eval()(x) is x
    assert not torch.equal(Dropout(0.9).train()(torch.ones(99)), torch.ones(99))


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_a_share_outside_zero_to_one_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="dropout is a share in"):
        dropout(torch.ones(3), p)


@pytest.mark.parametrize("p", [1e-9, 1 - 1e-9])
def test_shares_at_the_very_edges_stay_finite(p: float) -> None:
    assert dropout(torch.ones(1000), p).isfinite().all()


@settings(deadline=None, max_examples=40)
@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)
def test_any_shape_and_type_is_kept(shape: list[int], dtype: torch.dtype) -> None:
    x = torch.ones(shape, dtype=dtype)
    for out in (dropout(x, 0.5), add_dropped(x, x, 0.5), dropout(x.mT if x.dim() > 1 else x, 0.5)):
        assert out.dtype == dtype and out.numel() == x.numel()
        assert set(out.flatten().tolist()) <= {0.0, 1.0, 2.0, 3.0}


@compiled
def test_the_random_bits_are_the_published_ones() -> None:
    """Philox-4x32-10 of the counter 0 under the key 0, as its authors give it; and two more."""
    programs, out = library(), (ctypes.c_uint32 * 64)()
    assert programs is not None
    programs.philox(0, 0, ctypes.addressof(out))
    assert [out[i] for i in (0, 1, 32, 33)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]

    def words(seed: int, counter: int) -> list[int]:
        """The definition, in whole numbers."""
        a, b, c, d = counter & 0xFFFFFFFF, counter >> 32, 0, 0
        k0, k1 = seed & 0xFFFFFFFF, seed >> 32
        for _ in range(10):
            p, q = a * 0xD2511F53, c * 0xCD9E8D57
            a, b, c, d = q >> 32 ^ b ^ k0, q & 0xFFFFFFFF, p >> 32 ^ d ^ k1, p & 0xFFFFFFFF
            k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
        return [a, b, c, d]

    assert words(0, 0) == [out[i] for i in (0, 1, 32, 33)]
    for seed, first in ((0x299F31D0A4093822, 0xFFFFFFFA), (2**63 - 1, 7)):
        programs.philox(seed, first, ctypes.addressof(out))
        found = [[out[2 * i + j] for j in (0, 1, 32, 33)] for i in range(16)]
        assert found == [words(seed, first + i) for i in range(16)]


@compiled
def test_how_many_threads_there_are_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    found, x = [], torch.randn(1000, 37)
    for n in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=n: n)
        torch.manual_seed(0)
        found.append(dropout(x, 0.3))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_is_the_same_mask_to_any_order(dtype: torch.dtype) -> None:
    x, y = torch.randn(37, 19, requires_grad=True), torch.randn(37, 19, dtype=dtype)
    y.requires_grad_()
    torch.manual_seed(0)
    out = add_dropped(x, y, 0.4)
    torch.manual_seed(0)
    mask = dropout(torch.ones(37, 19), 0.4)
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.02}
    torch.testing.assert_close(out, x + mask * y, **near)
    dx, dy = torch.autograd.grad(out.square().sum(), (x, y), create_graph=True)
    torch.testing.assert_close(dx, 2 * out)
    torch.testing.assert_close(dy.float(), 2 * out * mask, **near)
    (twice,) = torch.autograd.grad(dy.sum(), y)
    torch.testing.assert_close(twice.float(), 2 * mask.square(), **near)


def test_rows_that_do_not_lie_one_after_another_keep_their_places() -> None:
    x = torch.randn(64, 33)
    torch.manual_seed(0)
    wanted = dropout(x.T.contiguous(), 0.5)
    torch.manual_seed(0)
    assert torch.equal(dropout(x.T, 0.5), wanted)
