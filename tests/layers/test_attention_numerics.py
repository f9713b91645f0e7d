"""Defects that attentions had in public: masks, NaN, half precision. One row, one name."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from everyhead.layers import masks
from everyhead.layers.attention import Parts, attend, attention, mix, weights
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from tests.layers.oracles import LENGTHS, PATHS, lengths_mask, on_path, qkv, relative_error

NARROW = [torch.float32, torch.bfloat16, torch.float16]
JUNK = [float("nan"), float("inf"), float("-inf"), 1e30]


def run(
    parts: tuple[Tensor, ...], mask: Mask | None, path: str, upstream: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The output and the gradients of q, k and v."""
    leaves = [x.detach().clone().requires_grad_() for x in parts]
    with on_path(path):
        out = attention(*leaves, mask)
        grads = torch.autograd.grad(
            out, leaves, torch.ones_like(out) if upstream is None else upstream
        )
    return out.detach(), grads


# ------------------------------------------------------------------ rows that see nothing


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("path", PATHS)
def test_a_sentence_without_tokens_gives_zeros_and_finite_gradients(
    path: str, dtype: torch.dtype
) -> None:
    parts = qkv(2, 2, 3, 8, n_keys=4, dtype=dtype)
    out, grads = run(parts, masks.keys(lengths_mask([4, 0], 4)), path)
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert out.isfinite().all()
    assert all(g.isfinite().all() for g in grads)
    assert all(torch.equal(g[1], torch.zeros_like(g[1])) for g in grads)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("path", PATHS)
def test_a_dense_row_without_keys_gives_zeros_and_finite_gradients(
    path: str, dtype: torch.dtype
) -> None:
    matrix = torch.ones(4, 4, dtype=torch.bool)
    matrix[2] = False
    out, grads = run(qkv(2, 2, 4, 8, dtype=dtype), masks.dense(matrix), path)
    assert torch.equal(out[:, :, 2], torch.zeros_like(out[:, :, 2]))
    assert torch.equal(grads[0][:, :, 2], torch.zeros_like(out[:, :, 2]))
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("path", PATHS)
def test_left_padding_under_a_causal_mask_gives_zeros_not_nan(path: str) -> None:
    mask = masks.causal() & masks.keys(lengths_mask([5, 2], 5, left=True))
    out, grads = run(qkv(2, 2, 5, 8), mask, path)
    assert torch.equal(out[1, :, :3], torch.zeros(2, 3, 8))
    assert out.isfinite().all() and all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("path", PATHS)
def test_more_causal_queries_than_keys_give_zeros_to_the_first(path: str) -> None:
    out, _ = run(qkv(1, 2, 5, 8, n_keys=3), masks.causal(), path)
    assert torch.equal(out[:, :, :2], torch.zeros(1, 2, 2, 8))
    assert (out[:, :, 2:].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("path", PATHS)
def test_hidden_rows_are_zero_and_not_the_average_of_the_padding(path: str) -> None:
    q, k, v = qkv(1, 1, 2, 8, n_keys=3)
    out, _ = run((q, k, v + 100), masks.keys(torch.zeros(1, 3, dtype=torch.bool)), path)
    assert torch.equal(out, torch.zeros(1, 1, 2, 8))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("zeroed", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_hidden_rows_with_very_low_scores_do_not_become_nan(
    path: str, zeroed: bool, dtype: torch.dtype
) -> None:
    """An additive finfo.min overflows to −∞ in float16, and a row of −∞ is NaN."""
    q, k = torch.full((1, 1, 2, 4), -40.0, dtype=dtype), torch.full((1, 1, 3, 4), 40.0, dtype=dtype)
    v = torch.randn(1, 1, 3, 4).to(dtype)
    out, grads = run((q, k, v), masks.keys(lengths_mask([0], 3), zeroed=zeroed), path)
    assert torch.equal(out, torch.zeros_like(out))
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("path", PATHS)
def test_very_low_visible_scores_still_beat_hidden_ones(path: str) -> None:
    q = torch.full((1, 1, 1, 4), -1e10)
    k = torch.tensor([1e10, 1e10, -1e10]).view(1, 1, 3, 1).expand(1, 1, 3, 4)
    v = torch.tensor([1.0, 3.0, 100.0]).view(1, 1, 3, 1).expand(1, 1, 3, 4)
    out, _ = run((q, k, v), masks.keys(torch.tensor([[True, True, False]]), zeroed=True), path)
    torch.testing.assert_close(out, torch.full((1, 1, 1, 4), 2.0))


# ------------------------------------------------------------------ what the key mask hides


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("path", PATHS)
def test_junk_under_the_key_mask_never_leaks(path: str, side: str, junk: float) -> None:
    """Outputs and all gradients equal those with zeros there, though k and v both hold junk."""
    real = lengths_mask([5, 3, 0], 5, left=side == "left")
    mask = masks.keys(real)
    q, k, v = qkv(3, 2, 4, 8, n_keys=5)
    hidden = ~real[:, None, :, None]
    upstream = torch.randn(3, 2, 4, 8)
    with_junk = (q, k.masked_fill(hidden, junk), v.masked_fill(hidden, junk))
    with_zeros = (q, k.masked_fill(hidden, 0), v.masked_fill(hidden, 0))
    out, grads = run(with_junk, mask, path, upstream)
    expected, wanted = run(with_zeros, mask, path, upstream)
    assert torch.equal(out, expected)
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))
    assert out.isfinite().all() and all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("path", PATHS)
