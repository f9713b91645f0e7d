"""Residuals and the norm they wrap."""

import numpy as np
import pytest
import torch
from torch import nn

from everyhead import reference
from everyhead.layers.norms import LayerNorm
from everyhead.layers.residual import PostNorm, PreNorm


def test_layer_norm_is_its_formula_with_epsilon_under_the_root() -> None:
    norm = LayerNorm(6).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(2, 3, 6, dtype=torch.float64) * 1e-2  # small, so that epsilon is felt
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    expected = expected * norm.weight + norm.bias
    torch.testing.assert_close(norm(x), expected, rtol=0, atol=1e-12)
    parameters = {name: p.detach().numpy() for name, p in norm.named_parameters()}
    np.testing.assert_allclose(
        norm(x).detach().numpy(), reference.layer_norm(parameters, x.numpy()), rtol=0, atol=1e-12
    )


def test_layer_norm_starts_as_the_plain_one() -> None:
    x = torch.randn(2, 3, 6) * 5 + 2
    out = LayerNorm(6)(x)
    torch.testing.assert_close(out.mean(-1), torch.zeros(2, 3), rtol=0, atol=1e-6)
    torch.testing.assert_close(out.var(-1, unbiased=False), torch.ones(2, 3), rtol=0, atol=1e-4)


def test_layer_norm_of_equal_features_is_finite() -> None:
    x = torch.full((1, 6), 7.0, requires_grad=True)
    out = LayerNorm(6)(x)
    out.square().sum().backward()
    assert torch.equal(out, torch.zeros(1, 6)) and x.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layer_norm_of_large_half_precision_does_not_overflow(dtype: torch.dtype) -> None:
    x = (torch.randn(3, 64) * 3000).to(dtype)
    out = LayerNorm(64).to(dtype)(x)
    assert out.isfinite().all()
    torch.testing.assert_close(out.float(), LayerNorm(64)(x.float()), rtol=0, atol=0.02)


def test_post_norm_and_pre_norm_are_their_formulas() -> None:
    x, norm, f = torch.randn(2, 3, 6), LayerNorm(6), nn.Linear(6, 6)
    assert torch.equal(PostNorm()(x, norm, f), norm(x + f(x)))
    assert torch.equal(PreNorm()(x, norm, f), x + f(norm(x)))


@pytest.mark.parametrize("kind", [PostNorm, PreNorm])
def test_dropout_falls_on_the_sublayer_and_never_on_the_stream(kind: type) -> None:
    residual = kind(0.5)
    x, ones = torch.zeros(64, 64), torch.ones(64, 64)
    out = residual.train()(x, nn.Identity(), lambda y: ones)
    assert set(out.unique().tolist()) == {0.0, 2.0}
    kept = residual(torch.ones(64, 64), nn.Identity(), lambda y: 0 * ones)
    assert torch.equal(kept, ones)
    assert torch.equal(residual.eval()(x, nn.Identity(), lambda y: ones), ones)


@pytest.mark.parametrize("kind", [PostNorm, PreNorm])
def test_a_residual_owns_no_parameters(kind: type) -> None:
    assert list(kind(0.1).parameters()) == [] and kind(0.1).state_dict() == {}


def test_a_wide_stream_and_a_narrow_sublayer_keep_the_stream_wide() -> None:
    x, narrow = torch.randn(4, 8), torch.ones(4, 8, dtype=torch.bfloat16)
    for residual in (PreNorm(0.0), PreNorm(0.5).train()):
        assert residual(x, nn.Identity(), lambda y: narrow).dtype == torch.float32
