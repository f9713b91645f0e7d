"""Longformer and its task heads in Hugging Face's folders, both ways."""

import json
import warnings

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from everyhead.errors import UserError
from everyhead.models.longformer import Longformer, LongformerConfig
from everyhead.models.tasks import (
    SequenceClassifier,
    SequenceClassifierConfig,
    TokenClassifier,
)
from everyhead.weights.folder import load_model, save_model
from everyhead.weights.opening import opened, read_config
from everyhead.weights.tasks import as_task

SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "attention_window": [4, 8, 4],
    "max_position_embeddings": 52,
    "type_vocab_size": 1,
}
LABELS = {"id2label": {0: "ham", 1: "spam", 2: "?"}, "label2id": {"ham": 0, "spam": 1, "?": 2}}
CLASSES = {
    "LongformerModel": {},
    "LongformerForMaskedLM": {},
    "LongformerForSequenceClassification": LABELS,
    "LongformerForTokenClassification": LABELS,
}
OURS = {
    "LongformerForSequenceClassification": SequenceClassifier,
    "LongformerForTokenClassification": TokenClassifier,
}
PAD = 1
PUBLISHED = 1.0  # the scale of N(0, 0.02²), as they start


def random_model(name, scale=4.0, **more):
    torch.manual_seed(3)
    config = transformers.LongformerConfig(**SMALL, **CLASSES[name], **more)
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(scale) if p.dim() > 1 else p.add_(0.2 * torch.randn_like(p))
    return model


def batch(n, seed=1):
    """Rows of n, n − n/3 and 1 tokens, padded on the right, and global tokens on several places."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 60, (3, n), generator=rng)
    real = torch.arange(n) < torch.tensor([n, n - n // 3, 1])[:, None]
    marked = torch.rand(3, n, generator=rng) < 0.2
    return ids.masked_fill(~real, PAD), real, marked


def theirs_says(model, ids, real, marked=None):
    more = {} if marked is None else {"global_attention_mask": marked.long()}
    with torch.no_grad():
        return model(ids, real.long(), **more)[0]


def close(found, told, real):
    if found.dim() == 3:
        found, told = found[real], told[real]
    return torch.allclose(found, told, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("scale", [PUBLISHED, 4.0])
def test_theirs_opens_here_and_ours_there(name, scale, tmp_path):
    theirs = random_model(name, scale)
    theirs.save_pretrained(tmp_path / "theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = load_model(tmp_path / "theirs")
    assert type(ours) is OURS.get(name, Longformer)
    for n in (1, 7, 8, 13, 31, 50):  # multiples of the window, and others
        ids, real, marked = batch(n)
        for given in (None, marked):
            with torch.no_grad():
                found = ours(ids, real, global_tokens=given)
            assert close(found, theirs_says(theirs, ids, real, given), real), (n, given is None)
    assert save_model(ours, tmp_path / "ours") == []
    again, report = getattr(transformers, name).from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report[key] for key in report), report
    told = theirs_says(theirs, *batch(13))
    assert torch.equal(theirs_says(again.eval(), *batch(13)), told)
    assert again.config.id2label == theirs.config.id2label
    assert again.config.attention_window == [4, 8, 4]
    written = load_file(tmp_path / "ours" / "model.safetensors")
    assert written.keys() == load_file(tmp_path / "theirs" / "model.safetensors").keys()
    assert all(torch.equal(written[n], x) for n, x in theirs.state_dict().items() if n in written)


@pytest.mark.parametrize("activation", ["relu", "gelu_new"])
def test_the_head_s_function_is_gelu_whatever_the_layers_is(activation, tmp_path):
    theirs = random_model("LongformerForMaskedLM", hidden_act=activation)
    theirs.save_pretrained(tmp_path)
    ids, real, marked = batch(13)
    with torch.no_grad():
        found = load_model(tmp_path)(ids, real, global_tokens=marked)
    assert close(found, theirs_says(theirs, ids, real, marked), real)


def test_a_table_that_is_not_tied(tmp_path):
    theirs = random_model("LongformerForMaskedLM", tie_word_embeddings=False)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_model(tmp_path / "theirs")
    ids, real, marked = batch(13)
    with torch.no_grad():
        found = ours(ids, real, global_tokens=marked)
    assert close(found, theirs_says(theirs, ids, real, marked), real)
    assert save_model(ours, tmp_path / "ours") == []
    again, report = transformers.LongformerForMaskedLM.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report[key] for key in report), report
    same = theirs_says(again.eval(), ids, real, marked)
    assert torch.equal(same, theirs_says(theirs, ids, real, marked))


@pytest.mark.parametrize("prefix", [True, False])
def test_names_as_older_code_wrote_them(prefix, tmp_path):
    """position_ids, and the logits' table and bias twice."""
    theirs = random_model("LongformerForMaskedLM")
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    words = tensors["longformer.embeddings.word_embeddings.weight"]
    tensors["longformer.embeddings.position_ids"] = torch.arange(52)[None]
    tensors["lm_head.decoder.weight"] = words.clone()
    tensors["lm_head.decoder.bias"] = tensors["lm_head.bias"].clone()
    if not prefix:
        tensors = {name.removeprefix("longformer."): x for name, x in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = load_model(tmp_path)
    ids, real, _ = batch(13)
    with torch.no_grad():
        assert close(ours(ids, real), theirs_says(theirs, ids, real), real)


def test_a_body_under_a_new_head(tmp_path):
    random_model("LongformerForMaskedLM").save_pretrained(tmp_path)
    values = as_task("sequence-classifier", read_config(tmp_path), ("a", "b"))
    with pytest.warns(UserWarning, match=r"body\.pooler\.weight.*starts at random") as told:
        model = opened(tmp_path, values)
    assert any("lm_head" in str(each.message) for each in told)
    assert model.config.body.global_first and model.config.pooling == "pooler"
    plain, (ids, real, _) = load_model(tmp_path), batch(13)
    first = torch.arange(13).expand(3, 13) == 0
    with torch.no_grad():
        found, wanted = model.hidden(ids, real), plain.hidden(ids, real, global_tokens=first)
    assert torch.equal(found, wanted)


def test_own_choices_come_back_as_themselves(tmp_path):
    sizes = {"vocab_size": 30, "d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 20}
    body = LongformerConfig(max_len=9, windows=2, **sizes)
    models = {
        "first token": Longformer(body.model_copy(update={"global_first": True})),
        "choice of heads": Longformer(body.model_copy(update={"pooler": True})),
        "pooling 'mean'": SequenceClassifier(
            SequenceClassifierConfig(
                family="longformer", body=body, labels=("x", "y"), pooling="mean"
            )
        ),
    }
    for word, model in models.items():
        (note,) = save_model(model.eval(), tmp_path / word)
        assert word in note
        again, ids = load_model(tmp_path / word), torch.tensor([[3, 4, 5]])
        assert again.config == model.config
        assert torch.equal(again(ids), model(ids))


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ({"onnx_export": True}, "onnx_export"),
        ({"hidden_act": "mish"}, "hidden_act"),
        ({"attention_window": [4, 4]}, "2 windows for 3 layers"),
        ({"attention_window": [4, 5, 4]}, "even number"),
        ({"attention_window": None, "max_position_embeddings": "long"}, "must be numbers"),
        ({"num_hidden_layers": 4, "attention_window": 4}, "encoder.layer.3"),
    ],
)
def test_what_cannot_be_expressed_is_named(entries, word, tmp_path):
    random_model("LongformerForSequenceClassification").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text(encoding="utf-8")) | entries
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UserError, match=word):
        load_model(tmp_path)
