"""The convolution for pictures against torch.nn's own functions, written out."""

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from everyhead.models.picture_convolution import (
    PRESETS,
    PictureConvolution,
    PictureConvolutionConfig,
)
from everyhead.models.vision_transformer import PRESETS as PATCHED
from everyhead.models.vision_transformer import VisionTransformer, VisionTransformerConfig


def build(**choices) -> PictureConvolution:
    torch.manual_seed(0)
    config = {"image_size": 8, "n_channels": 1, "channels": (4, 6), "n_classes": 3}
    model = PictureConvolution(PictureConvolutionConfig(**{**config, **choices})).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model


def test_it_is_its_formula() -> None:
    model, pixels = build(), torch.randn(2, 1, 8, 8)
    x = pixels
    for stage in model.stages:
        x = F.conv2d(x, stage[0].weight, stage[0].bias, padding=1)
        mean = x.mean((1, 2, 3), keepdim=True)
        x = (x - mean) / (x.var((1, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
        x = x * stage[1].weight[:, None, None] + stage[1].bias[:, None, None]
        x = F.max_pool2d(x.clamp_min(0), 2)
    wanted = F.linear(x.mean((2, 3)), model.classifier.weight, model.classifier.bias)
    torch.testing.assert_close(model(pixels), wanted, rtol=0, atol=1e-5)
    assert model.hidden(pixels).shape == (2, 4, 6)


@pytest.mark.parametrize("preset", PRESETS)
def test_it_has_as_many_parameters_as_the_vision_transformer_beside_it(preset: str) -> None:
    counts = []
    with torch.device("meta"):
        for kind, config, presets in (
            (PictureConvolution, PictureConvolutionConfig, PRESETS),
            (VisionTransformer, VisionTransformerConfig, PATCHED),
        ):
            model = kind(config(**{"n_classes": 10, **presets[preset]}))
            counts.append(sum(p.numel() for p in model.parameters()))
    assert counts[0] == pytest.approx(counts[1], rel=0.005)


def test_pictures_too_small_for_its_stages_are_refused() -> None:
    with pytest.raises(ValidationError, match="2 × 2 pixels cannot be halved 2 times"):
        build(image_size=2)


def test_other_channels_are_refused_with_the_shape() -> None:
    with pytest.raises(ValueError, match=r"1 channels, height, width\); got \(2, 3, 8, 8\)"):
        build()(torch.zeros(2, 3, 8, 8))
