"""Pictures of every mode, turned, broken, oversized: what is read, and what is said instead."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from everyhead.data import images
from everyhead.data.images import read_picture
from everyhead.errors import UserError

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)
GREY = RNG.integers(0, 256, (5, 7), dtype=np.uint8)


def test_a_png_comes_back_byte_by_byte(tmp_path: Path) -> None:
    Image.fromarray(COLOURS).save(tmp_path / "a.png")
    assert np.array_equal(read_picture(tmp_path / "a.png"), COLOURS)


def test_grey_becomes_three_equal_channels_or_stays_one(tmp_path: Path) -> None:
    Image.fromarray(GREY).save(tmp_path / "a.png")
    assert np.array_equal(read_picture(tmp_path / "a.png"), np.repeat(GREY[..., None], 3, 2))
    assert np.array_equal(read_picture(tmp_path / "a.png", 1), GREY[..., None])


def test_a_jpeg_is_near_what_was_saved(tmp_path: Path) -> None:
    smooth = np.full((16, 16, 3), (200, 100, 50), dtype=np.uint8)
    Image.fromarray(smooth).save(tmp_path / "a.JPG", quality=95)
    assert np.abs(read_picture(tmp_path / "a.JPG").astype(int) - smooth).max() <= 3


def test_transparency_is_laid_over_white(tmp_path: Path) -> None:
    pixels = np.zeros((1, 3, 4), dtype=np.uint8)
    pixels[0, :, 3] = 0, 51, 255  # black, ever less transparent
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert read_picture(tmp_path / "a.png")[0, :, 0].tolist() == [255, 204, 0]
    grey = np.stack([np.zeros((1, 3), np.uint8), pixels[..., 3]], -1)
    Image.fromarray(grey).save(tmp_path / "b.png")
    assert read_picture(tmp_path / "b.png", 1)[0, :, 0].tolist() == [255, 204, 0]


def test_a_palette_with_a_transparent_colour(tmp_path: Path) -> None:
    picture = Image.new("P", (2, 1))
    picture.putpalette([10, 20, 30, 200, 0, 0])
    picture.putdata([0, 1])
    picture.save(tmp_path / "a.png", transparency=1)
    assert read_picture(tmp_path / "a.png")[0].tolist() == [[10, 20, 30], [255, 255, 255]]


def test_sixteen_bits_keep_their_upper_eight(tmp_path: Path) -> None:
    deep = np.array([[0, 255, 256, 32_768, 65_535]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "a.png")
    assert read_picture(tmp_path / "a.png")[0, :, 0].tolist() == [0, 0, 1, 128, 255]


@pytest.mark.parametrize("mode", ["CMYK", "1", "LA", "RGBA", "P"])
def test_every_mode_becomes_bytes_of_three_channels(tmp_path: Path, mode: str) -> None:
    suffix = ".jpg" if mode == "CMYK" else ".png"
    Image.fromarray(COLOURS).convert(mode).save(tmp_path / f"a{suffix}")
    found = read_picture(tmp_path / f"a{suffix}")
    assert found.shape == (5, 7, 3) and found.dtype == np.uint8


@pytest.mark.parametrize(("orientation", "turned"), [(6, -1), (8, 1), (3, 2), (1, 0)])
def test_exif_turns_the_picture(tmp_path: Path, orientation: int, turned: int) -> None:
    picture = Image.fromarray(COLOURS)
    exif = picture.getexif()
    exif[0x0112] = orientation
    picture.save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(read_picture(tmp_path / "a.png"), np.rot90(COLOURS, turned))


def png_claiming(width: int, height: int) -> bytes:
    """A PNG whose header promises more than its few bytes hold."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"0" * 99))


@pytest.mark.parametrize("size", [(20_000, 20_000), (9_460, 9_460)])
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, size: tuple[int, int]) -> None:
    (tmp_path / "a.png").write_bytes(png_claiming(*size))
    with pytest.raises(UserError, match=r"pixels"):
        read_picture(tmp_path / "a.png")


def cut_png() -> bytes:
    file = io.BytesIO()
    noise = RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "PNG")
    return file.getvalue()[:5000]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "unknown format"),
        (b"not a picture", "unknown format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "unknown format"),
        (cut_png(), "truncated"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "PNG, JPEG"),
    ],
)
def test_a_broken_file_is_a_sentence(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "蓝.png").write_bytes(content)
    with pytest.raises(UserError, match=reason) as told:
        read_picture(tmp_path / "蓝.png")
    assert "蓝.png" in str(told.value)


def test_no_file_and_a_folder_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not there; check the path"):
        read_picture(tmp_path / "none.png")
    with pytest.raises(UserError, match="is a folder, not a picture"):
        read_picture(tmp_path)


def test_without_pillow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(UserError, match=r"pip install 'everyhead\[images\]'"):
        images.pillow()
