"""Folders of CLIP, both ways through transformers; names and configs as really published."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import CLIPConfig, CLIPModel

from everyhead.errors import UserError
from everyhead.files import atomic_write_json, read_json
from everyhead.models.clip import Clip, ClipConfig
from everyhead.tensors import read_safetensors, write_tensors
from everyhead.weights.folder import load_model, save_model

TOWER = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {**TOWER, "vocab_size": 60, "max_position_embeddings": 12, "num_hidden_layers": 2}
IMAGE = {**TOWER, "hidden_size": 24, "image_size": 8, "patch_size": 4, "num_hidden_layers": 2}
IDS = torch.tensor([[58, 3, 4, 59], [58, 5, 59, 1]])


def pixels(*size: int) -> Tensor:
    return torch.randn(3, 3, *(size or (8, 8)), generator=torch.Generator().manual_seed(1))


def theirs(**text):
    torch.manual_seed(0)
    ids = {"bos_token_id": 58, "eos_token_id": 59}
    config = CLIPConfig(text_config={**TEXT, **ids, **text}, vision_config=IMAGE, projection_dim=20)
    return CLIPModel(config).eval()


def ours(**choices) -> Clip:
    torch.manual_seed(0)
    shape = {"vocab_size": 60, "max_len": 12, "d_model": 32, "n_heads": 4, "n_layers": 2}
    image = {"image_d_model": 24, "image_n_heads": 3, "image_n_layers": 1, "image_d_ff": 40}
    sizes = {
        "d_ff": 48,
        "image_size": 8,
        "patch_size": 4,
        "d_embed": 20,
        "bos_id": 58,
        "eos_id": 59,
    }
    return Clip(ClipConfig(**{**shape, **image, **sizes, **choices})).eval()


def logits(model, given: Tensor = None) -> Tensor:
    given = pixels() if given is None else given
    with torch.no_grad():
        if isinstance(model, Clip):
            return model(given, IDS)
        return model(input_ids=IDS, pixel_values=given).logits_per_image


@pytest.mark.parametrize("text", [{}, {"eos_token_id": 2}])
def test_what_they_save_we_open(tmp_path: Path, text: dict) -> None:
    model = theirs(**text)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(logits(load_model(tmp_path)), logits(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "choices", [{}, {"eos_id": None}, {"activation": "gelu", "norm_eps": 1e-3}]
)
def test_what_we_save_they_and_we_open(tmp_path: Path, choices: dict) -> None:
    model = ours(**choices)
    assert save_model(model, tmp_path) == []
    found, report = CLIPModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    torch.testing.assert_close(logits(found.eval()), logits(model), rtol=0, atol=1e-5)
    again = load_model(tmp_path)
    assert again.config == model.config and torch.equal(logits(again), logits(model))


@pytest.mark.parametrize(
    ("choices", "reason"),
    [({"image_size": (8, 12)}, "not square"), ({"eos_id": 2}, "at id 2, which there means")],
)
def test_what_hugging_face_cannot_say_is_written_as_itself(
    tmp_path: Path, choices: dict, reason: str
) -> None:
    model = ours(**choices)
    (note,) = save_model(model, tmp_path)
    assert reason in note and load_model(tmp_path).config == model.config


def old_folder(path: Path) -> Path:
    """As openai/clip-vit-base-patch32 lies on the Hub: each tower twice in config.json, the end of
    texts at 2, and position_ids among the weights."""
    theirs(eos_token_id=2).save_pretrained(path)
    values = read_json(path / "config.json")
    for name in ("text_config", "vision_config"):
        values[f"{name}_dict"] = {k: v for k, v in values[name].items() if k != "eos_token_id"}
    values["text_config_dict"]["eos_token_id"] = 2
    atomic_write_json(path / "config.json", values)
    tensors = read_safetensors(path / "model.safetensors")
    tensors["text_model.embeddings.position_ids"] = torch.arange(12)[None]
    tensors["vision_model.embeddings.position_ids"] = torch.arange(5)[None]
    write_tensors(path / "model.safetensors", tensors)
    return path


def test_the_published_files_names_are_known(tmp_path: Path) -> None:
    place = old_folder(tmp_path)
    found = load_model(place)
    assert found.config.eos_id is None
    torch.testing.assert_close(logits(found), logits(theirs(eos_token_id=2)), rtol=0, atol=1e-5)


def test_a_tensor_too_few_is_named(tmp_path: Path) -> None:
    place = old_folder(tmp_path)
    tensors = read_safetensors(place / "model.safetensors")
    del tensors["vision_model.pre_layrnorm.bias"]
    write_tensors(place / "model.safetensors", tensors)
    with pytest.raises(UserError, match=r"missing: vision_model\.pre_layrnorm\.bias"):
        load_model(place)


@pytest.mark.parametrize(
    ("tower", "values", "sentence"),
    [
        ("text_config", {"hidden_act": "gelu"}, "activation .* of the text's tower"),
        ("vision_config", {"hidden_act": "selu"}, "hidden_act 'selu'"),
        ("vision_config", {"patch_size": 3}, "does not divide into patches of 3 × 3"),
    ],
)
def test_what_cannot_be_expressed_is_a_sentence(
    tmp_path: Path, tower: str, values: dict, sentence: str
) -> None:
    theirs().save_pretrained(tmp_path)
    config = read_json(tmp_path / "config.json")
    config[tower] |= values
    atomic_write_json(tmp_path / "config.json", config)
    with pytest.raises(UserError, match=sentence):
        load_model(tmp_path)
