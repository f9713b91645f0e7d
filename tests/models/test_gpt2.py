"""GPT-2 beside Hugging Face's GPT2LMHeadModel."""

import pytest
import torch
import transformers

from everyhead.models.gpt2 import GPT2, PRESETS, GPT2Config
from everyhead.weights.gpt2 import KIND
from tests.models.decoders import batch, beside, check_gradients, relative, stirred, their_logits

SMALL = {"vocab_size": 60, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_len": 24}
WIDE = {"vocab_size": 500, "d_model": 768, "n_heads": 12, "n_layers": 2, "max_len": 64}
NEAR = {"rtol": 1e-5, "atol": 1e-5}


def pair(scale=1.0, **changes):
    torch.manual_seed(0)
    ours = stirred(GPT2(GPT2Config(**{**SMALL, "dropout": 0.0, **changes})), scale)
    theirs = beside(ours, KIND, transformers.GPT2LMHeadModel, transformers.GPT2Config)
    return ours, theirs


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scale": 8.0},
        pytest.param(WIDE, marks=pytest.mark.slow),
        {"tie_output": False, "activation": "relu", "d_ff": 40},
        {"scale_by_layer": True, "scale": 8.0, "norm_eps": 1e-3},
    ],
)
@torch.no_grad()
def test_logits(changes, left):
    ours, theirs = pair(**changes)
    ids, real = batch(ours.config.vocab_size, left=left)
    wanted = their_logits(theirs, ids, real)
    found = ours(ids, real)
    torch.testing.assert_close(found[real], wanted[real], **NEAR)
    assert found.isfinite().all()
    torch.testing.assert_close(ours(ids), theirs(ids).logits, **NEAR)


@torch.no_grad()
def test_logits_at_the_longest_length():
    ours, theirs = pair()
    ids, _ = batch(60, (24, 24), extra=0)
    torch.testing.assert_close(ours(ids), theirs(ids).logits, **NEAR)


@pytest.mark.slow
@torch.no_grad()
def test_half_precision():
    ours, theirs = pair(**WIDE)
    ids, real = batch(500, left=True)
    exact = ours(ids, real)[real]
    found = ours.to(torch.bfloat16)(ids, real)[real]
    wanted = their_logits(theirs.to(torch.bfloat16), ids, real)[real]
    assert relative(found, wanted) < 1e-2
    assert relative(found, exact) < max(1e-2, 1.1 * relative(wanted, exact))


@pytest.mark.parametrize("left", [False, True])
def test_gradients(left):
    ours, theirs = pair(attention_dropout=0.0)
    check_gradients(ours, theirs, KIND, left=left)


@torch.no_grad()
def test_greedy_text_is_theirs():
    ours, theirs = pair(scale=8.0)
    ids, _ = batch(60, (4, 4, 4), extra=0)
    wanted = theirs.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
    cache, text, step = ours.cache(24), ids, ids
    for _ in range(12):
        step = ours.head(ours.hidden(step, cache=cache)[:, -1:]).argmax(-1)
        text = torch.cat([text, step], 1)
    assert torch.equal(text, wanted)


def test_start_has_the_published_deviations():
    torch.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=500, d_model=256, n_heads=4, n_layers=8))
    spread = {n: float(p.detach().std()) for n, p in model.named_parameters() if p.dim() > 1}
    for name, found in spread.items():
        into_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
        assert found == pytest.approx(0.02 / 4 if into_stream else 0.02, rel=0.05), name
    assert all(
        float(p.detach().abs().sum()) == 0 for n, p in model.named_parameters() if "bias" in n
    )


# Counted by Hugging Face's own classes; GPT-3's by the formula of its table 2.1.
@pytest.mark.parametrize(
    "name", ["small", "medium", *(pytest.param(n, marks=pytest.mark.slow) for n in ("large", "xl"))]
)
def test_parameter_counts(name):
    with torch.device("meta"):
        ours = GPT2(GPT2Config(**PRESETS[name]))
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**KIND.values(ours)))
    published = {"small": 124_439_808, "medium": 354_823_168}
    n = sum(p.numel() for p in ours.parameters())
    assert n == sum(p.numel() for p in theirs.parameters()) == published.get(name, n)


def test_gpt3_on_the_meta_device():
    with torch.device("meta"):
        model = GPT2(GPT2Config(**PRESETS["gpt3-175b"]))
    c = model.config
    layer = 12 * c.d_model**2 + 13 * c.d_model
    tables = (c.vocab_size + c.max_len) * c.d_model
    assert sum(p.numel() for p in model.parameters()) == 96 * layer + tables + 2 * c.d_model
    assert 174e9 < 96 * layer + tables < 176e9


@torch.no_grad()
def test_documents_in_one_row_do_not_see_each_other():
    ours, _ = pair(scale=8.0)
    ids, _ = batch(60, (12, 12), extra=0)
    documents = torch.tensor([[4] * 5 + [7] * 6 + [9], [1] * 12])
    found = ours.hidden(ids, documents=documents)
    for row, start, end in ((0, 0, 5), (0, 5, 11), (0, 11, 12), (1, 0, 12)):
        alone = ours.hidden(ids[row : row + 1, start:end])[0]
        torch.testing.assert_close(found[row, start:end], alone, **NEAR)
    real = torch.arange(12) < torch.tensor([[9], [4]])
    padded = ours.real_hidden(ids, real, documents=documents)
    torch.testing.assert_close(padded, found[real], **NEAR)
    with pytest.raises(ValueError, match="leave documents out"):
        ours.hidden(ids, documents=documents, cache=ours.cache(12))


def test_what_is_too_long_is_refused_but_padding_is_not_counted():
    ours, _ = pair()
    ids, real = batch(60, (20, 3), extra=9)
    assert ours(ids, real).isfinite().all()
    with pytest.raises(ValueError, match="29 tokens are more than the model's max_len 24"):
        ours(ids)
    cache = ours.cache(30)
    ours.hidden(ids[:, :20], cache=cache)
    with pytest.raises(ValueError, match="25 tokens are more"):
        ours.hidden(ids[:, 20:25], cache=cache)
