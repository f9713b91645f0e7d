"""Pictures with captions: of easy-VQA, or a list of the user's own.

list.tsv: pictures/1.jpg TAB a dog on a beach
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from everyhead.data import easy_vqa
from everyhead.data.image_batches import STILL, Images, Moves
from everyhead.data.image_sets import ImageSet, ImageSplits, from_list, split
from everyhead.data.text_and_pictures import TextAndPictures
from everyhead.errors import UserError


class CaptionSplits(NamedTuple):
    """Sets whose classes are meanings; texts: what each meaning is called, the plainest first.

    unseen: meanings that no training picture has.
    """

    sets: ImageSplits
    texts: list[list[str]]
    unseen: tuple[int, ...] = ()


def shapes(data: easy_vqa.EasyVQA, unseen: Sequence[str] = ()) -> CaptionSplits:
    """easy-VQA's pictures with captions made of what their questions tell.

    unseen: classes, like "teal circle", whose pictures are only tested on.

    Raises:
        UserError: no such class.
    """
    for name in unseen:
        if name not in easy_vqa.CLASSES:
            raise UserError(
                f"data.unseen names {name!r}; there are {', '.join(easy_vqa.CLASSES[:3])} …"
            )
    sets = easy_vqa.shapes(data)
    hidden = tuple(easy_vqa.CLASSES.index(name) for name in unseen)

    def seen(part: ImageSet) -> ImageSet:
        return part.pick(np.flatnonzero(~np.isin(part.labels, hidden)).tolist())

    texts = [
        [easy_vqa.caption(label, i) for i in range(len(easy_vqa.TEMPLATES))]
        for label in range(len(easy_vqa.CLASSES))
    ]
    return CaptionSplits(
        ImageSplits(seen(sets.train), seen(sets.validation), sets.test), texts, hidden
    )


def of_list(path: Path, *, validation: float, test: float) -> CaptionSplits:
    """picture TAB caption, one a line; equal captions mean the same.

    Raises:
        UserError: as `image_sets.from_list`.
    """
    sets = split(from_list(path), validation=validation, test=test)
    return CaptionSplits(sets, [[name] for name in sets.train.names])


class Captioned:
    """A set's pictures with their captions as ids."""

    def __init__(
        self, images: ImageSet, texts: list[list[str]], *, companion: TextAndPictures, max_len: int
    ) -> None:
        self.images = Images(images, companion.pictures)
        self.companion, self.max_len = companion, max_len
        self.labels: NDArray[np.int64] = images.labels
        self.ids = [[self._encoded(text) for text in every] for every in texts]

    @property
    def size(self) -> int:
        return len(self.labels)

    def batch(
        self, rows: Sequence[int], moves: Moves = STILL, *, seed: int = 0, epoch: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """pixels, ids, mask, meanings; the captions drawn anew in every epoch, None: the first."""
        chosen = []
        for row in rows:
            every = self.ids[self.labels[row]]
            rng = np.random.default_rng([seed, epoch or 0, row, 1])
            chosen.append(every[0 if epoch is None else rng.integers(len(every))])
        ids, mask = padded(chosen, self.companion.text.pad_id or 0)
        pixels = self.images.pixels(rows, moves, seed=seed, epoch=epoch or 0)
        return pixels, ids, mask, torch.from_numpy(self.labels[list(rows)])

    def _encoded(self, text: str) -> list[int]:
        ids = self.companion.text.encode(text, literal=True)
        if len(ids) > self.max_len:
            raise UserError(
                f"The caption {text[:60]!r} has {len(ids)} pieces and the model takes "
                f"{self.max_len}: raise model.max_len or shorten it."
            )
        return ids


def padded(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """ids (B, T), filled on the right, and where they are real."""
    longest = max(map(len, rows), default=0)
    ids = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows])
    return ids, torch.arange(longest) < torch.tensor([[len(row)] for row in rows])
