"""Models that look at pictures: ViT and its kind, and towers for text and picture (CLIP).

Rows and columns of an image's attention are its patches, named by row and column; what stands
before them (a class token) is named [CLS].
"""

from pathlib import Path
from typing import Any

import torch

from everyhead.errors import UserError
from everyhead.explorer.scene import Scene
from everyhead.explorer.sessions import Asked, Half, NextWords, check_text, scene_of_halves
from everyhead.explorer.spans import pieces_of
from everyhead.inspection.trace import record
from everyhead.weights.foreign import Foreign


class PictureReader:
    """A vision tower, alone or beside one that reads text."""

    def __init__(self, foreign: Foreign, image: Path | None) -> None:
        self.foreign, self.model, self.name = foreign, foreign.model, foreign.name
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
            given["input_ids"] = torch.tensor([pieces.ids], device=self.pixels.device)
            halves["text"], texts = Half.of(pieces), [asked.text, self.image.name]
        with torch.inference_mode(), record(self.model, asked.changes) as trace:
            self.model(**given)
        for name in {place.split(".")[0] for place in trace.places()} - {"text"}:
            n = trace.stack(name)[0].shape[2]
            patches = patch_names(self.model.config, n)
            halves[name] = Half(patches, [text == "[CLS]" for text in patches])
        return scene_of_halves(trace, halves, title=texts[0], texts=texts, model=self.name)

    def next_words(self, asked: Asked) -> NextWords | None:
        """Nothing is written."""
        return None


def pixels_of(foreign: Foreign, image: Path) -> torch.Tensor:
    """The picture as the model takes it, (1, channels, height, width).

    Raises:
        UserError: no such file, no picture, or nothing that prepares it.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise UserError("Looking at pictures needs pillow: pip install pillow.") from error
    if foreign.images is None:
        raise UserError(
            f"{foreign.name} has no preprocessor_config.json, which says how pictures are "
            "prepared: put it into the folder."
        )
    try:
        picture = Image.open(image).convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{image} is no picture that can be opened: {error}.") from error
    device = next(foreign.model.parameters()).device
    return foreign.images(picture, return_tensors="pt")["pixel_values"].to(device)


def patch_names(config: Any, n: int) -> list[str]:
    """`[CLS]` for what stands before the patches, then `row,column`."""
    config = getattr(config, "vision_config", config)
    size, patch = getattr(config, "image_size", 0), getattr(config, "patch_size", 0)
    side = size // patch if isinstance(size, int) and isinstance(patch, int) and patch else 0
    if not side or side * side > n:
        return [str(i) for i in range(n)]
    before = n - side * side
    return ["[CLS]"] * before + [f"{i // side},{i % side}" for i in range(side * side)]
