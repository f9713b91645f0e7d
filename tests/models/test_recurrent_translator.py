"""Bahdanau's network against a loop of the paper's equations in NumPy, and torch.nn's layers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from everyhead.generation.search import search
from everyhead.inspection.trace import record
from everyhead.layers.additive import AdditiveAttention, AdditiveParts
from everyhead.layers.masks import keys
from everyhead.models.recurrent_translator import RecurrentTranslator, RecurrentTranslatorConfig
from everyhead.weights.folder import load_model, save_model

C = 12


def translator(cell: str = "gru", **choices: Any) -> RecurrentTranslator:
    torch.manual_seed(0)
    config = RecurrentTranslatorConfig(vocab_size=30, cell=cell, d_model=C, **choices)
    model = RecurrentTranslator(config).eval()
    for p in model.parameters():
        if p.dim() == 1:
            nn.init.normal_(p)
    return model


def ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(1, 29, shape, generator=torch.Generator().manual_seed(seed))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gru(x: np.ndarray, h: np.ndarray, w: list[np.ndarray]) -> np.ndarray:
    """torch's GRU (1412.3555): reset and update gates, W_ih, W_hh, b_ih, b_hh."""
    a, b = w[0] @ x + w[2], w[1] @ h + w[3]
    r, z = sigmoid(a[:C] + b[:C]), sigmoid(a[C : 2 * C] + b[C : 2 * C])
    n = np.tanh(a[2 * C :] + r * b[2 * C :])
    return (1 - z) * n + z * h


def numbers(module: nn.Module) -> list[np.ndarray]:
    return [p.detach().numpy() for p in module.parameters()]


def paper(model: RecurrentTranslator, source: Tensor, target: Tensor) -> tuple[Any, Any]:
    """Logits (T, V) and α (T, S) of one pair, one number after the other, in float64."""
    table, cells = model.target_embed.weight.detach().numpy(), numbers(model.encoder)
    x = table[source]
    forwards, backwards, h = [], [], np.zeros(C)
    for row in x:
        h = gru(row, h, cells[:4])
        forwards.append(h)
    h = np.zeros(C)
    for row in x[::-1]:
        h = gru(row, h, cells[4:])
        backwards.insert(0, h)
    annotations = [np.concatenate(pair) for pair in zip(forwards, backwards, strict=True)]
    layer: Any = model.decoder[0]
    w, u = (numbers(m)[0] for m in (layer.cross_attn.q_proj, layer.cross_attn.k_proj))
    v = layer.cross_attn.score.detach().numpy()
    first, readout = numbers(model.first_state), numbers(layer.readout)
    s = np.tanh(first[0] @ backwards[0] + first[1])
    logits, alphas = [], []
    for y in table[target]:
        e = np.array([v @ np.tanh(w @ s + u @ h) for h in annotations])
        alpha = np.exp(e) / np.exp(e).sum()
        context = sum(a * h for a, h in zip(alpha, annotations, strict=True))
        s = gru(np.concatenate([y, context]), s, numbers(layer.cell))
        t = readout[0] @ np.concatenate([s, y, context]) + readout[1]
        t = np.array([max(t[2 * i], t[2 * i + 1]) for i in range(C)])
        logits.append(table @ t + model.output_head.bias.detach().numpy())
        alphas.append(alpha)
    return np.stack(logits), np.stack(alphas)


def test_logits_and_alignment_are_the_papers_equations() -> None:
    model = translator().double()
    source, target = ids(1, 6), ids(1, 5, seed=2)
    with torch.no_grad(), record(model) as trace:
        found = model(source, target)[0].numpy()
    wanted, alpha = paper(model, source[0], target[0])
    real = slice(0, model.config.pad_id)
    assert np.abs(found[:, real] - wanted[:, real]).max() < 1e-12
    seen = trace["decoder.0.cross_attn"].weights()[0, 0].numpy()
    assert np.abs(seen - alpha).max() < 1e-12 and alpha.max() > 1.5 / 6


