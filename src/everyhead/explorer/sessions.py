"""A model that can be asked: text in, scene out. Translators of ours, and Hugging Face's models.

Changes (inspection/changes.py) are made to the pass that is shown; `Asked` is one question.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from everyhead.errors import UserError
from everyhead.explorer.scene import Floats, Group, Scene
from everyhead.explorer.spans import Pieces
from everyhead.explorer.traced import PlaceLayer, traced
from everyhead.explorer.walk import walk_of
from everyhead.inspection.changes import Change
from everyhead.inspection.statistics import head_statistics, table
from everyhead.inspection.trace import Trace

# Beyond this many tokens a saved page would take minutes to write and to open.
MOST_SAVED = 2048
MOST_SERVED = 32768


class Asked(NamedTuple):
    """A text, a second one for the same input, and the changes that are made.

    target: what a model of two halves is taken to have written, instead of its own output.
    tail: ids that were written after the text (or the target), one step after the other.
    measured: switch every head off in turn, and note what it does.
    """

    text: str
    second: str | None = None
    target: str | None = None
    changes: tuple[Change, ...] = ()
    most: int = MOST_SAVED
    tail: tuple[int, ...] = ()
    measured: bool = False


class Session(Protocol):
    """A model with all that turns text into its input."""

    name: str

    def scene(self, asked: Asked) -> Scene:
        """Run the model once and show it.

        Raises:
            UserError: the text is blank, or too long for the model, or the tail is not its own.
            LookupError: a change names a place or positions that there are not.
        """
        ...

    def next_words(self, asked: Asked) -> "NextWords | None":
        """What would come after the text; None where the model does not say."""
        ...


class NextWords(NamedTuple):
    """Logits (V,) of the piece after the text, and how an id is written."""

    logits: Tensor
    texts: Any


@dataclass(frozen=True)
class Half:
    """What one half of a model read: ids (L,), their texts, which are special, whose sentence."""

    texts: list[str]
    special: list[bool]
    ids: list[int] | None = None
    segments: list[int] | None = None

    @classmethod
    def of(cls, pieces: Pieces) -> "Half":
        both = pieces.segments if len(set(pieces.segments)) > 1 else None
        return cls(pieces.texts, pieces.special, pieces.ids, both)


def scene_of_halves(trace: Trace, halves: dict[str, Half], *, title: str, **more: Any) -> Scene:
    """The scene of a recorded pass, with every head's numbers and names."""
    segments = {name: half.segments for name, half in halves.items() if half.segments}
    scene = traced(
        trace,
        {name: half.texts for name, half in halves.items()},
        title=title,
        special={name: half.special for name, half in halves.items()},
        segments=segments,
        states=last_states(trace),
        walk=walk_of(trace),
        **more,
    )
    return replace(scene, groups=[with_numbers(group, halves) for group in scene.groups])


def last_states(trace: Trace) -> dict[str, Floats]:
    """Of each half (T, C) after its last layer, where that can be told."""
    found: dict[str, Floats] = {}
    for half, layer in {name.partition(".")[0]: name for name in trace.layers()}.items():
        with suppress(LookupError):
            found[half] = trace.residual(layer)[0].float().cpu().numpy()
    return found


def with_numbers(group: Group, halves: dict[str, Half]) -> Group:
    """The group with statistics; rows are taken some at a time, so that long texts fit."""
    memory = "encoder" if group.kind == "cross" else group.name
    if len(group.rows) * len(group.columns) > MOST_SAVED**2:
        return group  # n² of it would take minutes
    half = halves.get(memory)
    ids = None if half is None or group.kind == "cross" else half.ids
    special = None if half is None else half.special
    heads = [
        head_statistics(layer.place, special=special, ids=ids)
        for layer in group.layers
        if isinstance(layer, PlaceLayer)
    ]
    names = [[head.name for head in layer] for layer in heads]
    numbers = {
        name: values
        for name, values in table(heads).items()
        if any(value is not None for layer in values for value in layer)
    }
    return replace(group, numbers=numbers, names=names)


def check_text(text: str) -> str:
    """One line of text.

    Raises:
        UserError: it is blank.
    """
    line = " ".join(text.splitlines())
    if not line.strip():
        raise UserError("The sentence is blank: there is nothing to look at.")
    return line


def check_length(n: int, longest: int | None, most: int) -> None:
    """
    Raises:
        UserError: more tokens than the model takes, or than a page can show.
    """
    if longest is not None and n > longest:
        raise UserError(
            f"The text has {n} pieces and the model takes {longest}: look at a shorter one."
        )
    if n > most:
        served = "" if most >= MOST_SERVED else "; the served page (--serve) shows longer ones"
        raise UserError(f"The text has {n} pieces and a page shows {most}: cut it{served}.")


def check_tail(asked: Asked, model: Any) -> None:
    """
    Raises:
        UserError: an id after the text is none of the model's vocabulary.
    """
    if not asked.tail:
        return
    n = n_words(model)
    for number in asked.tail:
        if n is not None and not 0 <= number < n:
            raise UserError(f"There is no piece {number}: the model knows {n}, counted from 0.")


def n_words(model: Any) -> int | None:
    """V of what the model writes, where its config says so."""
    config = model.config
    config = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    return getattr(config, "vocab_size", None)


def tensor(ids: Sequence[int], device: torch.device) -> Tensor:
    """(1, L) int64."""
    return torch.tensor([[*ids]], dtype=torch.long, device=device)
