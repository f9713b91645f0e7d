"""From a picture to what a model takes: preprocessor_config.json, as Hugging Face writes it.

    resize → crop the middle → × 1/255 → (x − mean) / std

The numbers are those of transformers' ViTImageProcessor and CLIPImageProcessor on Pillow, bit by
bit (tests/data/test_image_preparation.py). Their class for torchvision, which takes over where
that is installed, differs from both in the last digits.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from everyhead.data.images import Bytes, pillow, read_picture
from everyhead.errors import UserError
from everyhead.files import atomic_write_json, read_json

FILE, NEWER_FILE = "preprocessor_config.json", "processor_config.json"
Floats = NDArray[np.float32]
HALF = (0.5, 0.5, 0.5)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
BILINEAR, BICUBIC, NEAREST = 2, 3, 0  # Pillow's numbers of filters
FILTERS = range(6)


class Preparation(BaseModel):
    """How a picture becomes numbers; sides are (height, width).

    size: what it is resized to; an int: its shorter side; None: not at all. crop: of the middle.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: tuple[int, int] | int | None = (224, 224)
    crop: tuple[int, int] | None = None
    resample: int = BILINEAR
    scale: float | None = 1 / 255
    mean: tuple[float, ...] | None = HALF
    std: tuple[float, ...] | None = HALF

    @property
    def channels(self) -> int:
        """1: grey."""
        return 3 if self.mean is None else len(self.mean)

    @property
    def one_shape(self) -> bool:
        """Do all pictures come out with the same sides?"""
        return self.crop is not None or isinstance(self.size, tuple)

    def read(self, path: Path | str) -> Floats:
        """A file, prepared: (channels, height, width); raises UserError as `read_picture`."""
        return self(read_picture(path, self.channels))

    def __call__(self, picture: Bytes) -> Floats:
        """(height, width, channels) bytes → (channels, height, width)."""
        x = self.numbers(self.shaped(picture))
        return np.ascontiguousarray(x.transpose(2, 0, 1))

    def shaped(self, picture: Bytes) -> Bytes:
        """Resized and cropped, still bytes (height, width, channels)."""
        if self.size is not None:
            picture = _resized(picture, _target(picture, self.size), self.resample)
        return picture if self.crop is None else _middle(picture, *self.crop)

    def numbers(self, picture: Bytes) -> Floats:
        """Bytes (…, channels) → float32, scaled and normalised."""
        x = picture.astype(np.float32)
        if self.scale is not None:
            x = (picture.astype(np.float64) * self.scale).astype(np.float32)
        if self.mean is not None and self.std is not None:
            mean, std = (np.array(each, dtype=np.float32) for each in (self.mean, self.std))
            x = (x - mean) / std
        return x

    def colours(self, numbers: NDArray[Any]) -> NDArray[np.float64]:
        """(channels, height, width) as the model takes it → (height, width, channels), 0 … 1."""
        x = np.asarray(numbers, np.float64).transpose(1, 2, 0)
        if self.mean is not None and self.std is not None:
            x = x * np.asarray(self.std) + np.asarray(self.mean)
        return (x / (255 * self.scale) if self.scale else x / 255).clip(0, 1)

    @classmethod
    def load(cls, folder: Path) -> "Preparation":
        """The one of a model folder.

        Raises:
            UserError: it is not there, broken, or does what is not known here; that is named.
        """
        found = cls.find(folder)
        if found is None:
            raise UserError(
                f"{folder} has no {FILE}, which says how pictures are prepared: put the one that "
                "was published with the model into the folder."
            )
        return found

    @classmethod
    def find(cls, folder: Path) -> "Preparation | None":
        """The one of a model folder, or None; raises as `load`."""
        for name in (FILE, NEWER_FILE):
            if (folder / name).is_file():
                values = read_json(folder / name)
                values = values.get("image_processor", values)
                if name == FILE or "image_processor_type" in values:
                    return from_values(values, folder / name)
        return None

    def save(self, folder: Path, *, model_max_length: int | None = None) -> None:
        """Write preprocessor_config.json."""
        atomic_write_json(folder / FILE, to_values(self))


