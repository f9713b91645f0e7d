"""Models that look at pictures: ViT and its kind, and towers for text and picture (CLIP).

Rows and columns of an image's attention are its patches, named by row and column; what stands
before them (a class token) is named [CLS].
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from everyhead.data.images import pillow, read_picture
from everyhead.errors import UserError
from everyhead.explorer.scene import Picture, Scene
from everyhead.explorer.sessions import (
    Asked,
    Half,
    NextWords,
    check_length,
    check_text,
    scene_of_halves,
)
from everyhead.explorer.spans import pieces_of
from everyhead.inspection.trace import record
from everyhead.weights.foreign import Foreign

PATCH = re.compile(r"\d+,\d+")


class PictureReader:
    """A vision tower, alone or beside one that reads text."""

    def __init__(self, foreign: Foreign, image: Path | None) -> None:
        self.foreign, self.name = foreign, foreign.name
        self.model: Any = foreign.model
        if image is None:
            raise UserError(
                f"{foreign.name} looks at pictures: give the path of one, with --image FILE."
            )
        self.pixels = pixels_of(foreign, image)
        self.image = image

    @property
    def reads_text(self) -> bool:
        """Is there a tower for text beside the one for pictures?"""
        towers = hasattr(self.model.config, "text_config")
        return towers and self.foreign.tokenizer is not None

    def scene(self, asked: Asked) -> Scene:
        """The patches' attention, and the text's where the model reads one too."""
        given: dict[str, Any] = {"pixel_values": self.pixels}
        halves: dict[str, Half] = {}
        texts = [self.image.name]
        if self.reads_text:
            pieces = pieces_of(self.foreign.tokenizer, check_text(asked.text))
            longest = getattr(self.model.config.text_config, "max_position_embeddings", None)
            check_length(len(pieces.ids), longest, asked.most)
            given["input_ids"] = torch.tensor([pieces.ids], device=self.pixels.device)
            halves["text"], texts = Half.of(pieces), [asked.text, self.image.name]
        with torch.inference_mode(), record(self.model, asked.changes) as trace:
            self.model(**given)
        for name in {place.split(".")[0] for place in trace.places()} - {"text"}:
            n = trace.stack(name)[0].shape[2]
            patches = patch_names(self.model.config, n, tuple(self.pixels.shape[2:]))
            halves[name] = Half(patches, [text == "[CLS]" for text in patches])
        scene = scene_of_halves(trace, halves, title=texts[0], texts=texts, model=self.name)
        colours = colours_of(self.foreign.images, self.pixels)
        return with_picture(scene, {name: colours for name in halves if name != "text"})

    def next_words(self, asked: Asked) -> NextWords | None:
        """Nothing is written."""
        return None


def pixels_of(foreign: Foreign, image: Path) -> torch.Tensor:
    """The picture as the model takes it, (1, channels, height, width).

    Raises:
        UserError: no such file, no picture, or nothing that prepares it.
    """
    if foreign.images is None:
        raise UserError(
            f"{foreign.name} has no preprocessor_config.json, which says how pictures are "
            "prepared: put it into the folder."
        )
    picture = pillow().fromarray(read_picture(image))
    device = next(foreign.model.parameters()).device
    return foreign.images(picture, return_tensors="pt")["pixel_values"].to(device)


def colours_of(images: Any, pixels: torch.Tensor) -> NDArray[np.float64]:
    """(height, width, 3), 0 … 1, of what transformers' processor made (1, 3, height, width)."""
    x = pixels[0].double().cpu().permute(1, 2, 0).numpy()
    mean, std = (getattr(images, name, None) for name in ("image_mean", "image_std"))
    if getattr(images, "do_normalize", False) and mean is not None and std is not None:
        x = x * np.asarray(std) + np.asarray(mean)
    scaled = getattr(images, "do_rescale", True)
    return np.broadcast_to(x if scaled else x / 255, (*x.shape[:2], 3)).clip(0, 1)


def with_picture(scene: Scene, colours: dict[str, NDArray[np.float64]]) -> Scene:
    """The scene with the picture that the patches of these halves were cut from.

    The patches are the tokens that are named by row and column.
    """
    groups = []
    for group in scene.groups:
        places = [i for i, name in enumerate(group.rows) if PATCH.fullmatch(name)]
        if group.name in colours and places:
            rows, columns = (int(part) + 1 for part in group.rows[places[-1]].split(","))
            first, last = places[0], places[-1]
            query = 0 if first else len(group.rows) - 1 if last + 1 < len(group.rows) else first
            picture = Picture(colours[group.name], (rows, columns), first, query)
            group = replace(group, grid=(rows, columns), picture=picture)
        groups.append(group)
    return replace(scene, groups=groups)


def patch_names(config: Any, n: int, size: tuple[int, ...]) -> list[str]:
    """`[CLS]` for what stands before the patches, then `row,column`; size: of what is looked at."""
    config = getattr(config, "vision_config", config)
    patch = getattr(config, "patch_size", 0) or 0
    side = (patch, patch) if isinstance(patch, int) else tuple(patch)  # (height, width)
    if len(size) != 2 or len(side) != 2 or not all(side):
        return [str(i) for i in range(n)]
    rows, columns = size[0] // side[0], size[1] // side[1]
    if not rows * columns or rows * columns > n:
        return [str(i) for i in range(n)]
    before = n - rows * columns
    return ["[CLS]"] * before + [f"{i // columns},{i % columns}" for i in range(rows * columns)]
