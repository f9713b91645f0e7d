"""Bert beside Hugging Face's, and its laws."""

import pytest
import torch
from transformers import BertConfig as TheirConfig
from transformers import BertForMaskedLM, BertForPreTraining, BertModel

from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.models.bert import PRESETS, Bert, BertConfig, keys_of
from everyhead.weights.bert import KIND

SMALL = {"vocab_size": 60, "d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48, "max_len": 24}
CLASSES = {
    BertForPreTraining: {},
    BertForMaskedLM: {"pooler": False, "next_sentence_head": False},
    BertModel: {"gap_head": False, "next_sentence_head": False},
}


def theirs_and_ours(kind=BertForPreTraining, scale=1.0, **changes):
    """A random model of Hugging Face's with norms and biases that matter, and ours beside it."""
    torch.manual_seed(0)
    fields = {**SMALL, "dropout": 0.0, "attention_dropout": 0.0, **CLASSES[kind], **changes}
    ours = Bert(BertConfig(**fields)).eval()
    values = KIND.values(ours)
    theirs = kind(TheirConfig(**values, attn_implementation="eager")).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.mul_(scale) if p.dim() > 1 else p.add_(0.2 * torch.randn_like(p))
    state = KIND.tidy(dict(theirs.state_dict()), values).tensors
    slots = {slot.ours: slot for slot in KIND.slots(ours)}
    own = ours.state_dict()
    with torch.no_grad():
        for slot in slots.values():
            own[slot.ours[0]].copy_(state[next(n for n in slot.theirs if n in state)])
    return theirs, ours


def batch(lengths=(9, 1, 5), left=False, seed=1, extra=2):
    rng = torch.Generator().manual_seed(seed)
    width = max(lengths) + extra
    ids = torch.randint(1, SMALL["vocab_size"], (len(lengths), width), generator=rng)
    places = torch.arange(width)[None]
    n = torch.tensor(lengths)[:, None]
    real = places >= width - n if left else places < n
    segments = (torch.rand(ids.shape, generator=rng) > 0.5).long()
    return ids.masked_fill(~real, 0), real, segments


def their_positions(real):
    return (real.long().cumsum(1) - 1).clamp_min(0)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_pretraining_heads(left, scale):
    theirs, ours = theirs_and_ours(scale=scale)
    ids, real, segments = batch(left=left)
    with torch.no_grad():
        told = theirs(ids, real.long(), token_type_ids=segments, position_ids=their_positions(real))
        hidden = ours.hidden(ids, real, segments=segments)
        logits = ours(ids, real, segments=segments)
        follows = ours.next_sentence(hidden, real)
    assert torch.allclose(logits[real], told.prediction_logits[real], atol=1e-5, rtol=1e-5)
    assert bool(hidden.isfinite().all())
    if not left:  # theirs reads the first place, real or not
        assert torch.allclose(follows, told.seq_relationship_logits, atol=1e-5)
    rows = [
        ours.next_sentence(ours.hidden(i[r][None], segments=s[r][None]))
        for i, r, s in zip(ids, real, segments, strict=True)
    ]
    assert torch.allclose(follows, torch.cat(rows), atol=1e-5)


@pytest.mark.parametrize("kind", [BertForMaskedLM, BertModel])
def test_other_classes(kind):
    theirs, ours = theirs_and_ours(kind)
    ids, real, segments = batch()
    with torch.no_grad():
        told = theirs(ids, real.long(), token_type_ids=segments)
        found = ours(ids, real, segments=segments)
        if kind is BertModel:
            assert torch.allclose(found[real], told.last_hidden_state[real], atol=1e-5)
            assert torch.allclose(ours.pooled(found, real), told.pooler_output, atol=1e-5)
        else:
            assert torch.allclose(found[real], told.logits[real], atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"activation": "relu"},
        {"activation": "gelu_tanh"},
        {"n_segments": 3},
        {"norm_eps": 1e-3},
        {"tie_output": False},
    ],
)
def test_choices_of_published_models(changes):
    theirs, ours = theirs_and_ours(**changes)
    ids, real, segments = batch()
    with torch.no_grad():
        told = theirs(ids, real.long(), token_type_ids=segments).prediction_logits
        assert torch.allclose(ours(ids, real, segments=segments)[real], told[real], atol=1e-5)


@pytest.mark.slow
def test_published_width():
    """base's width and start, two layers, float32 and bf16."""
    theirs, ours = theirs_and_ours(
        vocab_size=30_522, d_model=768, n_heads=12, d_ff=3072, max_len=64, n_layers=2
    )
    ids, real, segments = batch((40, 17, 1))
    with torch.no_grad():
        told = theirs(ids, real.long(), token_type_ids=segments).prediction_logits
        found = ours(ids, real, segments=segments)
        assert torch.allclose(found[real], told[real], atol=1e-5, rtol=1e-5)
        narrow = ours.to(torch.bfloat16)(ids, real, segments=segments).float()
    error = (narrow[real] - told[real]).norm() / told[real].norm()
    assert error < 1e-2


