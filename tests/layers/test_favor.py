"""Random features: against softmax and plain loops in float64; what they do wrong elsewhere."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from everyhead.layers import masks
from everyhead.layers.attention import Parts
from everyhead.layers.attention import weights as softmax_weights
from everyhead.layers.favor import FavorAttention, RandomFeatures
from everyhead.layers.feature_attention import FeatureParts, attend, mix, weights
from everyhead.layers.feature_cache import FeatureSums
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.random_features import features, orthogonal
from everyhead.models.llama import Llama, LlamaConfig
from tests.layers.oracles import Written

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2}
LENGTHS = (1, 2, 3, 127, 128, 129, 300)
kinds = pytest.mark.parametrize("kernel", ["softmax", "relu"])


def parts_of(
    n: int, *, kernel: str = "softmax", dtype: torch.dtype = torch.float64, size: float = 1.0
) -> FeatureParts:
    rng = torch.Generator().manual_seed(n)
    q, k, v = (torch.randn(2, h, n, 16, generator=rng, dtype=torch.float64) for h in (4, 2, 2))
    q, k, v = ((x * s).to(dtype) for x, s in ((q, size), (k, size), (v, 1.0)))
    omega = orthogonal(24, 16, torch.Generator().manual_seed(1))
    return FeatureParts(q, k, v, 0.25, projection=omega, kernel=kernel)


def loop(parts: FeatureParts, seen: np.ndarray) -> np.ndarray:
    """φ(q)·φ(k) pair by pair, as the paper has it, in NumPy float64; seen (B, T, S)."""
    q, k, v = (x.double().numpy() for x in (parts.q, parts.k, parts.v))
    omega, root = parts.projection.double().numpy(), math.sqrt(parts.scale)
    batch, heads, n, _ = q.shape
    out = np.zeros((batch, heads, n, v.shape[-1]))

    def phi(x: np.ndarray) -> np.ndarray:
        logits = omega @ (root * x)
        if parts.kernel == "relu":
            return np.maximum(logits / math.sqrt(len(omega)), 0) + 1e-3
        return np.exp(logits - (root * x) @ (root * x) / 2) / math.sqrt(len(omega))

    for b, h, i in np.ndindex(batch, heads, n):
        total = 0.0
        for j in np.flatnonzero(seen[b, i]):
            share = phi(q[b, h, i]) @ phi(k[b, h // 2, j])
            out[b, h, i] += share * v[b, h // 2, j]
            total += share
        out[b, h, i] /= total or 1.0
    return out


def rules(n: int) -> dict[str, Mask | None]:
    real = torch.arange(n) < torch.tensor([n, n // 2 + 1])[:, None]
    apart = masks.documents(torch.arange(n).expand(2, n) // 50)
    return {
        "none": None,
        "causal": masks.causal(),
        "keys": masks.keys(real),
        "causal and left padding": masks.causal() & masks.keys(real.flip(1)),
        "documents": masks.causal() & apart,
        "documents and padding": masks.causal() & apart & masks.keys(real),
    }


def dense(mask: Mask | None, n: int) -> np.ndarray:
    seen = torch.ones(2, 1, n, n, dtype=torch.bool)
    if mask is not None:
        seen = seen & mask.rows(n, n, torch.device("cpu"))
    return seen[:, 0].numpy()


@pytest.mark.parametrize("name", rules(1))
@kinds
def test_every_pair_of_features_by_a_plain_loop(kernel: str, name: str) -> None:
    parts = parts_of(9, kernel=kernel)
    mask = rules(9)[name]
    wanted = torch.from_numpy(loop(parts, dense(mask, 9)))
    torch.testing.assert_close(attend(parts, mask), wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", TOLERANCE)
@kinds
def test_it_is_a_matrix_at_any_length(kernel: str, dtype: torch.dtype) -> None:
    for n in LENGTHS:
        parts = parts_of(n, kernel=kernel, dtype=dtype)
        for mask in rules(n).values():
            matrix = weights(parts, mask)
            sums = matrix.sum(-1)
            assert (((sums - 1).abs() < 1e-4) | (sums == 0)).all() and (matrix >= 0).all()
            error = (attend(parts, mask) - mix(matrix, parts, mask)).double().norm()
            assert error < TOLERANCE[dtype] * max(1.0, float(parts.v.double().norm()))
            some = weights(parts, mask, heads=[2], rows=slice(n // 2, None))
            torch.testing.assert_close(some, matrix[:, [2], n // 2 :])


def test_the_error_to_softmax_falls_with_the_root_of_the_number_of_features() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, 48, 16, dtype=torch.float64) / 2 for _ in range(3))
    exact = softmax_weights(Parts(q, k, v, 0.25), masks.causal())
    numbers, errors = (16, 64, 256, 1024), []
    for m in numbers:
        tries = []
        for _ in range(6):
            parts = FeatureParts(q, k, v, 0.25, projection=orthogonal(m, 16))
            tries.append((weights(parts, masks.causal()) - exact).norm() / exact.norm())
        errors.append(float(torch.stack(tries).mean()))
    slope = np.polyfit(np.log(numbers), np.log(errors), 1)[0]
    assert -0.6 < slope < -0.4 and errors[-1] < 0.2


def test_features_are_unbiased() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64) / 2
    found = []
    for _ in range(800):
        omega = orthogonal(8, 8)
        a, b = (features(z, omega, scale=0.1, kernel="softmax") for z in (x, y))
        found.append((a.values * b.values).mean() * (a.peak + b.peak).exp()[0, 0, 0])
    wanted = float((x * y).sum().mul(0.1).exp())
    assert float(torch.stack(found).mean()) == pytest.approx(wanted, rel=0.05)


def test_orthogonal_rows_err_less_than_independent_ones() -> None:
    """Of the second order: Σ (ω_i·z)², whose variance is 16 for |z| = 1 and rows by chance."""
    torch.manual_seed(0)
    z = torch.eye(8)[3]
    sums = torch.stack([(orthogonal(8, 8) @ z).square().sum() for _ in range(800)])
    assert float(sums.mean()) == pytest.approx(8, rel=0.05) and float(sums.var()) < 8


def test_rows_of_a_projection_are_orthogonal_and_as_long_as_gaussian_ones() -> None:
    omega = orthogonal(2000, 8, torch.Generator().manual_seed(0)).double()
    group = omega[:8] @ omega[:8].T
    assert (group - group.diagonal().diag()).abs().max() < 1e-5
    assert float(omega.square().sum(1).mean()) == pytest.approx(8, rel=0.05)
    assert float(omega.mean(0).abs().max()) < 0.1, "no direction is preferred"


def test_gradients_are_those_of_the_plain_matrix() -> None:
    for mask in (masks.causal(), None):
        q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64) for _ in range(3))
        omega = orthogonal(6, 4)
        inputs = [x.requires_grad_() for x in (q, k, v)]

        def out(q: Tensor, k: Tensor, v: Tensor, mask=mask, omega=omega) -> Tensor:
            return attend(FeatureParts(q, k, v, 0.5, projection=omega), mask)

        assert torch.autograd.gradcheck(out, inputs)
        share = torch.randn(1, 2, 5, 4, dtype=torch.float64)
        parts = FeatureParts(q, k, v, 0.5, projection=omega)
        fast = torch.autograd.grad((attend(parts, mask) * share).sum(), inputs)
        plain = mix(weights(parts, mask), parts, mask)
        slow = torch.autograd.grad((plain * share).sum(), inputs)
        for a, b in zip(fast, slow, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


# ------------------------------------------------------------------ known-defects.md, by name


@pytest.mark.parametrize("n", [3, 128, 200])
@kinds
def test_defect_the_future_is_not_seen_through_a_maximum_over_all_keys(kernel: str, n: int) -> None:
    """A later key with an enormous peak changes no bit of what is before it."""
    parts = parts_of(n, kernel=kernel, dtype=torch.float32)
    before = attend(parts, masks.causal())
    for t in (0, n // 2, n - 2):
        k, v = parts.k.clone(), parts.v.clone()
        k[:, :, t + 1 :] = parts.projection[0] * 5
        v[:, :, t + 1 :] = -3
        after = attend(parts._replace(k=k, v=v), masks.causal())
        assert torch.equal(after[:, :, : t + 1], before[:, :, : t + 1])
        assert not torch.equal(after[:, :, t + 1 :], before[:, :, t + 1 :])


@pytest.mark.parametrize("n_pad", [0, 6, 60])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@kinds
def test_defect_padding_does_not_stay_in_the_denominator(
    kernel: str, causal: bool, left: bool, n_pad: int
) -> None:
    """Nor does it get a gradient."""
    parts = parts_of(10, kernel=kernel, dtype=torch.float32)
    rule = masks.causal() if causal else Mask()
    wanted = attend(parts, rule)

    def padded(x: Tensor) -> Tensor:
        junk = torch.randn(*x.shape[:2], n_pad, x.shape[3]) * 4
        return torch.cat([junk, x] if left else [x, junk], 2).requires_grad_()

    q, k, v = (padded(x) for x in parts[:3])
    places = slice(n_pad, None) if left else slice(0, 10)
    real = torch.zeros(2, 10 + n_pad, dtype=torch.bool)
    real[:, places] = True
    found = attend(parts._replace(q=q, k=k, v=v), rule & masks.keys(real))
    torch.testing.assert_close(found[:, :, places], wanted, rtol=1e-5, atol=1e-5)
    found[:, :, places].square().sum().backward()
    for x in (k, v):
        assert not x.grad[:, :, ~real[0]].any() and x.grad[:, :, places].any()


@pytest.mark.parametrize("size", [0.0, 30.0, 1e4, 1e18])
@pytest.mark.parametrize("causal", [False, True])
@kinds
def test_defect_the_denominator_is_never_zero(kernel: str, causal: bool, size: float) -> None:
    """Keys far from every feature: no NaN, and rows that still sum to 1; gradients are numbers."""
    parts = parts_of(20, kernel=kernel, dtype=torch.float32, size=size)
    q, k, v = (x.detach().requires_grad_() for x in parts[:3])
    mask = masks.causal() if causal else None
    out = attend(parts._replace(q=q, k=k, v=v), mask)
    torch.testing.assert_close(weights(parts, mask).sum(-1), torch.ones(2, 4, 20))
    assert out.isfinite().all() and float(out.abs().max()) <= float(v.detach().abs().max()) * 1.001
    if size < 1e10:
        out.sum().backward()
        assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_defect_decoding_again_and_again_gives_numbers_and_the_same() -> None:
    torch.manual_seed(0)
    layer = FavorAttention(32, 4, n_features=16).eval()
    x = 5 * torch.randn(2, 300, 32)
    found = []
    for _ in range(2):
        cache = FeatureSums(300)
        with torch.no_grad():
            steps = [layer(each, masks.causal(), cache=cache) for each in x.split(1, 1)]
        found.append(torch.cat(steps, 1))
    assert torch.equal(*found) and found[0].isfinite().all()
    with torch.no_grad():
        torch.testing.assert_close(found[0], layer(x, masks.causal()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_defect_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    """300 keys in float16 would be summed to steps of a quarter; the projection stays exact."""
    torch.manual_seed(0)
    layer = FavorAttention(32, 4, n_features=64).eval()
    x = torch.randn(2, 300, 32)
    exact = layer(x, masks.causal())
    narrow = FavorAttention(32, 4, n_features=64).eval()
    narrow.load_state_dict(layer.state_dict())
    narrow = narrow.to(dtype)
    assert narrow.projection.dtype == torch.float32
    assert torch.equal(narrow.projection, layer.projection)
    found = narrow(x.to(dtype), masks.causal())
    assert found.dtype == dtype
    assert float((found.float() - exact).norm() / exact.norm()) < 1e-2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert float((layer(x, masks.causal()).float() - exact).norm() / exact.norm()) < 2e-2


@pytest.mark.parametrize("causal", [False, True])
def test_the_gradient_costs_twice_as_much_at_twice_the_length(causal: bool) -> None:
    def cost(n: int) -> int:
        q, k, v = (torch.randn(1, 1, n, 2).requires_grad_() for _ in range(3))
        parts = FeatureParts(q, k, v, 1.0, projection=torch.randn(3, 2))
        out = attend(parts, masks.causal() if causal else None)
        with Written() as written:
            out.sum().backward()
        return written.count

    assert cost(16_384) < 2.1 * cost(8192)


# ------------------------------------------------------------------ the module


def test_the_projection_is_saved_fixed_in_eval_and_redrawn_on_request() -> None:
    layer = FavorAttention(16, 2, n_features=8)
    assert "projection" in layer.state_dict() and "projection" not in dict(layer.named_parameters())
    before, x = layer.projection.clone(), torch.randn(1, 5, 16)
    layer.train()(x)
    assert torch.equal(layer.projection, before)
    layer.redraw()
    assert not torch.equal(layer.projection, before)
    with pytest.raises(ValueError, match="fixed in eval"):
        layer.eval().redraw()


@pytest.mark.parametrize(
    "mask",
    [
        masks.window(2, 0),
        masks.causal() & masks.dense(torch.ones(5, 5, dtype=torch.bool)),
        masks.documents(torch.zeros(1, 5, dtype=torch.long)),
        masks.causal(offset=2),
    ],
)
def test_a_mask_that_needs_single_scores_is_refused_at_once(mask: Mask) -> None:
    with pytest.raises(ValueError, match="random features honour padding"):
        FavorAttention(16, 2, n_features=8)(torch.randn(1, 5, 16), mask)


def test_a_bias_is_refused_at_once() -> None:
    layer, x = FavorAttention(16, 2, n_features=8), torch.randn(1, 5, 16)
    for bias in (torch.randn(1, 2, 5, 5), torch.randn(1, 1, 1, 5)):
        with pytest.raises(ValueError, match="cannot honour a bias"):
            layer(x, bias=bias)
    with pytest.raises(ValueError, match="softmax or relu"):
        FavorAttention(16, 2, kernel="cosine")


def test_it_takes_the_place_of_exact_attention_with_the_same_parameters() -> None:
    torch.manual_seed(0)
    plain = MultiHeadAttention(32, 4, n_kv_heads=2, dropout=0.1).eval()
    x = torch.randn(2, 20, 32) / 2
    other = RandomFeatures(4096).of(plain)
    assert other.q_proj is plain.q_proj and not other.training
    near = (other(x, masks.causal()) - plain(x, masks.causal())).norm()
    assert near < 0.05 * plain(x, masks.causal()).norm()
    assert torch.equal(other.projection, RandomFeatures(4096).of(plain).projection)
    with pytest.raises(ValueError, match="takes the place of exact attention, not of Favor"):
        RandomFeatures().of(other)


@torch.no_grad()
def test_in_a_model_with_rotary_positions_left_padding_and_a_cache_of_keys() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=23, d_model=32, n_heads=4, n_kv_heads=2, n_layers=2, max_len=40, d_ff=48
    )
    model = Llama(config).eval()
    for block in model.decoder.blocks:
        block.self_attn = RandomFeatures(64).of(block.self_attn)
    texts = [torch.randint(0, 23, (1, n)) for n in (6, 2)]
    ids, more = torch.zeros(2, 6, dtype=torch.long), torch.randint(0, 23, (2, 5))
    real = torch.arange(6) >= torch.tensor([[0], [4]])
    ids[0], ids[1, 4:] = texts[0], texts[1]
    cache = model.cache(11)
    model.hidden(ids, real, cache=cache)
    found = torch.cat([model.hidden(each, cache=cache) for each in more.split(1, 1)], 1)
    for i, text in enumerate(texts):
        alone = model.hidden(torch.cat([text, more[i : i + 1]], 1))[:, -5:]
        torch.testing.assert_close(found[i : i + 1], alone, rtol=1e-5, atol=1e-5)
