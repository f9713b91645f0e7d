"""What holds for every model of pictures: prepared = plain, looking changes nothing, files."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from everyhead.data.image_preparation import Preparation
from everyhead.data.text_and_pictures import TextAndPictures
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.inspection.changes import HeadOff
from everyhead.inspection.trace import record
from everyhead.models.clip import Clip, ClipConfig
from everyhead.models.picture_convolution import PictureConvolution, PictureConvolutionConfig
from everyhead.models.prepare import prepare
from everyhead.models.vision_text import VisionText, VisionTextConfig
from everyhead.models.vision_transformer import VisionTransformer, VisionTransformerConfig
from everyhead.weights.folder import load, save

SMALL = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48, "image_size": 8, "patch_size": 4}
IMAGE = {"image_d_model": 24, "image_n_heads": 3, "image_n_layers": 2, "image_d_ff": 40}
LINES = ["what color is the blue shape?", "is there a red circle?"] * 4
TEXT = TextTokenizer.train(LINES, kind="wordpiece", vocab_size=120)
ENDS = {"vocab_size": TEXT.vocab_size, "pad_id": TEXT.pad_id, "eos_id": TEXT.sep_id}
IDS = torch.tensor([TEXT.encode("is there a circle?")])
NAMES = ("vision-transformer", "clip", "vision-text")


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "vision-transformer":
        config = VisionTransformerConfig(**SMALL, n_classes=3, labels=("a", "b", "c"))
        model: nn.Module = VisionTransformer(config)
    elif name == "clip":
        model = Clip(ClipConfig(**SMALL, **IMAGE, **ENDS, bos_id=TEXT.cls_id, max_len=20))
    else:
        model = VisionText(VisionTextConfig(**SMALL, **ENDS, sep_id=TEXT.sep_id, max_len=20))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model.eval()


def run(model: nn.Module) -> Tensor:
    pixels = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(pixels) if isinstance(model, VisionTransformer) else model(pixels, IDS)


def finite(x: Tensor) -> Tensor:
    return x.masked_fill(x.isinf(), 0)


@pytest.mark.parametrize("name", NAMES)
def test_prepared_is_plain(name: str) -> None:
    model = build(name)
    found = finite(run(prepare(model)))
    torch.testing.assert_close(found, finite(run(model)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_looking_changes_nothing_and_rows_sum_to_one(name: str) -> None:
    model = build(name)
    plain = run(model)
    with record(model) as trace:
        assert torch.equal(run(model), plain)
    for place in trace.places():
        weights = trace[place].weights()
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    first = trace.places()[0]
    with record(model, [HeadOff(first, [1])]):
        assert not torch.equal(run(model), plain)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_comes_back_as_it_was_with_what_belongs_to_it(name: str, tmp_path: Path) -> None:
    model, pictures = build(name), Preparation(size=(8, 8))
    companion = pictures if name == "vision-transformer" else TextAndPictures(TEXT, pictures)
    save(model, companion, tmp_path)
    again, beside = load(tmp_path)
    assert again.config == model.config and torch.equal(run(again), run(model))
    if name == "vision-transformer":
        assert beside == pictures
    else:
        assert beside.pictures == pictures and beside.text.encode("a circle") == TEXT.encode(
            "a circle"
        )


def test_vision_text_keeps_its_tie(tmp_path: Path) -> None:
    save(build("vision-text"), None, tmp_path)
    from everyhead.weights.folder import load_model

    again = load_model(tmp_path)
    assert again.output_head.weight is again.embed.weight


def test_clip_without_its_preparation_says_what_is_missing(tmp_path: Path) -> None:
    save(build("clip"), TextAndPictures(TEXT, Preparation()), tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"has no preprocessor_config\.json"):
        load(tmp_path)


def test_a_convolution_comes_back_and_has_no_attention_to_look_at(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = PictureConvolutionConfig(image_size=8, channels=(4, 6), n_classes=2, labels=("a", "b"))
    model = PictureConvolution(config).eval()
    nn.init.normal_(model.classifier.weight)
    save(model, Preparation(size=(8, 8)), tmp_path)
    again, _ = load(tmp_path)
    pixels = torch.randn(2, 3, 8, 8)
    assert again.config == config and torch.equal(again(pixels), model(pixels))
    with pytest.raises(UserError), record(model):
        model(pixels)
