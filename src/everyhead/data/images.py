"""Pictures from files: PNG, JPEG, WebP, BMP, GIF (its first frame), read by Pillow.

Turned as EXIF says; transparency is laid over white; palettes, grey, CMYK and 16 bit become 8-bit
RGB or grey. A file that claims more pixels than `MOST_PIXELS` is refused before it is unpacked.
"""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from everyhead.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

Bytes = NDArray[np.uint8]

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")  # none that runs another program
MOST_PIXELS = 89_478_485  # Pillow's own mark, a quarter of a gibibyte of RGB


def pillow() -> Any:
    """The module PIL.Image.

    Raises:
        UserError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise UserError(
            "Reading pictures needs Pillow; install it with: pip install 'everyhead[images]'"
        ) from error
    return Image


def read_picture(path: Path | str, channels: int = 3) -> Bytes:
    """(height, width, channels) of a file, channels 3 (RGB) or 1 (grey).

    Raises:
        UserError: no such file, no picture, broken, or more than MOST_PIXELS; or no Pillow.
    """
    return as_array(open_picture(path), channels)


def open_picture(path: Path | str) -> "Image":
    """The picture, unpacked and turned as its EXIF says; raises as `read_picture`."""
    Image, path = pillow(), Path(path)
    if not path.is_file():
        what = "is a folder, not a picture" if path.is_dir() else "is not there"
        raise UserError(f"The picture {path} {what}; check the path.")
    from PIL import ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of size; the limit here is the lower one
            with Image.open(path, formats=FORMATS) as picture:
                _check_size(path, *picture.size)
                picture.load()
                turned = ImageOps.exif_transpose(picture)
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as error:
        raise UserError(
            f"{path} is no picture that can be opened: {_reason(error)}. Give a whole PNG, JPEG, "
            "WebP, BMP or GIF file."
        ) from error
    return picture if turned is None else turned


def _check_size(path: Path, width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise UserError(
            f"{path} claims {width:,} × {height:,} pixels; at most {MOST_PIXELS:,} are unpacked "
            "here: make it smaller first."
        )


def _reason(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return (
        "unknown format"
        if "cannot identify" in words
        else words.rstrip(".") or type(error).__name__
    )


def as_array(picture: "Image", channels: int = 3) -> Bytes:
    """(height, width, channels) of an opened picture."""
    module = pillow()
    if picture.mode.startswith("I") or picture.mode == "F":
        picture = _eight_bits(picture)
    if "A" in picture.getbands() or picture.info.get("transparency") is not None:
        picture = picture.convert("RGBA")
        white = module.new("RGBA", picture.size, (255, 255, 255, 255))
        picture = module.alpha_composite(white, picture)
    array = np.asarray(picture.convert("L" if channels == 1 else "RGB"), dtype=np.uint8)
    return array.reshape(*array.shape[:2], channels)


def _eight_bits(picture: "Image") -> "Image":
    """The upper eight of sixteen bits; converting alone would cut everything above 255."""
    values = np.asarray(picture).astype(np.int64)
    return pillow().fromarray((values.clip(0, 65_535) >> 8).astype(np.uint8))
