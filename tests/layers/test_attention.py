"""Scaled dot-product attention on both paths, against loops and the reference."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everyhead import reference
from everyhead.layers import masks
from everyhead.layers.attention import SHORT, Parts, attend, attention, grouped, mix, weights
from tests.layers.oracles import PATHS, lengths_mask, naive_attention, on_path, qkv


def everything(b: int, h: int, t: int, s: int) -> bool:
    return True


@pytest.mark.parametrize("path", PATHS)
def test_equals_the_loop(path: str) -> None:
    q, k, v = qkv(2, 3, 4, 5, n_keys=6, dtype=torch.float64)
    with on_path(path):
        out = attention(q, k, v)
    torch.testing.assert_close(out, naive_attention(q, k, v, everything), rtol=0, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
def test_values_may_be_wider_than_keys(path: str) -> None:
    q, k, _ = qkv(2, 2, 4, 5, n_keys=6, dtype=torch.float64)
    v = torch.randn(2, 2, 6, 9, dtype=torch.float64)
    with on_path(path):
        out = attention(q, k, v)
    torch.testing.assert_close(out, naive_attention(q, k, v, everything), rtol=0, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
def test_equals_the_reference(path: str) -> None:
    q, k, v = qkv(2, 3, 5, 4, dtype=torch.float64)
    real = lengths_mask([5, 2], 5)
    see = reference.causal_mask(5) & reference.padding_mask(real.numpy())
    out, matrix = reference.scaled_dot_product_attention(q.numpy(), k.numpy(), v.numpy(), see)
    mask = masks.causal() & masks.keys(real)
    with on_path(path):
        ours = attention(q, k, v, mask)
    parts = Parts(q, k, v, 0.5)
    np.testing.assert_allclose(ours.numpy(), out, rtol=0, atol=1e-12)
    np.testing.assert_allclose(weights(parts, mask).numpy(), matrix, rtol=0, atol=1e-12)


def test_the_documents_example() -> None:
    rng = np.random.RandomState(42)
    q, k, v = (torch.from_numpy(rng.randn(1, 1, 4, 8)) for _ in range(3))
    output, matrix = reference.example()
    np.testing.assert_allclose(attention(q, k, v)[0].numpy(), output, rtol=0, atol=1e-12)
    ours = weights(Parts(q, k, v, 8**-0.5), None)
    np.testing.assert_allclose(ours[0].numpy(), matrix, rtol=0, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
def test_grouped_heads_share_keys_in_order(n_kv_heads: int, path: str) -> None:
    q, k, v = qkv(2, 6, 3, 4, n_keys=5, n_kv_heads=n_kv_heads, dtype=torch.float64)
    with on_path(path):
        out = attention(q, k, v, masks.causal())
    expected = naive_attention(q, k, v, lambda b, h, t, s: s <= t + 2)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (1, 3, 4, 6), (1, 3, 1, 6), (1, 1, 4, 6)])
def test_a_bias_is_added_to_the_scores(shape: tuple[int, ...], path: str) -> None:
    q, k, v = qkv(2, 3, 4, 5, n_keys=6, dtype=torch.float64)
    bias = torch.randn(shape, dtype=torch.float64)
    real = lengths_mask([6, 3], 6)
    with on_path(path):
        plain = attention(q, k, v, bias=bias)
        masked = attention(q, k, v, masks.keys(real), bias=bias)
    expected = naive_attention(q, k, v, everything, bias=bias)
    torch.testing.assert_close(plain, expected, rtol=0, atol=1e-12)
    seen = naive_attention(q, k, v, lambda b, h, t, s: bool(real[b, s]), bias=bias)
    torch.testing.assert_close(masked, seen, rtol=0, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
def test_a_bias_receives_its_gradient(path: str) -> None:
    q, k, v = qkv(2, 3, 4, 5, n_keys=6, dtype=torch.float64)
    mask = masks.causal() & masks.keys(lengths_mask([6, 4], 6))
    bias = torch.randn(1, 3, 4, 6, dtype=torch.float64, requires_grad=True)
    with on_path(path):
        (fast,) = torch.autograd.grad(attention(q, k, v, mask, bias=bias).sum(), bias)
    parts = Parts(q, k, v, 5**-0.5, bias)
    (plain,) = torch.autograd.grad(mix(weights(parts, mask), parts).sum(), bias)
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-12)
    assert plain.abs().max() > 0


@pytest.mark.parametrize("path", PATHS)
def test_a_bias_of_another_type_is_taken(path: str) -> None:
    q, k, v = qkv(1, 2, 4, 8, dtype=torch.bfloat16)
    bias = torch.randn(1, 2, 4, 4)
    with on_path(path):
        out = attention(q, k, v, masks.causal(), bias=bias)
        alone = attention(q, k, v, bias=bias)
    assert out.dtype == alone.dtype == torch.bfloat16
    expected = attention(q.float(), k.float(), v.float(), masks.causal(), bias=bias)
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=0.05)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scale", [0.0, 1.0, 0.3])
def test_a_scale_of_ones_own(scale: float, path: str) -> None:
    q, k, v = qkv(1, 2, 4, 5, dtype=torch.float64)
    with on_path(path):
        out = attention(q, k, v, scale=scale)
    expected = naive_attention(q, k, v, everything, scale=scale)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_the_default_scale_keeps_the_scores_at_variance_one() -> None:
    q, k, v = qkv(4, 4, 64, 256)
    scores = weights(Parts(q, k, v, 256**-0.5), None).log()
    assert 0.9 < (scores - scores.mean(-1, keepdim=True)).var().item() < 1.1


@pytest.mark.parametrize("n", [int(SHORT**0.5) - 1, int(SHORT**0.5), int(SHORT**0.5) + 1])
def test_the_threshold_between_the_paths_cannot_be_seen(n: int) -> None:
    q, k, v = qkv(2, 2, n, 8)
    mask = masks.causal() & masks.keys(lengths_mask([n, n // 2], n))
    out = attention(q, k, v, mask)
    for path in PATHS:
        with on_path(path):
            torch.testing.assert_close(attention(q, k, v, mask), out, rtol=0, atol=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_gradients_are_those_of_the_formula(path: str) -> None:
    leaves = [x.requires_grad_() for x in qkv(2, 2, 3, 4, n_keys=5, dtype=torch.float64)]
    mask = masks.causal() & masks.keys(lengths_mask([5, 4], 5))
    with on_path(path):
        assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, mask), leaves)


@pytest.mark.parametrize("path", PATHS)
def test_dropout_drops_its_share_of_the_weights_and_keeps_the_mean(path: str) -> None:
    n, p = 64, 0.25
    q = torch.zeros(8, 4, n, n)
    v = torch.eye(n).expand(8, 4, n, n)  # the output is the matrix of weights itself
    torch.manual_seed(0)
    with on_path(path):
        matrix = attend(Parts(q, q, v, 1.0), None, p)
    dropped = (matrix == 0).float().mean().item()
    assert abs(dropped - p) < 0.01
    assert abs(matrix.mean().item() * n - 1) < 0.01
    kept = matrix[matrix != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / n / (1 - p)), rtol=1e-4, atol=0)


def test_weights_of_some_heads_and_rows_are_a_cut_of_all() -> None:
    q, k, v = qkv(2, 4, 6, 5, n_kv_heads=2)
    bias = torch.randn(1, 4, 6, 6)
    own = torch.rand(2, 4, 6, 6) < 0.7
    for mask in (None, masks.causal() & masks.keys(lengths_mask([6, 3], 6)), masks.dense(own)):
        parts = Parts(q, k, v, 0.5, bias)
        whole = weights(parts, mask)
        picked = torch.tensor([5, 0])
        assert torch.equal(weights(parts, mask, [3, 1], slice(1, 4)), whole[:, [3, 1], 1:4])
        assert torch.equal(weights(parts, mask, slice(1, 3), picked), whole[:, 1:3][:, :, picked])


def test_weights_of_half_precision_are_float32() -> None:
    q, k, v = qkv(1, 2, 4, 8, dtype=torch.bfloat16)
    matrix = weights(Parts(q, k, v, 0.5), masks.causal())
    assert matrix.dtype == torch.float32
    torch.testing.assert_close(matrix.sum(-1), torch.ones(1, 2, 4), rtol=0, atol=1e-6)


def test_grouping_repeats_each_kv_head_for_its_neighbours() -> None:
    _, k, v = qkv(1, 2, 3, 4)
    q = torch.randn(1, 6, 3, 4)
    wide = grouped(Parts(q, k, v, 1.0))
    assert torch.equal(wide.k[:, 0], wide.k[:, 2])
    assert torch.equal(wide.k[:, 3], k[:, 1])


@pytest.mark.parametrize("path", PATHS)
def test_no_keys_at_all_give_zeros(path: str) -> None:
    q, k, v = qkv(2, 2, 3, 4, n_keys=0)
    with on_path(path):
        assert torch.equal(attention(q, k, v), torch.zeros(2, 2, 3, 4))


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 3, 4), (2, 3, 4), (2, 3, 4)],
        [(2, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)],
        [(2, 2, 4, 8), (2, 2, 8, 4), (2, 2, 8, 4)],
        [(2, 4, 4, 8), (2, 3, 4, 8), (2, 3, 4, 8)],
        [(2, 2, 4, 8), (2, 2, 4, 8), (2, 2, 5, 8)],
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="attention takes q"):
        attention(*(torch.randn(shape) for shape in shapes))


@settings(deadline=None, max_examples=40)
@given(data=st.data(), path=st.sampled_from(PATHS))
def test_any_shape_and_any_matrix(data: st.DataObject, path: str) -> None:
    sizes = st.integers(1, 5)
    batch, kv, repeats, width = (data.draw(sizes) for _ in range(4))
    n_queries, n_keys = data.draw(sizes), data.draw(sizes)
    q, k, v = qkv(batch, kv * repeats, n_queries, width, n_keys=n_keys, n_kv_heads=kv,
                  dtype=torch.float64)  # fmt: skip
    count = batch * n_queries * n_keys
    bits = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    matrix = torch.tensor(bits).view(batch, 1, n_queries, n_keys)
    with on_path(path):
        out = attention(q, k, v, masks.dense(matrix))
    expected = naive_attention(q, k, v, lambda b, h, t, s: bool(matrix[b, 0, t, s]))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
