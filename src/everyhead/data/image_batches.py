"""Batches of pictures: prepared once, moved a little anew in every epoch.

What is random in a picture follows from (seed, epoch, row), so a resumed run sees the same ones.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from everyhead.data.image_preparation import Preparation
from everyhead.data.image_sets import ImageSet
from everyhead.data.images import Bytes
from everyhead.errors import UserError

MOST_KEPT = 1 << 30  # bytes of pictures that stay in memory


class ImageBatch(NamedTuple):
    """pixels float32 (B, ch, H, W), labels int64 (B,)."""

    pixels: Tensor
    labels: Tensor

    @property
    def n_target(self) -> int:
        return self.labels.shape[0]

    def to(self, device: torch.device | str) -> Self:
        return type(self)(self.pixels.to(device), self.labels.to(device))


class Moves(NamedTuple):
    """shift: pixels each way at most, the border repeated; flip: left and right, by chance."""

    shift: int = 0
    flip: bool = False

    def moved(self, picture: Bytes, rng: np.random.Generator) -> Bytes:
        """(height, width, channels), the same shape."""
        if self.shift:
            height, width = picture.shape[:2]
            padded = np.pad(picture, [(self.shift,) * 2] * 2 + [(0, 0)], mode="edge")
            top, left = rng.integers(0, 2 * self.shift + 1, 2)
            picture = padded[top : top + height, left : left + width]
        return picture[:, ::-1] if self.flip and rng.random() < 0.5 else picture


STILL = Moves()


class Images:
    """An ImageSet as a model takes it; what was read once is kept while there is room."""

    def __init__(self, images: ImageSet, preparation: Preparation) -> None:
        self.images, self.preparation = images, preparation
        self._kept: dict[int, Bytes] = {}
        self._room = MOST_KEPT

    def shaped(self, row: int) -> Bytes:
        """One picture resized and cropped, in bytes; raises UserError as `read_picture`."""
        found = self._kept.get(row)
        if found is None:
            picture = self.images.picture(row, self.preparation.channels)
            found = self.preparation.shaped(picture)
            if found.nbytes <= self._room:
                self._kept[row], self._room = found, self._room - found.nbytes
        return found

    def pixels(
        self, rows: Sequence[int], moves: Moves = STILL, *, seed: int = 0, epoch: int = 0
    ) -> Tensor:
        """(B, ch, H, W) of these rows."""
        pictures = [self.shaped(row) for row in rows]
        if len(shapes := {picture.shape[:2] for picture in pictures}) > 1:
            raise UserError(
                "The pictures come out in several sizes ("
                + ", ".join(f"{height} × {width}" for height, width in sorted(shapes)[:3])
                + "), which do not go into one batch: say crop_size and do_center_crop in the "
                "model's preprocessor_config.json, or a height and a width as its size."
            )
        if moves != STILL:
            pictures = [
                moves.moved(picture, np.random.default_rng([seed, epoch, row]))
                for picture, row in zip(pictures, rows, strict=True)
            ]
        numbers = self.preparation.numbers(np.stack(pictures))  # (B, H, W, ch)
        return torch.from_numpy(np.ascontiguousarray(numbers.transpose(0, 3, 1, 2)))

    def batch(
        self, rows: Sequence[int], moves: Moves = STILL, *, seed: int = 0, epoch: int = 0
    ) -> ImageBatch:
        """These rows with their labels."""
        labels = torch.from_numpy(self.images.labels[list(rows)])
        return ImageBatch(self.pixels(rows, moves, seed=seed, epoch=epoch), labels)

    def batches(self, size: int) -> list[ImageBatch]:
        """All rows in order, `size` in a batch."""
        n = self.images.size
        return [self.batch(range(i, min(i + size, n))) for i in range(0, n, size)]
