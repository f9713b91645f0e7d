"""What everyhead saves opens in Hugging Face's Marian and Pegasus, and theirs opens here."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from everyhead.errors import UserError
from everyhead.models.transformer import Transformer
from everyhead.weights import load, load_model, save_model
from everyhead.weights.marian import TABLE
from everyhead.weights.marian_config import from_hugging_face, to_hugging_face

from .small import (
    LINES,
    UNSEEN,
    batch,
    config,
    greedy,
    logits,
    random_model,
    reversing_model,
    shared_tokenizer,
)

transformers = pytest.importorskip("transformers")
CASES = [
    ("post", "relu", True),
    ("post", "silu", True),
    ("post", "gelu", False),
    ("pre", "relu", False),
    ("pre", "gelu", True),
    ("pre", "gelu_tanh", True),
]
CLASSES = {"post": "MarianMTModel", "pre": "PegasusForConditionalGeneration"}
# As Helsinki-NLP's folders say it, with smaller numbers.
PUBLISHED = {
    "_num_labels": 3,
    "activation_dropout": 0.0,
    "activation_function": "swish",
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "architectures": ["MarianMTModel"],
    "attention_dropout": 0.0,
    "bad_words_ids": [[59]],
    "bos_token_id": 0,
    "classif_dropout": 0.0,
    "d_model": 32,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 2,
    "decoder_start_token_id": 59,
    "dropout": 0.1,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 2,
    "eos_token_id": 0,
    "id2label": {"0": "LABEL_0"},
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "label2id": {"LABEL_0": 0},
    "max_length": 64,
    "max_position_embeddings": 64,
    "model_type": "marian",
    "normalize_before": False,
    "normalize_embedding": False,
    "num_beams": 6,
    "num_hidden_layers": 2,
    "pad_token_id": 59,
    "scale_embedding": True,
    "static_position_embeddings": True,
    "vocab_size": 60,
}


def opened(folder: Path) -> Any:
    """By Hugging Face, which must find every tensor it looks for and no other."""
    model, found = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(found.values()), found
    return model.eval()


@torch.no_grad()
def their_logits(theirs: Any, ours: Transformer) -> torch.Tensor:
    source, target = batch(ours.config)
    return theirs(input_ids=source, decoder_input_ids=target).logits


def differ(a: torch.Tensor, b: torch.Tensor) -> float:
    """Between finite logits; the others must be −∞ in both."""
    assert torch.equal(a.isneginf(), b.isneginf())
    return float((a - b)[a.isfinite()].abs().max())


@pytest.mark.parametrize(("norm", "activation", "tied"), CASES)
def test_saved_here_opens_there_with_the_same_logits(
    norm: str, activation: str, tied: bool, tmp_path: Path
) -> None:
    model = random_model(config(norm=norm, activation=activation, tie_output=tied))
    assert save_model(model, tmp_path, tokenizer=shared_tokenizer()) == []
    theirs = opened(tmp_path)
    assert type(theirs).__name__ == CLASSES[norm]
    assert differ(logits(model), their_logits(theirs, model)) <= 1e-4


@pytest.mark.parametrize(("norm", "activation", "tied"), CASES)
def test_saved_there_opens_here_with_the_same_logits(
    norm: str, activation: str, tied: bool, tmp_path: Path
) -> None:
    save_model(random_model(config(norm=norm, activation=activation, tie_output=tied)), tmp_path)
    theirs = opened(tmp_path)
    theirs.save_pretrained(tmp_path / "theirs")
    model = load_model(tmp_path / "theirs")
    assert differ(logits(model), their_logits(theirs, model)) <= 1e-4


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_greedy_output_is_theirs_from_text_to_text(norm: str, tmp_path: Path) -> None:
    save_model(reversing_model(norm), tmp_path, tokenizer=shared_tokenizer())
    theirs, their_tokenizer = opened(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    model, tokenizer = load(tmp_path)
    said = set()
    for line in LINES + UNSEEN:
        ids = [*tokenizer.source.encode(line), 0]
        assert their_tokenizer(line).input_ids == ids
        ours = greedy(model, ids, 20)
        generated = theirs.generate(torch.tensor([ids]), max_length=21)[0]
        assert generated.tolist()[1 : len(ours) + 1] == ours
        text = their_tokenizer.decode(generated, skip_special_tokens=True)
        assert text == tokenizer.target.decode(ours)
        said.add(text)
    assert len(said) >= 4


def test_a_random_marian_model_opens_here(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = transformers.MarianMTModel(transformers.MarianConfig(**PUBLISHED)).eval()
    with torch.no_grad():
        theirs.final_logits_bias.normal_()
    theirs.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert (model.config.activation, model.config.norm) == ("silu", "post")
    ours, other = logits(model), their_logits(theirs, model)
    assert ours[..., 59].isneginf().all()  # padding is never a prediction here
    assert (ours - other)[..., :59].abs().max() <= 1e-4


def test_a_published_folder_with_pytorch_model_bin_opens_here(tmp_path: Path) -> None:
    """Config as published, weights pickled in half precision, position tables among them."""
    torch.manual_seed(0)
    theirs = transformers.MarianMTModel(transformers.MarianConfig(**PUBLISHED)).eval()
    state = {name: tensor.half() for name, tensor in theirs.state_dict().items()}
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED), encoding="utf-8")
    model = load_model(tmp_path)
    theirs.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    ours, other = logits(model), their_logits(theirs, model)
    assert (ours - other)[..., :59].abs().max() <= 2e-3  # their position table is halved as well


def test_marian_with_separate_vocabularies_opens_here(tmp_path: Path) -> None:
    changes = {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 70,
        "vocab_size": 65,
    }
    torch.manual_seed(0)
    theirs = transformers.MarianMTModel(transformers.MarianConfig(**PUBLISHED | changes)).eval()
    theirs.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert (model.config.source_vocab_size, model.config.vocab_size) == (65, 70)
    assert model.output_head.weight is model.target_embed.weight
    ours, other = logits(model), their_logits(theirs, model)
    others = [i for i in range(70) if i != 59]
    assert (ours - other)[..., others].abs().max() <= 1e-4


@pytest.mark.parametrize(("norm", "activation", "tied"), CASES)
def test_config_there_and_back(norm: str, activation: str, tied: bool) -> None:
    c = config(norm=norm, activation=activation, tie_output=tied, attention_dropout=0.25, max_len=9)
    assert from_hugging_face(json.loads(json.dumps(to_hugging_face(c))), "config.json") == c


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("activation_function", "quick_gelu"),
        ("scale_embedding", False),
        ("normalize_before", True),
        ("normalize_embedding", True),
        ("add_final_layer_norm", True),
        ("static_position_embeddings", False),
        ("decoder_attention_heads", 8),
        ("decoder_ffn_dim", 64),
        ("decoder_start_token_id", 0),
        ("decoder_vocab_size", 61),
        ("d_model", None),
        ("d_model", "many"),
        ("encoder_attention_heads", 0),
    ],
)
def test_a_value_that_cannot_be_expressed_is_named(name: str, value: object) -> None:
    with pytest.raises(UserError, match="n_heads" if value == 0 and "heads" in name else name):
        from_hugging_face(PUBLISHED | {name: value}, "config.json")


def test_a_value_for_training_alone_is_left_out_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="activation_dropout"):
        from_hugging_face(PUBLISHED | {"activation_dropout": 0.1}, "config.json")


def test_names_are_matched_as_a_whole() -> None:
    row = TABLE.row_of("encoder.blocks.11.self_attn.o_proj.weight")
    assert row.theirs == "model.encoder.layers.11.self_attn.out_proj.weight"
    for name in ("x.encoder.norm.weight", "encoder.norm.weight.x", "encoder.blocks.01.norm.bias"):
        with pytest.raises(KeyError):
            TABLE.row_of(name)
    ours, theirs = zip(*((row.ours, row.theirs) for row in TABLE.rows), strict=True)
    assert len(set(ours)) == len(set(theirs)) == len(TABLE.rows)  # so it reads both ways
