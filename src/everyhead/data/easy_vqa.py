"""easy-VQA: pictures of one shape each, 64 × 64, and questions about them with one-word answers.

4,000 pictures and 38,575 questions to learn from, 1,000 and 9,673 to test on, as the package cuts
them (Victor Zhou 2019, PyPI easy-vqa 1.0, MIT). Validation is cut from the training pictures, never
from their questions: no question about a validation picture is trained on.

What a picture shows follows from its questions: "what color is the shape?" blue, "is there a
circle?" no, "is there not a green shape?" no. Where they tell both the colour and the shape, it has
a class ("blue rectangle") and captions.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from everyhead.data import packages
from everyhead.data.image_sets import ImageSet, ImageSplits, checked
from everyhead.data.splits import stable_fraction
from everyhead.errors import UserError

SHAPES = ("circle", "rectangle", "triangle")
COLOURS = ("black", "blue", "brown", "gray", "green", "red", "teal", "yellow")
ANSWERS = ("yes", "no", *SHAPES, *COLOURS)
CLASSES = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)
TEMPLATES = (
    "a {colour} {shape}",
    "a {shape} that is {colour}",
    "the picture shows a {colour} {shape}",
    "there is a {shape} and its color is {colour}",
    "one {colour} shape, a {shape}",
)
WORDS = re.compile("|".join((*SHAPES, *COLOURS)))
NOT = re.compile(r"\b(no|not)\b")
ATTRIBUTION = "easy-VQA by Victor Zhou (PyPI easy-vqa 1.0, github.com/vzhou842/easy-VQA), MIT."


class Question(NamedTuple):
    text: str
    answer: str
    picture: int


class Pictured(NamedTuple):
    """Pictures and the questions about them, by number of the picture."""

    pictures: dict[int, Path]
    questions: dict[int, list[Question]]

    @property
    def n_questions(self) -> int:
        return sum(map(len, self.questions.values()))

    def pick(self, numbers: Iterable[int]) -> "Pictured":
        numbers = sorted(numbers)
        return Pictured(
            {i: self.pictures[i] for i in numbers}, {i: self.questions[i] for i in numbers}
        )


class EasyVQA(NamedTuple):
    train: Pictured
    validation: Pictured
    test: Pictured


def read(folder: Path | None = None, *, validation: float = 0.1) -> EasyVQA:
    """The package's data folder, by default the fetched one; `validation` of training is cut off.

    Raises:
        UserError: it was not fetched, or is not that folder.
    """
    folder = packages.folder("easy-vqa") if folder is None else folder
    train, test = (_read(folder / name) for name in ("train", "test"))
    held_out = {i for i in train.pictures if stable_fraction(f"easy-vqa {i}") < validation}
    return EasyVQA(train.pick(train.pictures.keys() - held_out), train.pick(held_out), test)


def shapes(data: EasyVQA) -> ImageSplits:
    """Pictures whose colour and shape their questions tell, in 24 classes."""
    return checked(ImageSplits(*map(_classed, data)))


def shown(questions: Iterable[Question]) -> tuple[str, str] | None:
    """(colour, shape) where the questions about a picture tell both."""
    told: set[str] = set()
    for text, answer, _ in questions:
        if answer not in ("yes", "no"):
            told |= {answer, *WORDS.findall(text)}  # "what color is the circle?" tells it is one
        elif (answer == "yes") != bool(NOT.search(text)):
            told |= set(WORDS.findall(text))
    colours, kinds = told & set(COLOURS), told & set(SHAPES)
    return (colours.pop(), kinds.pop()) if len(colours) == len(kinds) == 1 else None


def caption(label: int, template: int = 0) -> str:
    """A sentence for one of CLASSES."""
    colour, shape = CLASSES[label].split()
    return TEMPLATES[template].format(colour=colour, shape=shape)


def _read(folder: Path) -> Pictured:
    try:
        rows = json.loads((folder / "questions.json").read_bytes())
        found: dict[int, list[Question]] = {}
        for text, answer, number in rows:
            found.setdefault(number, []).append(Question(text, answer, number))
        pictures = {int(path.stem): path for path in (folder / "images").glob("*.png")}
        asked = {i: pictures[i] for i in found}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{folder} is not what easy-vqa 1.0 has there ({error}): fetch it anew."
        ) from error
    return Pictured(asked, found).pick(found)


def _classed(data: Pictured) -> ImageSet:
    rows = [(i, shown(data.questions[i])) for i in data.pictures]
    known = [(data.pictures[i], " ".join(told)) for i, told in rows if told is not None]
    labels = np.array([CLASSES.index(name) for _, name in known], dtype=np.int64)
    return ImageSet([path for path, _ in known], labels, CLASSES)
