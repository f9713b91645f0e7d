"""Bert and its task heads in Hugging Face's folders, both ways, and as they were published."""

import json
import warnings

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from everyhead.errors import UserError
from everyhead.models.bert import Bert, BertConfig
from everyhead.models.tasks import (
    SequenceClassifier,
    SequenceClassifierConfig,
    SpanReader,
    TokenClassifier,
)
from everyhead.weights.folder import load_model, save_model
from everyhead.weights.opening import opened, read_config
from everyhead.weights.tasks import as_task

SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
}
LABELS = {"id2label": {0: "ham", 1: "spam", 2: "?"}, "label2id": {"ham": 0, "spam": 1, "?": 2}}
CLASSES = {
    "BertModel": ("last_hidden_state", {}),
    "BertForPreTraining": ("prediction_logits", {}),
    "BertForMaskedLM": ("logits", {}),
    "BertForSequenceClassification": ("logits", LABELS),
    "BertForTokenClassification": ("logits", LABELS),
    "BertForQuestionAnswering": ("start_logits", {}),
}
OURS = {
    "BertForSequenceClassification": SequenceClassifier,
    "BertForTokenClassification": TokenClassifier,
    "BertForQuestionAnswering": SpanReader,
}
IDS = torch.tensor([[2, 9, 33, 7, 3], [2, 40, 3, 0, 0]])
REAL = IDS.ne(0)
SEGMENTS = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])


def random_model(name, **more):
    torch.manual_seed(3)
    config = transformers.BertConfig(**SMALL, **CLASSES[name][1], **more)
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3) if p.dim() > 1 else p.add_(0.2 * torch.randn_like(p))
    return model


def theirs_says(model, name):
    with torch.no_grad():
        told = model(IDS, REAL.long(), token_type_ids=SEGMENTS)
    if name == "BertForQuestionAnswering":
        return torch.stack([told.start_logits, told.end_logits], -1)
    return told[CLASSES[name][0]]


def close(name, found, told):
    if name != "BertForSequenceClassification":
        found, told = found[REAL], told[REAL]
    return torch.allclose(found, told, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CLASSES)
def test_theirs_opens_here_and_ours_there(name, tmp_path):
    theirs = random_model(name)
    theirs.save_pretrained(tmp_path / "theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = load_model(tmp_path / "theirs")
    assert type(ours) is OURS.get(name, Bert)
    told = theirs_says(theirs, name)
    with torch.no_grad():
        assert close(name, ours(IDS, REAL, segments=SEGMENTS), told)
    assert save_model(ours, tmp_path / "ours") == []
    again, report = getattr(transformers, name).from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report[key] for key in report), report
    assert torch.equal(theirs_says(again.eval(), name), told)
    assert again.config.id2label == theirs.config.id2label
    written = load_file(tmp_path / "ours" / "model.safetensors")
    assert written.keys() == load_file(tmp_path / "theirs" / "model.safetensors").keys()


@pytest.mark.parametrize("left", [False, True])
def test_single_rows_and_padding_of_heads(left, tmp_path):
    random_model("BertForSequenceClassification").save_pretrained(tmp_path)
    model = load_model(tmp_path)
    rows = [torch.tensor([[2, 9, 33, 7, 3]]), torch.tensor([[2, 40, 3]])]
    pad = torch.zeros(1, 2, dtype=torch.long)
    second = torch.cat([pad, rows[1]] if left else [rows[1], pad], 1)
    ids = torch.cat([rows[0], second])
    for pooling in ("pooler", "first", "mean", "last"):
        model.config = model.config.model_copy(update={"pooling": pooling})
        with torch.no_grad():
            together = model(ids, ids.ne(0))
            alone = torch.cat([model(row) for row in rows])
        assert torch.allclose(together, alone, atol=1e-5), pooling


@pytest.mark.parametrize("problem, n", [("multi_label_classification", 3), ("regression", 1)])
def test_problem_type_is_kept(problem, n, tmp_path):
    config = transformers.BertConfig(**SMALL, num_labels=n, problem_type=problem)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert model.config.problem == problem and len(model.config.labels) == n
    save_model(model, tmp_path / "again")
    assert read_config(tmp_path / "again")["problem_type"] == problem


def published(tensors, *, gamma=False, prefix=True, buffers=True):
    """The same tensors as older code named them."""
    found = {}
    for name, tensor in tensors.items():
        if gamma and "LayerNorm" in name:
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            name = name.replace("LayerNorm.bias", "LayerNorm.beta")
        found[name if prefix else name.removeprefix("bert.")] = tensor
    if buffers:
        place = "bert.embeddings.position_ids" if prefix else "embeddings.position_ids"
        found[place] = torch.arange(24)[None]
    return found


