"""Models of pictures in the page: what is shown is what the model looked at, over its picture."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

from everyhead.cli.look_pictures import scene_figure
from everyhead.data.image_preparation import Preparation
from everyhead.data.text_and_pictures import TextAndPictures
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.explorer.own_pictures import OwnPictureReader
from everyhead.explorer.page import html
from everyhead.explorer.pictures import PictureReader
from everyhead.explorer.sessions import Asked
from everyhead.inspection.trace import record
from everyhead.models.clip import Clip, ClipConfig
from everyhead.models.vision_text import VisionText, VisionTextConfig
from everyhead.models.vision_transformer import VisionTransformer, VisionTransformerConfig
from everyhead.weights.foreign import Foreign

SMALL = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48}
SIZES = {"image_size": (8, 12), "patch_size": 4}
LINES = ["what color is the blue shape?", "a red circle"] * 5
PREPARED = Preparation(size=(8, 12))
PIXELS = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def words() -> TextTokenizer:
    return TextTokenizer.train(LINES, kind="wordpiece", vocab_size=120)


def session(model: nn.Module, picture: Path | None) -> OwnPictureReader:
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    reads = not isinstance(model, VisionTransformer)
    companion = TextAndPictures(words(), PREPARED) if reads else PREPARED
    return OwnPictureReader(model.eval(), companion, image=picture, name="a run")


def vision_transformer() -> VisionTransformer:
    torch.manual_seed(0)
    labels = {"n_classes": 2, "labels": ("cat", "狗")}
    return VisionTransformer(VisionTransformerConfig(**SMALL, **SIZES, **labels))


def vision_text() -> VisionText:
    torch.manual_seed(0)
    ends = {"sep_id": 3, "eos_id": 3, "pad_id": 0}
    return VisionText(VisionTextConfig(**SMALL, **SIZES, **ends, vocab_size=words().vocab_size))


def clip() -> Clip:
    torch.manual_seed(0)
    image = {"image_d_model": 32, "image_n_heads": 4, "image_n_layers": 2, "image_d_ff": 48}
    ends = {"bos_id": 2, "eos_id": 3, "pad_id": 0, "vocab_size": words().vocab_size}
    return Clip(ClipConfig(**SMALL, **SIZES, **image, **ends))


def test_a_vision_transformer_shows_its_patches_and_its_class(picture: Path) -> None:
    found = session(vision_transformer(), picture)
    scene = found.scene(Asked(""))
    (group,) = scene.groups
    assert group.rows == ["[CLS]", *(f"{i},{j}" for i in range(2) for j in range(3))]
    assert group.grid == (2, 3) and group.picture.first == 1 and group.picture.query == 0
    with torch.no_grad(), record(found.model) as trace:
        best = int(found.model(found.pixels).argmax())
    assert scene.output == {"text": ("cat", "狗")[best]}
    wanted = trace["encoder.1.self_attn"].weights(heads=[2])[0, 0].numpy()
    np.testing.assert_allclose(group.layers[1].head(2), wanted, atol=1e-6)


def test_the_picture_is_the_one_the_model_saw(picture: Path) -> None:
    (group,) = session(vision_transformer(), picture).scene(Asked("")).groups
    head, _, data = group.picture.url().partition(",")
    assert head == "data:image/png;base64"
    found = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    assert np.array_equal(found, PIXELS)


def test_a_decoder_over_patches_and_words_shows_both_and_answers(picture: Path) -> None:
    found = session(vision_text(), picture)
    scene = found.scene(Asked("what color is the shape?"))
    (group,) = scene.groups
    assert group.rows[:6] == [f"{i},{j}" for i in range(2) for j in range(3)]
    assert group.rows[6] == "[CLS]" and group.rows[-1] == "[SEP]"
    assert group.picture.first == 0 and group.picture.query == len(group.rows) - 1
    assert set(scene.output) == {"text"}
    visible = group.layers[0].visible(0)
    assert visible[0, :6].all() and not visible[0, 6:].any()  # no patch sees a word
    assert np.array_equal(visible[6:, 6:], np.tri(len(group.rows) - 6, dtype=bool))
    words = found.next_words(Asked("what color is the shape?"))
    assert words.logits.shape == (found.model.config.vocab_size,)


def test_clip_shows_its_towers(picture: Path) -> None:
    scene = session(clip(), picture).scene(Asked("a red circle"))
    image, text = scene.groups
    assert (image.name, text.name) == ("image", "text")
    assert image.grid == (2, 3) and text.picture is None
    assert text.rows[0] == "[CLS]" and text.rows[-1] == "[SEP]"


def test_hugging_faces_models_have_their_picture_too(picture: Path) -> None:
    torch.manual_seed(0)
    size = {"image_size": 8, "patch_size": 4, "num_hidden_layers": 1}
    model = ViTForImageClassification(
        ViTConfig(hidden_size=32, num_attention_heads=4, intermediate_size=48, **size)
    )
    images = ViTImageProcessor(size={"height": 8, "width": 8})
    foreign = Foreign(model.eval(), None, "theirs", Path(), images)
    (group,) = PictureReader(foreign, picture).scene(Asked("")).groups
    assert group.grid == (2, 2) and group.picture.colours.shape == (8, 8, 3)
    resized = np.asarray(Image.fromarray(PIXELS).resize((8, 8), resample=2)) / 255
    np.testing.assert_allclose(group.picture.colours, resized, atol=1e-6)


def test_the_page_holds_the_picture_and_the_figure_lies_over_it(picture: Path) -> None:
    scene = session(vision_transformer(), picture).scene(Asked(""))
    assert scene.groups[0].picture.url() in html([scene])
    figure = scene_figure(scene, layer=1, head=None)
    assert len(figure.axes) == 1 + 4  # the picture, and a panel a head


def test_without_a_picture_or_a_preparation_it_says_so(picture: Path) -> None:
    with pytest.raises(UserError, match="give the path of one, with --image FILE"):
        session(vision_transformer(), None)
    with pytest.raises(UserError, match=r"has no preprocessor_config\.json"):
        OwnPictureReader(vision_transformer(), None, image=picture, name="a run")


def test_a_text_that_is_too_long_is_a_sentence(picture: Path) -> None:
    with pytest.raises(UserError, match="pieces and a run takes 64: shorten it"):
        session(vision_text(), picture).scene(Asked("color " * 80))