@pytest.mark.parametrize(("cell", "kind"), [("rnn", nn.RNN), ("lstm", nn.LSTM), ("gru", nn.GRU)])
@torch.no_grad()
def test_annotations_are_those_of_torchs_layers_sentence_by_sentence(cell: str, kind: Any) -> None:
    model = translator(cell, n_encoder_layers=2)
    layers = kind(C, C, 2, batch_first=True, bidirectional=True)
    layers.load_state_dict(model.encoder.state_dict())
    rows = [ids(n, seed=n) for n in (7, 1, 4)]
    source = pad_sequence(rows, batch_first=True, padding_value=model.config.pad_id)
    real = source != model.config.pad_id
    for flipped in (False, True):  # padding right and left
        turned = [torch.cat([r[r == 29], r[r != 29]]) for r in source] if flipped else list(source)
        mask = real.flip(1) if flipped else real
        memory = model.encode(torch.stack(turned), mask)
        for i, row in enumerate(rows):
            wanted = layers(model.target_embed(row)[None])[0][0]
            torch.testing.assert_close(memory.states[i, mask[i]], wanted, rtol=1e-5, atol=1e-6)
        assert not memory.states[~mask].any()


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_the_decoders_states_are_those_of_torchs_layer_over_its_contexts(cell: str) -> None:
    """Given what was looked at, the recurrence is an ordinary one: contexts beside embeddings."""
    model = translator(cell, tie_output=False)
    source, target = ids(2, 6), ids(2, 5, seed=2)
    with torch.no_grad(), record(model) as trace:
        hidden = model.hidden(source, target)
        memory = model.encode(source)
    contexts = trace["decoder.0.cross_attn"].output()[:, 0]  # (B, T, 2C)
    layer: Any = model.decoder[0]
    whole = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}[cell](3 * C, C, batch_first=True)
    whole.load_state_dict({f"{k}_l0": v for k, v in layer.cell.state_dict().items()})
    y = model.target_embed(target)
    s = torch.tanh(model.first_state(memory.states[:, 0, C:]))[None]
    states, _ = whole(
        torch.cat([y, contexts], -1), (s, torch.zeros_like(s)) if cell == "lstm" else s
    )
    wanted = layer.readout(torch.cat([states, y, contexts], -1)).unflatten(-1, (-1, 2)).amax(-1)
    torch.testing.assert_close(hidden, wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_attending_is_mixing_by_the_weights_and_junk_behind_a_mask_is_not_read() -> None:
    layer = AdditiveAttention(C, 2 * C, d_score=C)
    nn.init.normal_(layer.score)
    rng = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 1, n, d, generator=rng) for n, d in ((5, C), (7, C), (7, 2 * C)))
    real = torch.ones(2, 7, dtype=torch.bool)
    real[0, 4:], real[1] = False, False
    parts: Any = AdditiveParts(q, k, v, score=layer.score)
    dirty = parts._replace(
        k=k.masked_fill(~real[:, None, :, None], float("nan")),
        v=v.masked_fill(~real[:, None, :, None], float("inf")),
    )
    for mask in (None, keys(real)):
        of = parts if mask is None else dirty
        weights = layer.weights(of, mask)
        torch.testing.assert_close(layer.attend(of, mask), layer.mix(weights, of, mask))
        assert torch.equal(layer.weights(of, mask, rows=slice(2, 4)), weights[:, :, 2:4])
    assert not weights[0, ..., 4:].any() and not weights[1].any()


def test_a_search_is_followed_and_shows_what_one_pass_shows() -> None:
    model = translator()
    source = ids(2, 6)
    with torch.inference_mode():
        for beam in (1, 3):
            with record(model) as trace:
                best = [found[0].ids for found in search(model, source, beam=beam, max_len=7)]
            trace.follow(best)
            steps = trace["decoder.0.cross_attn"].weights()
            for i, written in enumerate(best):
                target = torch.tensor([[model.config.pad_id, *written]])[:, : steps.shape[2]]
                with record(model) as whole:
                    model(source[i : i + 1], target)
                wanted = whole["decoder.0.cross_attn"].weights()[0]
                n = len(written)
                torch.testing.assert_close(steps[i][:, :n], wanted[:, :n], rtol=0, atol=1e-6)


def test_a_trace_keeps_its_matrix_when_the_model_learns_on() -> None:
    model = translator()
    with record(model) as trace:
        model(ids(1, 4), ids(1, 3)).logsumexp(-1).sum().backward()
    layer: Any = model.decoder[0]
    assert layer.cross_attn.score.grad.abs().sum() > 0
    before = trace["decoder.0.cross_attn"].weights().clone()
    with torch.no_grad():
        layer.cross_attn.score.mul_(-5)
    assert torch.equal(trace["decoder.0.cross_attn"].weights(), before)


@pytest.mark.parametrize("choices", [{}, {"source_vocab_size": 20, "tie_output": False}])
def test_a_folder_gives_the_same_model(tmp_path: Path, choices: dict[str, Any]) -> None:
    model = translator("lstm", **choices)
    save_model(model, tmp_path)
    again: Any = load_model(tmp_path)
    assert again.config == model.config
    source, target = ids(1, 4) % 19, ids(1, 3)
    assert torch.equal(again.eval()(source, target), model(source, target))


@pytest.mark.slow
def test_it_learns_to_turn_a_sentence_round() -> None:
    """And looks where it reads from: the last word first."""
    torch.manual_seed(0)
    model = RecurrentTranslator(RecurrentTranslatorConfig(vocab_size=12, d_model=32, dropout=0))
    adam = torch.optim.Adam(model.parameters(), lr=8e-3)
    rng = torch.Generator().manual_seed(5)
    for _ in range(150):
        source = torch.randint(1, 11, (48, 5), generator=rng)
        target = torch.cat([torch.full((48, 1), 11), source.flip(1)], 1)
        logits = model(source, target[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert loss.item() < 0.1
    model.eval()
    with torch.no_grad(), record(model) as trace:
        model(source[:4], target[:4, :-1])
    looked = trace["decoder.0.cross_attn"].weights()[:, 0].mean(0)  # (T, S)
    assert looked.argmax(1).tolist() == [4, 3, 2, 1, 0] and looked.amax(1).min() > 0.5
