"""Folders of Vision Transformers, both ways through transformers; names as really published."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification, ViTModel

from everyhead.errors import UserError
from everyhead.files import atomic_write_json
from everyhead.models.vision_transformer import VisionTransformer, VisionTransformerConfig
from everyhead.tensors import write_tensors
from everyhead.weights.folder import load_model, save_model

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
LABELS = ("rot", "grün", "蓝")
OURS = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48, "image_size": 8, "patch_size": 4}


def pixels(*size: int) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


def theirs(kind=ViTForImageClassification, **choices):
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "image_size": 8, "patch_size": 4}
    return kind(ViTConfig(**(SMALL | shape | choices))).eval()


@pytest.mark.parametrize("choices", [{"num_labels": 3}, {"num_labels": 2}, {"image_size": [8, 12]}])
def test_what_they_save_we_open(tmp_path: Path, choices: dict) -> None:
    model = theirs(**choices)
    model.save_pretrained(tmp_path)
    ours, size = load_model(tmp_path), choices.get("image_size", [8, 8])
    with torch.no_grad():
        wanted = model(pixels(*size)).logits
        torch.testing.assert_close(ours(pixels(*size)), wanted, rtol=0, atol=1e-5)


def test_what_they_save_of_a_body_we_open(tmp_path: Path) -> None:
    model = theirs(ViTModel)
    model.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    with torch.no_grad():
        wanted = model(pixels(8, 8)).pooler_output
        found = ours.pooled(ours.hidden(pixels(8, 8)))
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "choices",
    [
        {"n_classes": 3, "labels": LABELS},
        {
            "n_classes": 2,
            "image_size": (8, 12),
            "attention_bias": False,
            "activation": "quick_gelu",
        },
        {"n_classes": 0, "pooler": True},
    ],
)
def test_what_we_save_they_and_we_open(tmp_path: Path, choices: dict) -> None:
    torch.manual_seed(0)
    ours = VisionTransformer(VisionTransformerConfig(**{**OURS, **choices})).eval()
    torch.nn.init.normal_(ours.class_token)
    if ours.classifier is not None:
        torch.nn.init.normal_(ours.classifier.weight)
    assert save_model(ours, tmp_path) == []
    body = not choices["n_classes"]
    kind = ViTModel if body else ViTForImageClassification
    model, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    given, again = pixels(*ours.config.image_size), load_model(tmp_path)
    with torch.no_grad():
        wanted = ours.hidden(given) if body else ours(given)
        found = model.eval()(given)
        found = found.last_hidden_state if body else found.logits
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
        assert torch.equal(again.hidden(given), ours.hidden(given))
    assert again.config.model_dump(exclude={"labels"}) == ours.config.model_dump(exclude={"labels"})
    if choices.get("labels"):
        assert again.config.labels == LABELS == tuple(model.config.id2label.values())


def test_what_hugging_face_cannot_say_is_written_as_itself(tmp_path: Path) -> None:
    ours = VisionTransformer(VisionTransformerConfig(**OURS, n_classes=3, pooler=True)).eval()
    (note,) = save_model(ours, tmp_path)
    assert "both a pooler and a head" in note
    again = load_model(tmp_path)
    assert again.config == ours.config
    assert torch.equal(
        again.pooled(again.hidden(pixels(8, 8))), ours.pooled(ours.hidden(pixels(8, 8)))
    )


def published(head: bool) -> dict[str, Tensor]:
    """The names of google/vit-base-patch16-224 (head) and -in21k (none, a pooler), two layers."""
    width, inner = 32, 48
    layer = {
        "attention.attention.query": (width, width),
        "attention.attention.key": (width, width),
        "attention.attention.value": (width, width),
        "attention.output.dense": (width, width),
        "intermediate.dense": (inner, width),
        "output.dense": (width, inner),
        "layernorm_before": (width,),
        "layernorm_after": (width,),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.cls_token": (1, 1, width),
        "embeddings.position_embeddings": (1, 5, width),
        "embeddings.patch_embeddings.projection.weight": (width, 3, 4, 4),
        "embeddings.patch_embeddings.projection.bias": (width,),
        "layernorm.weight": (width,),
        "layernorm.bias": (width,),
    }
    for i in range(2):
        for name, shape in layer.items():
            shapes[f"encoder.layer.{i}.{name}.weight"] = shape
            shapes[f"encoder.layer.{i}.{name}.bias"] = shape[:1]
    if head:
        shapes = {f"vit.{name}": shape for name, shape in shapes.items()}
        shapes |= {"classifier.weight": (3, width), "classifier.bias": (3,)}
    else:
        shapes |= {"pooler.dense.weight": (width, width), "pooler.dense.bias": (width,)}
    rng = torch.Generator().manual_seed(0)
    return {name: 0.1 * torch.randn(shape, generator=rng) for name, shape in shapes.items()}


def folder(path: Path, tensors: dict[str, Tensor], **values) -> Path:
    """As the files of 2021: without pooler_act, pooler_output_size or dtype."""
    config = {
        **{"model_type": "vit", "image_size": 8, "patch_size": 4, "num_hidden_layers": 2},
        **SMALL,
        **{"hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_channels": 3, "qkv_bias": True},
        **values,
    }
    atomic_write_json(path / "config.json", config)
    write_tensors(path / "model.safetensors", tensors)
    return path


NAMES = {"id2label": {"0": "a", "1": "b", "2": "c"}}
CLASSIFIER = {"architectures": ["ViTForImageClassification"], **NAMES}


def test_the_published_files_names_are_those_transformers_reads(tmp_path: Path) -> None:
    for head, kind in ((True, ViTForImageClassification), (False, ViTModel)):
        values = CLASSIFIER if head else {"architectures": ["ViTModel"]}
        place = folder(tmp_path, published(head), **values)
        model, report = kind.from_pretrained(place, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"]
        with torch.no_grad():
            wanted = model.eval()(pixels(8, 8), output_hidden_states=True).hidden_states[-1]
            found = load_model(place).hidden(pixels(8, 8))
            wanted = (model.vit if head else model).layernorm(wanted)
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_a_body_opened_as_a_classifier_gets_a_new_head_and_says_so(tmp_path: Path) -> None:
    place = folder(tmp_path, published(head=False), **CLASSIFIER)
    with pytest.warns(UserWarning) as warned:
        model = load_model(place)
    told = " ".join(str(each.message) for each in warned)
    assert "classifier.weight" in told and "starts at random" in told
    assert "pooler.dense.bias" in told and "no use for" in told
    assert model(pixels(8, 8)).shape == (2, 3)


def test_a_new_number_of_classes_starts_a_new_head(tmp_path: Path) -> None:
    place = folder(tmp_path, published(head=True), **CLASSIFIER)
    with pytest.warns(UserWarning, match="starts at random"):
        model = load_model(place, changes={"n_classes": 7, "labels": ()})
    assert model(pixels(8, 8)).shape == (2, 7)


def test_names_of_newer_code_and_a_mask_token_are_known(tmp_path: Path) -> None:
    newer = {
        "encoder.layer.": "layers.",
        "attention.attention.query": "attention.q_proj",
        "attention.attention.key": "attention.k_proj",
        "attention.attention.value": "attention.v_proj",
        "attention.output.dense": "attention.o_proj",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
    }
    tensors = {}
    for name, tensor in published(head=True).items():
        for old, new in newer.items():
            name = name.replace(old, new)
        tensors[name] = tensor
    tensors["vit.embeddings.mask_token"] = torch.zeros(1, 1, 32)
    found = load_model(folder(tmp_path / "new", tensors, **CLASSIFIER))
    wanted = load_model(folder(tmp_path / "old", published(head=True), **CLASSIFIER))
    assert torch.equal(found(pixels(8, 8)), wanted(pixels(8, 8)))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"hidden_act": "selu"}, "hidden_act 'selu'"),
        ({"pooler_output_size": 7}, "pooler_output_size 7"),
        ({"patch_size": 3}, "does not divide into patches of 3 × 3"),
        ({"image_size": 12}, "vit.embeddings.position_embeddings"),
    ],
)
def test_what_cannot_be_expressed_is_a_sentence(
    tmp_path: Path, values: dict, sentence: str
) -> None:
    place = folder(tmp_path, published(head=True), **{**CLASSIFIER, **values})
    with pytest.raises(UserError, match=sentence):
        load_model(place)