def test_gradients():
    theirs, ours = theirs_and_ours()
    ids, real, segments = batch()
    told = theirs(ids, real.long(), token_type_ids=segments)
    ours_hidden = ours.hidden(ids, real, segments=segments)
    weights = torch.randn(int(real.sum()), SMALL["vocab_size"])
    (told.prediction_logits[real] * weights).sum().add(
        told.seq_relationship_logits.square().sum()
    ).backward()
    (ours.head(ours_hidden)[real] * weights).sum().add(
        ours.next_sentence(ours_hidden, real).square().sum()
    ).backward()
    state = {name: p.grad for name, p in theirs.named_parameters()}
    state = KIND.tidy(state, KIND.values(ours)).tensors
    grads = {name: p.grad for name, p in ours.named_parameters()}
    for slot in KIND.slots(ours):
        name = next(n for n in slot.theirs if n in state)
        expected = state[name]
        assert torch.allclose(grads[slot.ours[0]], expected, atol=1e-4, rtol=1e-4), name


@pytest.mark.parametrize("preset, n", [("base", 110_106_428), ("large", 336_226_108)])
def test_counts(preset, n):
    with torch.device("meta"):
        ours = Bert(BertConfig(**PRESETS[preset]))
    assert sum(p.numel() for p in ours.parameters()) == n  # BertForPreTraining's, as published


def test_minilm_counts_as_published():
    with torch.device("meta"):
        config = BertConfig(**PRESETS["minilm-l6"], gap_head=False, next_sentence_head=False)
        assert sum(p.numel() for p in Bert(config).parameters()) == 22_713_216


@pytest.mark.parametrize("left", [False, True])
def test_nan_under_padding_reaches_nothing(left):
    _, ours = theirs_and_ours()
    ids, real, segments = batch(left=left)
    plain = ours(ids, real, segments=segments)
    plain[real].square().sum().backward()
    grads = [None if p.grad is None else p.grad.clone() for p in ours.parameters()]
    ours.zero_grad()
    hooks = [
        table.register_forward_hook(lambda m, a, out: out.masked_fill(~real[..., None], torch.nan))
        for table in (ours.token_embed,)
    ]
    spoiled = _rectangle(ours, ids, real, segments)
    for hook in hooks:
        hook.remove()
    assert torch.allclose(spoiled[real], plain[real], atol=1e-5)
    spoiled[real].square().sum().backward()
    for p, grad in zip(ours.parameters(), grads, strict=True):
        assert (p.grad is None) == (grad is None)
        assert grad is None or torch.allclose(p.grad, grad, atol=1e-3, rtol=1e-3)


def _rectangle(model, ids, real, segments):
    """The path that a traced graph takes: no packing."""
    hidden = model.encoder(model._embed(ids, real, segments, None), keys_of(real))
    return model.head(hidden)


def test_start_as_published():
    model = Bert(BertConfig(**PRESETS["tiny"]))
    for name, p in model.named_parameters():
        if p.dim() > 1:
            assert abs(float(p.detach().std()) - 0.02) < 2e-3, name
    assert not model.token_embed.weight[0].any()


def test_wrong_calls_say_so():
    bare = Bert(BertConfig(**SMALL, pooler=False, gap_head=False, next_sentence_head=False))
    hidden = torch.zeros(1, 2, 32)
    with pytest.raises(ValueError, match="gap_head"):
        bare.head(hidden)
    with pytest.raises(ValueError, match="pooler"):
        bare.pooled(hidden)
    with pytest.raises(ValueError, match="next_sentence_head"):
        bare.next_sentence(hidden)
    with pytest.raises(ValueError, match="max_len 24"):
        bare(torch.ones(1, 25, dtype=torch.long))
    with pytest.raises(ValueError, match="pooler"):
        BertConfig(pooler=False)
    with pytest.raises(ValueError, match="pad_id"):
        BertConfig(vocab_size=3, pad_id=3)


def test_prepared_is_plain():
    from everyhead.models.prepare import prepare

    _, ours = theirs_and_ours()
    ids, real, segments = batch()
    with torch.no_grad():
        told = ours(ids, real, segments=segments)
        found = prepare(ours)(ids, real, segments=segments)
    assert any(isinstance(m, MultiHeadAttention) for m in ours.modules())
    assert torch.allclose(found[real], told[real], atol=1e-5)