def test_junk_under_the_key_mask_never_leaks_through_grouped_heads_and_other_rules(
    path: str, junk: float
) -> None:
    real = lengths_mask([6, 4], 6)
    mask = masks.window(2, 2) & masks.keys(real) & masks.causal()
    q, k, v = qkv(2, 4, 6, 8, n_kv_heads=2)
    hidden = ~real[:, None, :, None]
    with_junk = (q, k.masked_fill(hidden, junk), v.masked_fill(hidden, junk))
    out, grads = run(with_junk, mask, path)
    expected, wanted = run((q, k, v), mask, path)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
    assert all(g.isfinite().all() for g in grads)
    torch.testing.assert_close(grads[0], wanted[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("junk", JUNK)
def test_junk_under_the_key_mask_stays_out_of_the_matrix_too(junk: float) -> None:
    real = lengths_mask([3], 5)
    q, k, v = qkv(1, 2, 4, 8, n_keys=5)
    hidden = ~real[:, None, :, None]
    parts = Parts(q, k.masked_fill(hidden, junk), v.masked_fill(hidden, junk), 0.3)
    matrix = weights(parts, masks.keys(real))
    assert torch.equal(matrix, weights(Parts(q, k, v, 0.3), masks.keys(real)))
    assert matrix[..., 3:].eq(0).all()
    assert mix(matrix, parts, masks.keys(real)).isfinite().all()


@pytest.mark.parametrize("junk", JUNK)
def test_junk_in_hidden_rows_of_a_memory_never_reaches_the_output_of_a_layer(junk: float) -> None:
    layer = MultiHeadAttention(8, 2)
    real = lengths_mask([4, 2], 4)
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    out = layer(x, masks.keys(real), memory.masked_fill(~real[..., None], junk))
    expected = layer(x, masks.keys(real), memory.masked_fill(~real[..., None], 0.0))
    assert torch.equal(out, expected)


@pytest.mark.parametrize("path", PATHS)
def test_a_mask_that_hides_nothing_is_no_mask(path: str) -> None:
    parts = qkv(2, 2, 4, 8)
    bare, wanted = run(parts, None, path)
    for mask in (
        masks.keys(torch.ones(2, 4, dtype=torch.bool)),
        masks.dense(torch.ones(4, 4, dtype=torch.bool)),
        masks.window(3, 3),
        Mask(),
    ):
        out, grads = run(parts, mask, path)
        torch.testing.assert_close(out, bare, rtol=0, atol=1e-6)
        for a, b in zip(grads, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


# ------------------------------------------------------------------ half precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("path", PATHS)
def test_masks_do_not_overflow_in_half_precision(path: str, dtype: torch.dtype) -> None:
    parts = qkv(2, 2, 6, 16, dtype=dtype)
    mask = masks.causal() & masks.keys(lengths_mask([6, 3], 6))
    out, grads = run(parts, mask, path)
    expected, wanted = run(tuple(x.float() for x in parts), mask, path)
    assert out.dtype == dtype
    assert relative_error(out, expected) < 1e-2
    for a, b in zip(grads, wanted, strict=True):
        assert relative_error(a, b) < 2e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("path", PATHS)
def test_masks_do_not_overflow_under_autocast(path: str, dtype: torch.dtype) -> None:
    layer = MultiHeadAttention(16, 2)
    x = torch.randn(2, 6, 16)
    mask = masks.causal() & masks.keys(lengths_mask([6, 0], 6))
    with on_path(path):
        expected = layer(x, mask)
        with torch.autocast("cpu", dtype=dtype):
            out = layer(x, mask)
        out.float().sum().backward()
    assert relative_error(out, expected) < 2e-2
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("path", PATHS)
def test_float32_parts_may_meet_autocast(path: str) -> None:
    q, k, v = qkv(2, 2, 6, 16)
    mask = masks.keys(lengths_mask([6, 2], 6))
    with on_path(path), torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(q, k, v, mask)
    assert relative_error(out, attention(q, k, v, mask)) < 2e-2


# ------------------------------------------------------------------ meaning and order


@pytest.mark.parametrize("path", PATHS)
def test_true_means_may_look_as_in_torchs_function(path: str) -> None:
    q, k, v = qkv(2, 2, 5, 8)
    matrix = torch.rand(2, 2, 5, 5) < 0.5
    matrix[..., 0] = True
    with on_path(path):
        out = attention(q, k, v, masks.dense(matrix))
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=matrix)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", LENGTHS)
def test_a_causal_query_never_sees_the_future(n: int, path: str) -> None:
    """Bit-equal, forwards and backwards: no upper triangle where a lower one belongs."""
    parts = qkv(1, 2, n, 8)
    for mask in (masks.causal(), masks.causal() & masks.keys(lengths_mask([n], n))):
        before, _ = run(parts, mask, path)
        for t in {0, n // 2, n - 2} & set(range(n - 1)):
            changed = [x.clone() for x in parts]
            for x in changed:
                x[:, :, t + 1 :] += 1
            after, _ = run(tuple(changed), mask, path)
            assert torch.equal(after[:, :, : t + 1], before[:, :, : t + 1])
            upstream = torch.zeros_like(before)
            upstream[:, :, : t + 1] = 1
            _, grads = run(parts, mask, path, upstream)
            assert all(g[:, :, t + 1 :].eq(0).all() for g in grads)


@pytest.mark.parametrize("path", PATHS)
def test_the_order_of_keys_does_not_matter_to_a_query(path: str) -> None:
    q, k, v = qkv(2, 2, 4, 8, n_keys=7, dtype=torch.float64)
    order = torch.randperm(7)
    real = lengths_mask([7, 3], 7)
    with on_path(path):
        out = attention(q, k, v, masks.keys(real))
        again = attention(q, k[:, :, order], v[:, :, order], masks.keys(real[:, order]))
    torch.testing.assert_close(again, out, rtol=0, atol=1e-12)


def test_a_padding_mask_on_the_query_axis_is_refused() -> None:
    q, k, v = qkv(2, 2, 4, 8, n_keys=6)
    for path in PATHS:
        for wrong in (lengths_mask([4, 2], 4), lengths_mask([1, 0], 1)):
            for zeroed in (False, True):
                with on_path(path), pytest.raises(ValueError, match="the key mask is made for"):
                    attention(q, k, v, masks.keys(wrong, zeroed=zeroed))


@pytest.mark.parametrize(
    "make",
    [
        lambda n: masks.causal(),
        lambda n: masks.causal() & masks.keys(lengths_mask([n - 300], n)),
        lambda n: masks.window(100, 0),
        lambda n: masks.window(700, -500),  # whole blocks of a row are hidden
    ],
)
def test_long_sequences_equal_the_matrix_in_chunks(make) -> None:
    n = 1300
    q, k, v = qkv(1, 1, n, 8, dtype=torch.float64)
    parts, mask = Parts(q, k, v, 8**-0.5), make(n)
    out = attend(parts, mask)
    for start in range(0, n, 256):
        rows = slice(start, start + 256)
        chunk = mix(weights(parts, mask, rows=rows), parts, mask)
        torch.testing.assert_close(out[:, :, rows], chunk, rtol=0, atol=1e-10)


def test_training_and_evaluation_are_the_same_without_dropout() -> None:
    layer = MultiHeadAttention(16, 2)
    x, mask = torch.randn(2, 6, 16), masks.keys(lengths_mask([6, 3], 6))
    train = layer.train()(x, mask)
    with torch.no_grad():
        evaluate = layer.eval()(x, mask)
    assert torch.equal(train, evaluate)
