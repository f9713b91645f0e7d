"""Feed-forwards and the linear map below them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from everyhead import reference
from everyhead.layers.feed_forward import ACTIVATIONS, FeedForward, GatedFeedForward, activation
from everyhead.layers.linear import Linear, linear, stacked

FORMULAS = {
    "relu": lambda x: x.clamp_min(0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    ),
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations_are_their_formulas(name: str) -> None:
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    torch.testing.assert_close(activation(name)(x), FORMULAS[name](x), rtol=0, atol=1e-12)


def test_an_unknown_activation_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no activation 'swish'; there are gelu, gelu_tanh"):
        FeedForward(4, 8, f="swish")


def test_feed_forward_equals_the_reference() -> None:
    layer = FeedForward(6, 10).double()
    for p in layer.parameters():
        torch.nn.init.normal_(p)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    parameters = {name: p.detach().numpy() for name, p in layer.named_parameters()}
    expected = reference.feed_forward(parameters, x.numpy())
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_feed_forward_and_its_gated_kin_are_their_formulas(name: str) -> None:
    x = torch.randn(2, 3, 6)
    plain = FeedForward(6, 10, f=name)
    up = F.linear(x, plain.up_proj.weight, plain.up_proj.bias)
    expected = F.linear(FORMULAS[name](up), plain.down_proj.weight, plain.down_proj.bias)
    torch.testing.assert_close(plain(x), expected, rtol=0, atol=1e-5)
    gated = GatedFeedForward(6, 10, f=name)
    gate, up = x @ gated.gate_proj.weight.T, x @ gated.up_proj.weight.T
    expected = (FORMULAS[name](gate) * up) @ gated.down_proj.weight.T
    torch.testing.assert_close(gated(x), expected, rtol=0, atol=1e-5)
    assert len(list(gated.parameters())) == 3


def test_each_token_is_mapped_for_itself() -> None:
    x = torch.randn(2, 5, 6)
    for layer in (FeedForward(6, 10), GatedFeedForward(6, 10)):
        out = layer(x)
        changed = x.clone()
        changed[0, 2] += 1
        after = layer(changed)
        same = torch.ones(2, 5, dtype=torch.bool)
        same[0, 2] = False
        assert torch.equal(after[same], out[same])


def test_linear_is_x_times_the_transposed_weight_plus_bias() -> None:
    layer = Linear(3, 5)
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(2, 4, 3)
    expected = x @ layer.weight.T + layer.bias
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-6)
    assert torch.equal(linear(x, layer.weight, layer.bias), layer(x))
    assert Linear(3, 5, bias=False).bias is None


def test_reset_draws_weights_anew_and_clears_the_bias() -> None:
    torch.manual_seed(0)
    layer = Linear(300, 200)
    before = layer.weight.detach().clone()
    torch.nn.init.ones_(layer.bias)
    layer.reset()
    assert not torch.equal(layer.weight, before)
    assert torch.equal(layer.bias, torch.zeros(200))
    limit = (6 / 500) ** 0.5
    assert layer.weight.abs().max() <= limit
    assert layer.weight.std().item() == pytest.approx(limit / 3**0.5, rel=0.02)


@pytest.mark.parametrize("bias", [True, False])
def test_stacked_maps_are_the_maps_side_by_side(bias: bool) -> None:
    maps = [Linear(3, n, bias=bias) for n in (2, 5, 1)]
    x = torch.randn(4, 3)
    together = linear(x, *stacked(maps))
    expected = torch.cat([m(x) for m in maps], -1)
    torch.testing.assert_close(together, expected, rtol=0, atol=1e-6)
