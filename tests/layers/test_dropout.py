"""Dropout: the share, the mean, the seed, the gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everyhead.layers.dropout import Dropout, add_dropped, dropout, kept


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
    mask = kept(torch.empty(1024, 1024), 0.5).ne(0).float() - 0.5
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
