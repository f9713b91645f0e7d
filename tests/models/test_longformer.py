"""Longformer beside Hugging Face's attention of one layer, its sizes, positions and marks."""

import pytest
import torch
from transformers import LongformerConfig as TheirConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from everyhead.inspection.trace import record
from everyhead.inspection.weightless import Unmade
from everyhead.layers import masks
from everyhead.layers.window import WindowAttention
from everyhead.models.bert import Bert, BertConfig
from everyhead.models.longformer import PRESETS, Longformer, LongformerConfig

SIZES = {"vocab_size": 60, "d_model": 32, "n_heads": 4, "d_ff": 48, "max_len": 50}


def model(n_layers=2, **changes):
    torch.manual_seed(0)
    fields = {**SIZES, "windows": 4, **changes}
    made = Longformer(LongformerConfig(n_layers=n_layers, **fields)).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(8) if p.dim() > 1 else p.add_(0.2 * torch.randn_like(p))
    return made


def test_base_has_149_million_parameters_and_large_435():
    for name, millions in (("base", 148.7), ("large", 434.6)):
        with Unmade():
            made = Longformer(LongformerConfig(**PRESETS[name]))
        n = sum(p.numel() for p in made.parameters())
        assert n / 1e6 == pytest.approx(millions, abs=0.1)


@torch.no_grad()
def test_a_layer_s_matrix_is_theirs_local_and_global_rows():
    """Their attention hands out both kinds of weights; a trace shows them as one matrix."""
    torch.manual_seed(0)
    ours = WindowAttention(32, 4, left=4, right=4).eval()
    config = TheirConfig(hidden_size=32, num_attention_heads=4, attention_window=[8])
    theirs = LongformerSelfAttention(config, 0).eval()
    pairs = {"query": ours.q_proj, "key": ours.k_proj, "value": ours.v_proj}
    pairs |= {f"{n}_global": getattr(ours, f"{n[0]}_global") for n in ("query", "key", "value")}
    for name, part in pairs.items():
        getattr(theirs, name).load_state_dict(part.state_dict())
    n, x = 24, torch.randn(2, 24, 32) * 3
    marked = torch.zeros(2, n, dtype=torch.bool)
    marked[:, [0, 11]] = True
    out, near, far = theirs(
        x, torch.where(marked, 1e4, 0.0), torch.zeros_like(marked), marked, True, True
    )
    holder = torch.nn.ModuleDict({"self_attn": ours})
    with record(holder) as trace:
        found = ours(x, masks.global_tokens(marked))
    place = trace[trace.places()[0]]
    matrix = place.weights()
    torch.testing.assert_close(place.output().transpose(1, 2).flatten(2), out, atol=1e-5, rtol=0)
    assert found.shape == out.shape
    torch.testing.assert_close(matrix[:, :, [0, 11]], far, atol=1e-5, rtol=0)
    for i in (5, 9, 17):  # two global columns, then the window: their layout of a row
        row = torch.zeros(2, 4, n)
        row[..., [0, 11]] = near[:, i, :, :2]
        for offset in range(-4, 5):
            if i + offset not in (0, 11):
                row[..., i + offset] = near[:, i, :, 2 + 4 + offset]
        torch.testing.assert_close(matrix[:, :, i], row, atol=1e-5, rtol=0)


@torch.no_grad()
def test_windows_are_each_layer_s_own():
    made = model(n_layers=3, windows=(2, 6, 48))
    with record(made) as trace:
        made(torch.arange(2, 22)[None])
    for place, half in zip(trace.places(), (1, 3, 24), strict=True):
        i = torch.arange(20)
        near = (i[:, None] - i).abs() <= half
        assert torch.equal((trace[place].weights() > 0).all(1)[0], near)


@torch.no_grad()
def test_with_a_window_as_wide_as_the_text_it_is_bert():
    made = model(windows=100)
    fields = {name: getattr(made.config, name) for name in BertConfig.model_fields}
    plain = Bert(BertConfig(**fields | {"max_len": 50})).eval()
    state = {name: x for name, x in made.state_dict().items() if "global" not in name}
    first = made.config.first_position
    state["position_embed.weight"] = state["position_embed.weight"][first:]
    plain.load_state_dict(state)
    ids, real = torch.randint(2, 60, (2, 30)), torch.ones(2, 30, dtype=torch.bool)
    real[1, :9] = False
    torch.testing.assert_close(made(ids, real)[real], plain(ids, real)[real])