@pytest.mark.parametrize("gamma", [True, False])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("name", ["BertForPreTraining", "BertForMaskedLM", "BertModel"])
def test_names_as_published(name, gamma, prefix, tmp_path):
    """bert-base-uncased and -chinese: gamma, beta, position_ids, logits' weight and bias twice."""
    theirs = random_model(name)
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    if name == "BertModel":
        tensors = {f"bert.{key}": tensor for key, tensor in tensors.items()}
    else:
        tensors["cls.predictions.decoder.weight"] = tensors[
            "bert.embeddings.word_embeddings.weight"
        ].clone()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    save_file(published(tensors, gamma=gamma, prefix=prefix), tmp_path / "model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = load_model(tmp_path)
    with torch.no_grad():
        assert close(name, ours(IDS, REAL, segments=SEGMENTS), theirs_says(theirs, name))


def change_config(folder, **entries):
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    values |= entries
    path.write_text(json.dumps(values), encoding="utf-8")


def test_heads_beside_the_wanted_are_named(tmp_path):
    """bert-base-uncased says BertForMaskedLM and holds a pooler and the other head as well."""
    random_model("BertForPreTraining").save_pretrained(tmp_path)
    change_config(tmp_path, architectures=["BertForMaskedLM"])
    with pytest.warns(UserWarning, match="cls.seq_relationship"):
        load_model(tmp_path)


def test_a_body_without_a_head_gets_one_that_is_announced(tmp_path):
    random_model("BertModel").save_pretrained(tmp_path)
    values = as_task("sequence-classifier", read_config(tmp_path), ("a", "b"))
    with pytest.warns(UserWarning, match=r"classifier\.weight.*starts at random"):
        model = opened(tmp_path, values)
    assert model.config.labels == ("a", "b")
    plain = load_model(tmp_path)
    with torch.no_grad():
        same = model.body.hidden(IDS, REAL), plain.hidden(IDS, REAL)
    assert torch.equal(*same)


def test_own_choices_come_back_as_themselves(tmp_path):
    torch.manual_seed(0)
    body = BertConfig(vocab_size=30, d_model=16, n_heads=2, n_layers=1, d_ff=20, max_len=9)
    for pooling in ("mean", "first"):
        config = SequenceClassifierConfig(
            family="bert", body=body, labels=("x", "y"), pooling=pooling
        )
        model = SequenceClassifier(config).eval()
        (note,) = save_model(model, tmp_path / pooling)
        assert pooling in note
        again = load_model(tmp_path / pooling)
        assert again.config == config
        ids = torch.tensor([[1, 2, 3]])
        assert torch.equal(again(ids), model(ids))
    odd = Bert(body.model_copy(update={"next_sentence_head": False})).eval()
    assert save_model(odd, tmp_path / "odd")
    assert load_model(tmp_path / "odd").config == odd.config


@pytest.mark.parametrize(
    "entries, word",
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"hidden_act": "mish"}, "hidden_act"),
        ({"hidden_size": "wide"}, "d_model"),
        ({"num_hidden_layers": 3}, "encoder.layer.2"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label"),
    ],
)
def test_what_cannot_be_expressed_is_named(entries, word, tmp_path):
    random_model("BertForSequenceClassification").save_pretrained(tmp_path)
    change_config(tmp_path, **entries)
    with pytest.raises(UserError, match=word):
        load_model(tmp_path)


def test_minilm_opens_by_name():
    from everyhead.weights.fetch import fetch

    folder = fetch("minilm").folder
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = load_model("minilm")
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    ids = torch.tensor([[101, 1996, 2924, 102]])
    with torch.no_grad():
        assert torch.allclose(model(ids), theirs(ids).last_hidden_state, atol=1e-5)


TINY = {"vocab_size": 60, "num_labels": 3, "pad_token_id": 0}
DECODERS = {
    "GPT2": {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 24},
    "Llama": {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 24,
        "tie_word_embeddings": False,
    },
}


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_s_last_token(name, left, tmp_path):
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**DECODERS[name], **TINY)
    kind = getattr(transformers, f"{name}ForSequenceClassification")
    theirs = kind(config).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.mul_(3) if p.dim() > 1 else p.add_(0.2 * torch.randn_like(p))
    theirs.save_pretrained(tmp_path / "theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = load_model(tmp_path / "theirs")
    ids = torch.tensor([[2, 9, 33, 7, 3], [0, 0, 5, 40, 3] if left else [5, 40, 3, 0, 0]])
    real = ids.ne(0)
    positions = (real.long().cumsum(1) - 1).clamp_min(0)
    with torch.no_grad():
        told = theirs(ids, attention_mask=real.long(), position_ids=positions).logits
        assert torch.allclose(ours(ids, real), told, atol=1e-5, rtol=1e-5)
    assert save_model(ours, tmp_path / "ours") == []
    again, report = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[key] for key in report), report
    with torch.no_grad():
        same = again.eval()(ids, attention_mask=real.long(), position_ids=positions).logits
    assert torch.equal(same, told)
