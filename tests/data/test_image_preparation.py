"""Preparation against transformers' processors, bit by bit, and both ways on disk."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from everyhead.data.image_preparation import (
    FILE,
    NEWER_FILE,
    Preparation,
    from_values,
    to_values,
)
from everyhead.data.images import as_array
from everyhead.errors import UserError

RNG = np.random.default_rng(0)
SIZES = [(40, 61), (61, 40), (17, 17), (300, 200)]
THEIRS = {
    "vit": lambda: ViTImageProcessorPil(),
    "vit-96": lambda: ViTImageProcessorPil(size={"height": 96, "width": 64}, resample=3),
    "vit-imagenet": lambda: ViTImageProcessorPil(
        image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225]
    ),
    "vit-plain": lambda: ViTImageProcessorPil(do_resize=False, do_normalize=False),
    "vit-bytes": lambda: ViTImageProcessorPil(do_rescale=False, do_normalize=False),
    "clip": lambda: CLIPImageProcessorPil(),
    "clip-small": lambda: CLIPImageProcessorPil(
        size={"shortest_edge": 30}, crop_size={"height": 25, "width": 28}
    ),
    "clip-larger-crop": lambda: CLIPImageProcessorPil(
        size={"shortest_edge": 20}, crop_size={"height": 41, "width": 28}
    ),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", THEIRS)
def test_prepared_pictures_are_theirs_bit_by_bit(tmp_path: Path, name: str, size) -> None:
    theirs = THEIRS[name]()
    theirs.save_pretrained(tmp_path)
    picture = Image.fromarray(RNG.integers(0, 256, (*size, 3), dtype=np.uint8))
    wanted = theirs(picture, return_tensors="np")["pixel_values"][0]
    found = Preparation.load(tmp_path)(as_array(picture))
    assert found.dtype == np.float32 and np.array_equal(found, wanted)


def test_transparency_and_palettes_are_theirs(tmp_path: Path) -> None:
    theirs = CLIPImageProcessorPil(
        size={"shortest_edge": 20}, crop_size={"height": 16, "width": 16}
    )
    theirs.save_pretrained(tmp_path)
    picture = Image.fromarray(RNG.integers(0, 256, (31, 25, 4), dtype=np.uint8))
    for each in (picture, picture.convert("RGB").convert("P"), picture.convert("L")):
        wanted = theirs(each, return_tensors="np")["pixel_values"][0]
        assert np.array_equal(Preparation.load(tmp_path)(as_array(each)), wanted)


def test_one_channel_is_theirs() -> None:
    theirs = ViTImageProcessorPil(
        size={"height": 8, "width": 8}, image_mean=[0.3], image_std=[0.4], do_convert_rgb=False
    )
    picture = Image.fromarray(RNG.integers(0, 256, (8, 8), dtype=np.uint8))
    ours = Preparation(size=(8, 8), mean=(0.3,), std=(0.4,))
    wanted = theirs(picture, return_tensors="np")["pixel_values"][0]
    assert ours.channels == 1 and np.array_equal(ours(as_array(picture, 1)), wanted)


@pytest.mark.parametrize(
    "ours",
    [
        Preparation(),
        Preparation(size=64, crop=(64, 64), resample=3),
        Preparation(size=(8, 12), mean=(0.1,), std=(0.2,)),
        Preparation(size=None, mean=None, std=None),
        Preparation(scale=None),
    ],
)
def test_what_is_saved_is_read_again_and_by_transformers(tmp_path: Path, ours: Preparation) -> None:
    ours.save(tmp_path)
    assert Preparation.load(tmp_path) == ours
    kind = CLIPImageProcessorPil if isinstance(ours.size, int) else ViTImageProcessorPil
    theirs = kind.from_pretrained(tmp_path)
    picture = RNG.integers(0, 256, (70, 66, ours.channels), dtype=np.uint8)
    given = Image.fromarray(picture[..., 0] if ours.channels == 1 else picture)
    assert np.array_equal(ours(picture), theirs(given, return_tensors="np")["pixel_values"][0])


def test_files_of_2021_say_sizes_as_one_number() -> None:
    old = {"crop_size": 20, "do_center_crop": True, "do_resize": True, "resample": 3, "size": 20}
    clip = from_values({**old, "feature_extractor_type": "CLIPFeatureExtractor"}, "a file")
    assert clip.size == 20 and clip.crop == (20, 20) and clip.mean[0] == 0.48145466
    vit = from_values({"size": 20, "feature_extractor_type": "ViTFeatureExtractor"}, "a file")
    assert vit.size == (20, 20) and vit.crop is None and vit.mean == (0.5, 0.5, 0.5)


def test_a_newer_file_has_it_inside(tmp_path: Path) -> None:
    inside = {"image_processor": to_values(Preparation(size=32, crop=(32, 32)))}
    (tmp_path / NEWER_FILE).write_text(json.dumps(inside), encoding="utf-8")
    assert Preparation.load(tmp_path) == Preparation(size=32, crop=(32, 32))


def test_colours_undo_the_numbers() -> None:
    picture = RNG.integers(0, 256, (6, 5, 3), dtype=np.uint8)
    for each in (Preparation(size=None), Preparation(size=None, mean=None, std=None, scale=None)):
        assert np.allclose(each.colours(each(picture)), picture / 255, atol=1e-6)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"size": {"longest_edge": 3}}, "says size"),
        ({"resample": 17}, "says resample 17"),
        ({"do_pad": True}, "asks for padding"),
        ({"image_mean": "x"}, "mean"),
    ],
)
def test_what_is_not_known_is_a_sentence(tmp_path: Path, values: dict, sentence: str) -> None:
    (tmp_path / FILE).write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UserError, match=sentence):
        Preparation.load(tmp_path)
    with pytest.raises(UserError, match=r"has no preprocessor_config\.json"):
        Preparation.load(tmp_path / "elsewhere")
