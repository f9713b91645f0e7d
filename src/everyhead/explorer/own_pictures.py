"""everyhead's own models of pictures as sessions: Vision Transformer, CLIP, VisionText.

The picture is the one at the terminal's path; a text is CLIP's caption or VisionText's question.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from everyhead.data.image_preparation import Preparation
from everyhead.data.images import read_picture
from everyhead.errors import UserError
from everyhead.explorer.pictures import PictureReader, with_picture
from everyhead.explorer.scene import Scene
from everyhead.explorer.sessions import (
    Asked,
    Half,
    NextWords,
    check_tail,
    check_text,
    scene_of_halves,
)
from everyhead.generation.answer import answer
from everyhead.inspection.trace import record
from everyhead.layers.patches import grid_of
from everyhead.models.clip import Clip
from everyhead.models.vision_text import VisionText


class OwnPictureReader(PictureReader):
    """A model of ours that looks at a picture, with what was opened beside it.

    Raises:
        UserError: no picture, one that cannot be read, or nothing that prepares it.
    """

    model: Any

    def __init__(self, model: Any, companion: Any, *, image: Path | None, name: str) -> None:
        self.model, self.companion, self.name = model, companion, name
        preparation = getattr(companion, "pictures", companion)
        if not isinstance(preparation, Preparation):
            raise UserError(
                f"{name} has no preprocessor_config.json, which says how pictures are prepared: "
                "put it into the folder."
            )
        if image is None:
            raise UserError(f"{name} looks at pictures: give the path of one, with --image FILE.")
        prepared = preparation(read_picture(image, preparation.channels))
        self.image, device = image, next(model.parameters()).device
        self.colours: NDArray[np.float64] = np.repeat(
            preparation.colours(prepared), 3 if preparation.channels == 1 else 1, axis=-1
        )
        self.pixels = torch.from_numpy(prepared)[None].to(device)

    @property
    def reads_text(self) -> bool:
        return isinstance(self.model, Clip | VisionText)

    def scene(self, asked: Asked) -> Scene:
        """The patches' attention, and the words' where the model reads some."""
        text = check_text(asked.text) if self.reads_text else ""
        ids = self.companion.text.encode(text, literal=True) if text else []
        self._check_length(ids)
        halves, output = self._halves(ids), self._said(text)
        with torch.inference_mode(), record(self.model, asked.changes) as trace:
            self._run(torch.tensor([ids], device=self.pixels.device))
        texts = [text, self.image.name] if text else [self.image.name]
        scene = scene_of_halves(
            trace, halves, title=texts[0], texts=texts, model=self.name, output=output
        )
        return with_picture(scene, {name: self.colours for name in halves if name != "text"})

    def next_words(self, asked: Asked) -> NextWords | None:
        """Of VisionText: what the answer may begin with."""
        if not isinstance(self.model, VisionText):
            return None
        tokenizer = self.companion.text
        check_tail(asked, self.model)
        ids = [*tokenizer.encode(check_text(asked.text), literal=True), *asked.tail]
        self._check_length(ids)
        given = torch.tensor([ids], device=self.pixels.device)
        with torch.inference_mode(), record(self.model, asked.changes):
            logits = self.model(self.pixels, given)[0, -1]
        return NextWords(logits.float().cpu(), tokenizer.spans)

    def _run(self, ids: torch.Tensor) -> object:
        if isinstance(self.model, Clip | VisionText):
            return self.model(self.pixels, ids)
        return self.model.hidden(self.pixels)

    def _halves(self, ids: list[int]) -> dict[str, Half]:
        size = (self.pixels.shape[2], self.pixels.shape[3])
        rows, columns = grid_of(size, self.model.config.patch_size)
        patches = [f"{i},{j}" for i in range(rows) for j in range(columns)]
        pieces = self.companion.text.spans(ids) if ids else []
        special = [i in self.companion.text.special_ids for i in ids] if ids else []
        if isinstance(self.model, VisionText):
            marks = [False] * len(patches) + special
            return {"decoder": Half([*patches, *pieces], marks)}
        looking = Half(["[CLS]", *patches], [True, *[False] * len(patches)])
        if isinstance(self.model, Clip):
            return {"image": looking, "text": Half(pieces, special, ids)}
        return {"encoder": looking}

    def _said(self, text: str) -> dict[str, Any] | None:
        """What the model makes of it: a class, or an answer."""
        if isinstance(self.model, VisionText):
            return {"text": answer(self.model, self.companion, self.pixels, [text])[0].text}
        config = self.model.config
        if isinstance(self.model, Clip) or not config.n_classes:
            return None
        with torch.inference_mode():
            best = int(self.model(self.pixels)[0].argmax())
        return {"text": config.labels[best] if config.labels else str(best)}

    def _check_length(self, ids: list[int]) -> None:
        limit = getattr(self.model.config, "max_len", None)
        if limit is not None and len(ids) > limit:
            raise UserError(
                f"The text has {len(ids)} pieces and {self.name} takes {limit}: shorten it."
            )
