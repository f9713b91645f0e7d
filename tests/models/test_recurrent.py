"""Recurrent and convolutional language models against torch.nn's layers, put together by hand."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyhead.layers.states import StateCache
from everyhead.models import MODELS
from everyhead.models.convolutional import Convolutional, ConvolutionalConfig
from everyhead.models.recurrent import Recurrent, RecurrentConfig

NEAR = {"rtol": 1e-5, "atol": 1e-6}


def ids(*shape: int) -> Tensor:
    return torch.randint(0, 30, shape, generator=torch.Generator().manual_seed(1))


def recurrent(cell: str, **choices: Any) -> Recurrent:
    torch.manual_seed(0)
    config = RecurrentConfig(vocab_size=30, cell=cell, d_model=16, **choices)
    return Recurrent(config).eval()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("cell", "kind"), [("rnn", nn.RNN), ("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_logits_and_gradients_are_those_of_torchs_layers(cell: str, kind: Any, tied: bool) -> None:
    model = recurrent(cell, tie_output=tied, n_layers=3)
    table, layers = nn.Embedding(30, 16), kind(16, 16, 3, batch_first=True)
    layers.load_state_dict(model.cells.state_dict())
    table.weight = nn.Parameter(model.token_embed.weight.detach().clone())
    out = table.weight if tied else nn.Parameter(model.output_head.weight.detach().clone())
    text = ids(3, 11)
    wanted = layers(table(text))[0] @ out.t()
    found = model(text)
    torch.testing.assert_close(found, wanted, **NEAR)
    for logits in (found, wanted):
        logits.log_softmax(-1)[..., 2].sum().backward()
    torch.testing.assert_close(model.token_embed.weight.grad, table.weight.grad, **NEAR)
    for p, q in zip(model.cells.parameters(), layers.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, **NEAR)


def test_the_plain_cell_is_its_equation() -> None:
    """In NumPy, float64: h_t = tanh(W x_t + b + U h_{t−1} + c)."""
    model = recurrent("rnn", n_layers=1).double()
    w, u, b, c = (p.detach().numpy() for p in model.cells.parameters())
    text = ids(1, 7)
    x, h = model.token_embed.weight.detach().numpy()[text[0]], np.zeros(16)
    rows = []
    for row in x:
        h = np.tanh(w @ row + b + u @ h + c)
        rows.append(h)
    found = model.hidden(text)[0].detach().numpy()
    assert np.abs(found - np.stack(rows)).max() < 1e-12


@pytest.mark.parametrize("kernel_size", [2, 3, 5])
def test_a_convolution_is_a_sum_over_the_places_before(kernel_size: int) -> None:
    """Each layer by a naive loop over places and kernel."""
    torch.manual_seed(0)
    numbers = {"vocab_size": 30, "d_model": 8, "n_layers": 3, "kernel_size": kernel_size}
    model = Convolutional(ConvolutionalConfig(**numbers)).eval().double()
    text = ids(2, 13)
    x = F.embedding(text, model.token_embed.weight)
    for i, layer in enumerate(model.layers):
        y = F.layer_norm(x, (8,), layer.norm.weight, layer.norm.bias)
        new = torch.zeros_like(x)
        for t in range(13):
            inner = layer.kernel.bias.expand(2, 8)
            for j in range(kernel_size):
                place = t - (kernel_size - 1 - j) * 2**i
                if place >= 0:
                    inner = inner + y[:, place] @ layer.kernel.weight[:, :, j].t()
            new[:, t] = F.gelu(inner) @ layer.mix.weight[:, :, 0].t() + layer.mix.bias
        x = x + new
    x = F.layer_norm(x, (8,), model.norm.weight, model.norm.bias)
    torch.testing.assert_close(model.hidden(text), x, rtol=0, atol=1e-10)


def test_an_output_depends_on_the_places_in_reach_and_no_other() -> None:
    config = ConvolutionalConfig(vocab_size=50, d_model=8, n_layers=3, kernel_size=3, dropout=0.0)
    torch.manual_seed(0)
    model = Convolutional(config)
    assert config.reach == 15
    model.hidden(torch.arange(40)[None])[0, 30].square().sum().backward()
    touched = model.token_embed.weight.grad.abs().sum(1) > 0
    assert touched.nonzero()[:, 0].tolist() == list(range(30 - 14, 31))


def test_a_state_goes_back_to_where_a_call_ended_and_nowhere_else() -> None:
    model, text = recurrent("gru"), ids(2, 9)
    cache = model.cache(9)
    with torch.no_grad():
        for piece in text.split([3, 4, 2], 1):
            model.hidden(piece, cache=cache)
        with pytest.raises(ValueError, match="a call ended: 0, 3, 7"):
            cache.crop(5)
        cache.crop(3)
        again = model.hidden(text[:, 3:], cache=cache)
        torch.testing.assert_close(again, model.hidden(text)[:, 3:], **NEAR)
        cache.reorder(torch.tensor([1, 1]))
        with pytest.raises(ValueError, match="a call ended: 0"):
            cache.crop(3)
        cache.crop(0)
    assert cache.state is None and isinstance(cache, StateCache) and cache.key_mask is None


@pytest.mark.parametrize("family", ["recurrent", "convolutional"])
def test_each_preset_is_made_and_counted(family: str) -> None:
    entry = MODELS[family]
    for numbers in entry.presets.values():
        with torch.device("meta"):
            model = entry.model(entry.config(**numbers))
        c = model.config
        n = sum(p.numel() for p in model.parameters())
        gates = {"rnn": 1, "gru": 3, "lstm": 4}
        if family == "recurrent":
            cells = c.n_layers * gates[c.cell] * (2 * c.d_model**2 + 2 * c.d_model)
            assert n == c.vocab_size * c.d_model + cells
        else:
            layer = (c.kernel_size + 1) * c.d_model**2 + 4 * c.d_model
            assert n == c.vocab_size * c.d_model + c.n_layers * layer + 2 * c.d_model


@pytest.mark.parametrize("family", ["recurrent", "convolutional"])
def test_it_learns_to_repeat(family: str) -> None:
    """Every third piece comes again: the loss falls to nearly nothing."""
    torch.manual_seed(0)
    n_layers = 1 if family == "recurrent" else 2
    numbers = {"vocab_size": 30, "d_model": 16, "n_layers": n_layers, "dropout": 0.0}
    entry = MODELS[family]
    model = entry.model(entry.config(**numbers)).train()
    text = ids(4, 3).repeat(1, 6)
    optimizer = torch.optim.Adam(model.parameters(), 3e-2)
    for _ in range(60):
        loss = F.cross_entropy(model(text)[:, 3:-1].flatten(0, 1), text[:, 4:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.2
