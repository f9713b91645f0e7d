"""Llama beside Hugging Face's LlamaForCausalLM."""

import pytest
import torch
import transformers
from pydantic import ValidationError

from everyhead.models.llama import PRESETS, Llama, LlamaConfig
from everyhead.weights.llama import KIND
from tests.models.decoders import batch, beside, check_gradients, relative, stirred, their_logits

SMALL = {
    "vocab_size": 60, "d_model": 32, "n_heads": 4, "n_kv_heads": 2, "d_ff": 48, "n_layers": 2,
    "max_len": 64,
}  # fmt: skip
# SmolLM2's width and heads, two layers of it.
WIDE = {
    "vocab_size": 500, "d_model": 576, "n_heads": 9, "n_kv_heads": 3, "d_ff": 1536, "n_layers": 2,
    "rotary_base": 100_000.0,
}  # fmt: skip
NEAR = {"rtol": 1e-5, "atol": 1e-5}
SCALINGS = [
    {"kind": "linear", "factor": 4.0},
    {"kind": "ntk", "factor": 4.0},
    {"kind": "yarn", "factor": 4.0, "original_len": 16},
    {"kind": "llama3", "factor": 8.0, "original_len": 16},
]


def pair(scale=1.0, **changes):
    torch.manual_seed(0)
    ours = stirred(Llama(LlamaConfig(**{**SMALL, **changes})), scale)
    theirs = beside(ours, KIND, transformers.LlamaForCausalLM, transformers.LlamaConfig)
    return ours, theirs


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scale": 8.0, "tie_output": True},
        pytest.param(WIDE, marks=pytest.mark.slow),
        {"n_kv_heads": 1, "attention_bias": True, "mlp_bias": True, "scale": 4.0},
        {"n_kv_heads": 4, "d_head": 12, "activation": "gelu", "norm_eps": 1e-3},
        *({"rotary_scaling": scaling, "scale": 8.0} for scaling in SCALINGS),
    ],
)
@torch.no_grad()
def test_logits(changes, left):
    ours, theirs = pair(**changes)
    ids, real = batch(ours.config.vocab_size, (40, 1, 17), left=left)
    found = ours(ids, real)
    torch.testing.assert_close(found[real], their_logits(theirs, ids, real)[real], **NEAR)
    assert found.isfinite().all()
    torch.testing.assert_close(ours(ids), theirs(ids).logits, **NEAR)


@pytest.mark.slow
@torch.no_grad()
def test_half_precision():
    ours, theirs = pair(**WIDE)
    ids, real = batch(500, (40, 17), left=True)
    exact = ours(ids, real)[real]
    found = ours.to(torch.bfloat16)(ids, real)[real]
    wanted = their_logits(theirs.to(torch.bfloat16), ids, real)[real]
    assert relative(found, wanted) < 1e-2
    assert relative(found, exact) < max(1e-2, 1.1 * relative(wanted, exact))


@pytest.mark.parametrize("left", [False, True])
def test_gradients(left):
    ours, theirs = pair(attention_bias=True, scale=2.0)
    check_gradients(ours, theirs, KIND, left=left)


@torch.no_grad()
def test_greedy_text_is_theirs():
    ours, theirs = pair(scale=8.0)
    ids, _ = batch(60, (4, 4, 4), extra=0)
    wanted = theirs.generate(
        ids, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    cache, text, step = ours.cache(24), ids, ids
    for _ in range(12):
        step = ours.head(ours.hidden(step, cache=cache)[:, -1:]).argmax(-1)
        text = torch.cat([text, step], 1)
    assert torch.equal(text, wanted)


def test_start_has_the_published_deviation():
    torch.manual_seed(0)
    model = Llama(LlamaConfig(**{**SMALL, "d_model": 256, "d_ff": 512, "vocab_size": 500}))
    for name, p in model.named_parameters():
        if p.dim() > 1:
            assert float(p.detach().std()) == pytest.approx(0.02, rel=0.05), name


@pytest.mark.parametrize(
    ("name", "published"), [("smollm2-135m", 134_515_008), ("llama3-8b", 8_030_261_248)]
)
def test_parameter_counts(name, published):
    with torch.device("meta"):
        ours = Llama(LlamaConfig(**PRESETS[name]))
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**KIND.values(ours)))
    n = sum(p.numel() for p in ours.parameters())
    assert n == published == sum(p.numel() for p in theirs.parameters())


@torch.no_grad()
def test_angles_do_not_round_in_half_precision():
    """Others cast the table of angles with the model, and 769 of 4,096 positions stay distinct."""
    model = Llama(LlamaConfig(**SMALL)).to(torch.bfloat16)
    rotation = model.rotation(torch.arange(4096)[None])
    assert rotation.cos.dtype == torch.float32
    assert len(torch.unique(torch.cat(rotation, -1)[0, 0], dim=0)) == 4096


def test_configs_that_make_no_model_are_refused():
    with pytest.raises(ValidationError, match="does not divide into 5 heads"):
        LlamaConfig(**{**SMALL, "n_heads": 5})
    with pytest.raises(ValidationError, match="yarn takes factor, original_len"):
        LlamaConfig(**SMALL, rotary_scaling={"kind": "yarn", "factor": 2.0})
    with pytest.raises(ValueError, match="3 kv heads cannot serve 4 heads"):
        Llama(LlamaConfig(**{**SMALL, "n_kv_heads": 3}))
