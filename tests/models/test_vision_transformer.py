"""The Vision Transformer against Hugging Face's: outputs, gradients, sizes; and what it refuses."""

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification, ViTModel

from everyhead.models.vision_transformer import (
    PRESETS,
    VisionTransformer,
    VisionTransformerConfig,
)
from everyhead.weights import vit
from everyhead.weights.state import collect, fill

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}


def theirs(kind=ViTForImageClassification, **choices) -> nn.Module:
    """Random, with no bias at zero and no gain at one."""
    torch.manual_seed(0)
    config = {"num_hidden_layers": 2, "image_size": 8, "patch_size": 4, "num_labels": 5}
    model = kind(ViTConfig(**(config | SMALL | choices))).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model


def ours_of(model: nn.Module) -> VisionTransformer:
    """Ours with the same weights, by the table that also opens folders."""
    values = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    ours = VisionTransformer(vit.config(values, "a test")).eval()
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fill(ours, vit.tidy(tensors, values).tensors, vit.slots(ours))
    return ours


def pixels(n: int, *size: int, channels: int = 3) -> Tensor:
    return torch.randn(n, channels, *size, generator=torch.Generator().manual_seed(1))


CHOICES = [
    {},
    {"qkv_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
    {"image_size": [8, 12], "num_channels": 1, "hidden_act": "quick_gelu"},
    {"image_size": [6, 8], "patch_size": [3, 2]},
]


@pytest.mark.parametrize("choices", CHOICES)
def test_the_logits_are_hugging_faces(choices: dict) -> None:
    model = theirs(**choices)
    size = model.config.image_size
    size = size if isinstance(size, list | tuple) else (size, size)
    given = pixels(3, *size, channels=model.config.num_channels)
    with torch.no_grad():
        torch.testing.assert_close(ours_of(model)(given), model(given).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [(12, 8), (16, 16), (4, 4)])
def test_pictures_of_other_sizes_are_read_as_hugging_face_interpolates(size) -> None:
    model, given = theirs(), pixels(2, *size)
    with torch.no_grad():
        wanted = model(given, interpolate_pos_encoding=True).logits
        torch.testing.assert_close(ours_of(model)(given), wanted, rtol=0, atol=1e-5)


def test_the_body_and_its_pooler_are_hugging_faces() -> None:
    model, given = theirs(ViTModel), pixels(2, 8, 8)
    ours = ours_of(model)
    with torch.no_grad():
        wanted, hidden = model(given), ours.hidden(given)
        torch.testing.assert_close(hidden, wanted.last_hidden_state, rtol=0, atol=1e-5)
        torch.testing.assert_close(ours.pooled(hidden), wanted.pooler_output, rtol=0, atol=1e-5)


def test_gradients_are_hugging_faces() -> None:
    model, given = theirs(), pixels(3, 8, 8)
    ours, labels = ours_of(model), torch.tensor([1, 0, 4])
    nn.functional.cross_entropy(model(given).logits, labels).backward()
    nn.functional.cross_entropy(ours(given), labels).backward()
    wanted = {name: p.grad for name, p in model.named_parameters()}
    table = vit.tidy(wanted, {"architectures": ["ViTForImageClassification"]}).tensors
    with torch.no_grad():
        for p in ours.parameters():
            p.copy_(p.grad)
    for name, tensor in collect(ours, vit.slots(ours)).items():
        torch.testing.assert_close(tensor, table[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
def test_at_published_size_and_scale_with_two_layers() -> None:
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(num_hidden_layers=2, num_labels=1000)).eval()
    given = pixels(1, 224, 224)
    with torch.no_grad():
        ours = ours_of(model)
        hidden = ours.hidden(given)
        assert hidden.shape == (1, 197, 768)
        torch.testing.assert_close(ours.head(hidden), model(given).logits, rtol=0, atol=1e-5)


def test_bf16_is_near_hugging_faces_bf16() -> None:
    model, given = theirs(), pixels(3, 8, 8)
    ours = ours_of(model)
    with torch.no_grad():
        exact = ours.hidden(given)
        for each in (model.vit.to(torch.bfloat16), ours.to(torch.bfloat16)):
            hidden = each(given.bfloat16()) if each is not ours else ours.hidden(given)
            hidden = getattr(hidden, "last_hidden_state", hidden).float()
            assert float((hidden - exact).norm() / exact.norm()) < 1e-2


def test_a_batch_is_its_pictures_alone() -> None:
    model, given = ours_of(theirs()), pixels(3, 8, 8)
    with torch.no_grad():
        alone = torch.cat([model(each) for each in given.split(1)])
        torch.testing.assert_close(model(given), alone, rtol=0, atol=1e-5)


def count(preset: str, **choices) -> int:
    with torch.device("meta"):
        model = VisionTransformer(VisionTransformerConfig(**{**PRESETS[preset], **choices}))
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("preset", "published"),
    [("base-16", 86_567_656), ("base-32", 88_224_232), ("large-16", 304_326_632)],
)
def test_parameters_are_the_published_ones_to_the_last(preset: str, published: int) -> None:
    assert count(preset) == published


def test_parameters_are_hugging_faces_with_a_pooler() -> None:
    with torch.device("meta"):
        wanted = ViTModel(ViTConfig())
    assert count("base-16", n_classes=0, pooler=True) == sum(p.numel() for p in wanted.parameters())


def test_sizes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValidationError, match="30 × 30 pixels does not divide into patches"):
        VisionTransformerConfig(image_size=30, patch_size=16)
    with pytest.raises(ValueError, match="9 × 8 pixels does not divide"):
        ours_of(theirs())(pixels(1, 9, 8))


def test_labels_must_name_every_class() -> None:
    with pytest.raises(ValidationError, match="2 labels name 3 classes"):
        VisionTransformerConfig(n_classes=3, labels=("a", "b"))


def test_a_body_has_no_head() -> None:
    model = VisionTransformer(VisionTransformerConfig(**{**PRESETS["tiny"], "n_classes": 0}))
    with pytest.raises(ValueError, match="no classes"):
        model(pixels(1, 8, 8, channels=1))


def test_the_start_is_the_papers() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(VisionTransformerConfig(**PRESETS["tiny"]))
    assert not model.class_token.any() and not model.classifier.weight.any()
    assert model.positions.weight.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.slow
def test_the_tiny_preset_overfits_one_batch() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(VisionTransformerConfig(**PRESETS["tiny"]))
    given, labels = pixels(8, 8, 8, channels=1), torch.arange(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(given), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
