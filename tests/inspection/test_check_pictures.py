"""`check` on models of pictures: the laws hold, and a planted fault of each is found."""

import pytest
import torch
from torch import nn

from everyhead.cli.checked import check
from everyhead.models.clip import Clip, ClipConfig
from everyhead.models.vision_text import VisionText, VisionTextConfig
from everyhead.models.vision_transformer import VisionTransformer, VisionTransformerConfig

SMALL = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48, "image_size": 8, "patch_size": 4}
IMAGE = {"image_d_model": 24, "image_n_heads": 3, "image_n_layers": 1, "image_d_ff": 40}
ENDS = {"vocab_size": 60, "bos_id": 58, "eos_id": 59, "pad_id": 0}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "vision-transformer":
        model: nn.Module = VisionTransformer(VisionTransformerConfig(**SMALL, n_classes=3))
    elif name == "clip":
        model = Clip(ClipConfig(**SMALL, **IMAGE, **ENDS, max_len=20, d_embed=20))
    else:
        model = VisionText(VisionTextConfig(**SMALL, vocab_size=60, max_len=20))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


PASSED = {
    "vision-transformer": {"repeat", "batch", "save-load"},
    "clip": {
        *("repeat", "batch", "padding-right", "padding-left", "under-padding", "nan-padding"),
        *("empty-row", "future", "save-load"),
    },
    "vision-text": {
        *("repeat", "batch", "padding-right", "padding-left", "under-padding", "nan-padding"),
        *("empty-row", "future", "cache", "reorder", "save-load", "ties"),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PASSED)
def test_the_laws_hold(name: str) -> None:
    found = check(build(name))
    assert [f.law for f in found if f.verdict == "fail"] == []
    assert {f.law for f in found if f.verdict == "pass"} == PASSED[name]


def broken(name: str, law: str) -> str:
    """The verdict on a model whose method is spoilt."""
    model = build(name)
    if law == "batch":
        plain = model.hidden
        model.hidden = lambda pixels: plain(pixels) + pixels.mean()  # type: ignore[method-assign]
    elif law == "padding-right":
        read = model.text_features
        model.text_features = lambda ids, mask=None: read(ids, None) + ids.shape[1]
    else:
        see = model.hidden
        model.hidden = lambda pixels, ids, mask=None, **more: (
            see(pixels, ids, mask, **more) + ids.sum()
        )
    (finding,) = check(model, laws=[law])
    return finding.verdict


@pytest.mark.parametrize(
    ("name", "law"),
    [("vision-transformer", "batch"), ("clip", "padding-right"), ("vision-text", "future")],
)
def test_a_planted_fault_is_found(name: str, law: str) -> None:
    assert broken(name, law) == "fail"
