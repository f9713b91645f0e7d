"""What the live page may send: known fields alone, each within its limits."""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from everyhead.errors import UserError
from everyhead.explorer.distribution import Shape
from everyhead.explorer.packing import LONG
from everyhead.explorer.scene import Group, Layer, Scene
from everyhead.explorer.sessions import MOST_SERVED, Asked
from everyhead.inspection.changes import Change, HeadOff, TokenHidden

MOST_LETTERS = 200_000
Text = Annotated[str, Field(max_length=MOST_LETTERS)]
Number = Annotated[int, Field(ge=0, lt=10**7)]
WINDOW = 256


class Off(BaseModel):
    """A head that gives zeros."""

    model_config = ConfigDict(extra="forbid")
    place: Annotated[str, Field(max_length=200)]
    head: Number


class Question(BaseModel):
    """A text and the changes that are made to the pass.

    hidden: numbers of keys that nobody may look at, at `places`; effect: only what the changes do
    is asked for, no scene is shown.
    """

    model_config = ConfigDict(extra="forbid")
    text: Text
    second: Text | None = None
    target: Text | None = None
    off: Annotated[list[Off], Field(max_length=4096)] = []
    hidden: Annotated[list[Number], Field(max_length=4096)] = []
    tail: Annotated[list[Number], Field(max_length=4096)] = []
    places: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=1024)] = []
    effect: bool = False

    def asked(self) -> Asked:
        """For the session; `places` are the attentions whose keys are hidden."""
        changes: list[Change] = [HeadOff(each.place, [each.head]) for each in self.off]
        if self.hidden:
            changes += [TokenHidden(place, self.hidden) for place in self.places]
        tail = tuple(self.tail)
        return Asked(self.text, self.second or None, self.target, tuple(changes), MOST_SERVED, tail)


class Next(Question):
    """What would come next, and how it would be drawn."""

    temperature: float = 1.0
    top_k: Number = 0
    top_p: float = 1.0

    def shape(self) -> Shape:
        """The sampler's setting, checked."""
        shape = Shape(self.temperature, self.top_k, self.top_p)
        shape.check()
        return shape


class Head(BaseModel):
    """One head of a scene, whole or from a row and a column on."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["head"] = "head"
    scene: Number
    group: Number
    layer: Number
    head: Number
    row: Number = 0
    column: Number = 0

    def place(self, scene: Scene) -> tuple[Group, Layer]:
        """
        Raises:
            UserError: the scene has no such place.
        """
        if self.group < len(scene.groups):
            group = scene.groups[self.group]
            if self.layer < len(group.layers) and self.head < group.layers[self.layer].n_heads:
                return group, group.layers[self.layer]
        raise UserError("There is no such head in this scene.")

    def window(self, n_rows: int, n_columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers of rows and columns: all of a short text, a window of a long one."""
        sides = []
        for n, start in ((n_rows, self.row), (n_columns, self.column)):
            if max(n_rows, n_columns) <= LONG:
                sides.append(np.arange(n))
            else:
                size = min(WINDOW, n)
                first = min(start, n - size)
                sides.append(np.arange(first, first + size))
        return sides[0], sides[1]