@torch.no_grad()
def test_positions_begin_behind_the_padding_s_row_and_end_at_max_len():
    made, ids = model(), torch.randint(2, 60, (1, 50))
    with torch.no_grad():
        before = made(ids)
        made.position_embed.weight[:2] = 1e6  # rows that stand before the first position
        assert torch.equal(made(ids), before)
        made.position_embed.weight[51] += 1
        assert not torch.equal(made(ids), before)
    with pytest.raises(ValueError, match="51 tokens are more than"):
        made(torch.randint(2, 60, (1, 51)))


@torch.no_grad()
def test_global_tokens_are_seen_from_afar_and_see_afar():
    made, ids = model(n_layers=1), torch.randint(2, 60, (1, 40))
    marked = torch.zeros(1, 40, dtype=torch.bool)
    marked[0, 20] = True
    other = ids.clone()
    other[0, 20] = (ids[0, 20] + 7) % 50 + 2
    far = [0, 10, 39]
    plain = made.hidden(ids)
    assert torch.equal(made.hidden(other)[:, far], plain[:, far])
    seen = made.hidden(ids, global_tokens=marked)
    changed = made.hidden(other, global_tokens=marked)
    assert not torch.isclose(changed[0, far], seen[0, far]).all(-1).any()
    other = ids.clone()
    other[0, 0] = (ids[0, 0] + 7) % 50 + 2
    assert torch.equal(made.hidden(other)[0, 20], plain[0, 20])
    assert not torch.allclose(made.hidden(other, global_tokens=marked)[0, 20], seen[0, 20])


@torch.no_grad()
def test_the_first_real_token_is_global_where_the_config_says_so():
    made, ids = model(global_first=True), torch.randint(2, 60, (2, 20))
    real = torch.ones(2, 20, dtype=torch.bool)
    real[1, :6] = False
    first = torch.zeros(2, 20, dtype=torch.bool)
    first[0, 0] = first[1, 6] = True
    found, wanted = made.hidden(ids, real), made.hidden(ids, real, global_tokens=first)
    assert torch.equal(found, wanted)
    nobody = made.hidden(ids, real, global_tokens=torch.zeros_like(first))
    assert not torch.allclose(nobody[real], found[real], atol=1e-3)
    assert torch.equal(made.real_hidden(ids, real), found[real])


@torch.no_grad()
def test_marks_under_padding_and_second_segments_change_nothing():
    made, ids = model(), torch.randint(2, 60, (2, 20))
    real = torch.ones(2, 20, dtype=torch.bool)
    real[:, 15:] = False
    marked = torch.zeros(2, 20, dtype=torch.bool)
    marked[:, 3] = True
    plain = made(ids, real, global_tokens=marked)[real]
    assert torch.equal(made(ids, real, global_tokens=marked | ~real)[real], plain)
    second = torch.ones(2, 20, dtype=torch.long)  # its table has one row
    assert torch.equal(made(ids, real, segments=second, global_tokens=marked)[real], plain)


def test_what_does_not_fit_is_named():
    made, ids = model(), torch.zeros(2, 5, dtype=torch.long)
    for marked in (torch.ones(5, dtype=torch.bool), torch.ones(2, 5)):
        with pytest.raises(ValueError, match="global_tokens is bool like ids"):
            made(ids, global_tokens=marked)
    with pytest.raises(ValueError, match="3 windows for 2 layers"):
        LongformerConfig(n_layers=2, windows=(2, 2, 2))
    with pytest.raises(ValueError, match="even number"):
        LongformerConfig(n_layers=2, windows=3)
    with pytest.raises(ValueError, match="this Longformer has no pooler"):
        made.pooled(torch.zeros(1, 3, 32))


def test_long_texts_train_through_blocks_with_the_gradients_of_short_ones(monkeypatch):
    from everyhead.layers import attention, blocked

    results = []
    for long in (1 << 20, 1):
        monkeypatch.setattr(attention, "LONG", long)
        monkeypatch.setattr(blocked, "ROWS", 8)
        made = model(global_first=True).double()
        ids = torch.arange(2, 42)[None]
        made(ids).square().mean().backward()
        results.append([p.grad for p in made.parameters()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
