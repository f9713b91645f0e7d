"""What `everyhead predict` says, by job: a table of one line each, imported when asked for.

A job's module holds a `Predicting`: what one input consists of, and a function from all inputs to
an answer each.
"""

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from everyhead.cli.opened import Opened


class Asked(NamedTuple):
    """The inputs in order, each with as many parts as the job reads; and what else was asked.

    labels: of `--labels`, for a job that is told the classes only now. top: the likeliest so many.
    """

    rows: Sequence[tuple[str, ...]]
    labels: tuple[str, ...] = ()
    top: int | None = None


class Answer(NamedTuple):
    """Of one input: a line to print, and the fields of its JSON object beside the input's own."""

    line: str
    fields: dict[str, Any]


class Predicting(NamedTuple):
    """One job. parts: the names of an input's parts, like ("text",) or ("picture", "question").

    predict: answers in the order of the inputs, which hold no blank one. labels: does it need
    --labels? top: does it know --top?
    """

    parts: tuple[str, ...]
    predict: Callable[[Opened, Asked], Iterable[Answer]]
    labels: bool = False
    top: bool = False


# job → module:name
PREDICTING: dict[str, str] = {
    "classify": "everyhead.cli.predicting.texts:CLASSES",
    "tag": "everyhead.cli.predicting.texts:ENTITIES",
    "answer": "everyhead.cli.predicting.texts:ANSWERS",
    "image": "everyhead.cli.predicting.pictures:CLASSES",
    "clip": "everyhead.cli.predicting.pictures:TEXTS",
    "vqa": "everyhead.cli.predicting.pictures:ANSWERS",
}


def predicting_of(job: str) -> Predicting | None:
    """How this job predicts, None where it does not."""
    if job not in PREDICTING:
        return None
    module, _, name = PREDICTING[job].partition(":")
    found: Predicting = getattr(importlib.import_module(module), name)
    return found