def to_values(p: Preparation) -> dict[str, Any]:
    """The content of preprocessor_config.json."""
    size = {} if p.size is None else _size_values(p.size)
    shortest = isinstance(p.size, int)
    return {
        "image_processor_type": "CLIPImageProcessor" if shortest else "ViTImageProcessor",
        "do_convert_rgb": p.channels == 3,
        "do_resize": p.size is not None,
        **({"size": size} if size else {}),
        "resample": p.resample,
        "do_center_crop": p.crop is not None,
        **({} if p.crop is None else {"crop_size": _size_values(p.crop)}),
        "do_rescale": p.scale is not None,
        "rescale_factor": 1 / 255 if p.scale is None else p.scale,
        "do_normalize": p.mean is not None,
        "image_mean": list(HALF if p.mean is None else p.mean),
        "image_std": list(HALF if p.std is None else p.std),
    }


def from_values(values: Mapping[str, Any], where: object) -> Preparation:
    """The preparation of a preprocessor_config.json; what it leaves out is their class's own.

    Raises:
        UserError: something that is not known here is asked for.
    """
    clip = "CLIP" in str(
        values.get("image_processor_type") or values.get("feature_extractor_type") or ""
    )
    get = {"size": 224, "crop_size": 224, **_defaults(clip), **_given(values)}.get
    if get("do_pad") or get("do_flip_channel_order"):
        raise UserError(f"{where} asks for padding or another order of channels; unknown here.")
    if get("resample") not in FILTERS:
        raise UserError(f"{where} says resample {get('resample')!r}; filters are 0 … 5.")
    size = _size_of(get("size"), where, square=not clip) if get("do_resize") else None
    crop = _size_of(get("crop_size"), where, square=True) if get("do_center_crop") else None
    normal = bool(get("do_normalize"))
    fields = {
        "size": size,
        "crop": crop,
        "resample": get("resample"),
        "scale": get("rescale_factor") if get("do_rescale") else None,
        "mean": _numbers(get("image_mean")) if normal else None,
        "std": _numbers(get("image_std")) if normal else None,
    }
    try:
        return Preparation.model_validate(fields)
    except ValidationError as error:
        fault = error.errors()[0]
        raise UserError(f"{where}: {fault['loc'][0]}: {fault['msg']}.") from None


def _defaults(clip: bool) -> dict[str, Any]:
    shared = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255}
    own = {"do_center_crop": clip, "do_normalize": True, "resample": BICUBIC if clip else BILINEAR}
    mean, std = (CLIP_MEAN, CLIP_STD) if clip else (HALF, HALF)
    return {**shared, **own, "image_mean": mean, "image_std": std}


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _numbers(value: Any) -> Any:
    return (value,) * 3 if isinstance(value, int | float) else value


def _size_values(size: tuple[int, int] | int) -> dict[str, int]:
    if isinstance(size, int):
        return {"shortest_edge": size}
    return {"height": size[0], "width": size[1]}


def _size_of(value: Any, where: object, *, square: bool) -> tuple[int, int] | int:
    if isinstance(value, int):
        return (value, value) if square else value
    if isinstance(value, dict):
        if value.keys() == {"height", "width"}:
            return value["height"], value["width"]
        if value.keys() == {"shortest_edge"} and not (square and "crop" in value):
            return value["shortest_edge"]
    raise UserError(f"{where} says size {value!r}; height and width, or shortest_edge, are known.")


def _target(picture: Bytes, size: tuple[int, int] | int) -> tuple[int, int]:
    if not isinstance(size, int):
        return size
    height, width = picture.shape[:2]
    longer = int(size * max(height, width) / min(height, width))
    return (longer, size) if width <= height else (size, longer)


def _resized(picture: Bytes, size: tuple[int, int], resample: int) -> Bytes:
    channels = picture.shape[2]
    image = pillow().fromarray(picture[..., 0] if channels == 1 else picture)
    resized = np.asarray(image.resize((size[1], size[0]), resample=resample))
    return resized.reshape(*size, channels)


def _middle(picture: Bytes, height: int, width: int) -> Bytes:
    """The middle, with zeros around a picture that is smaller."""
    more = max(0, height - picture.shape[0]), max(0, width - picture.shape[1])
    around = [(math.ceil(each / 2), each // 2) for each in more]
    picture = np.pad(picture, (*around, (0, 0)))
    top, left = (picture.shape[0] - height) // 2, (picture.shape[1] - width) // 2
    return picture[top : top + height, left : left + width]
