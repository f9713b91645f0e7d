"""Options that several verbs share, each said once."""

import os
from pathlib import Path
from typing import Annotated

import typer

from everyhead.errors import UserError

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, like runs/demo.")]
Beam = Annotated[
    int | None,
    typer.Option(metavar="N", help="Beams; 1 is greedy. By default the recipe's."),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        metavar="X", help="Scores are divided by length to this power. By default the recipe's."
    ),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1 …")]
Threads = Annotated[
    int | None, typer.Option(metavar="N", help="Processor threads; by default as many as cores.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change the recipe, like train.max_steps=5000; may be repeated.",
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Your own data for the recipe's job, in the place of its own; may be repeated.",
    ),
]


def utf8(text: str) -> str:
    """A text that was typed, as UTF-8 even where the locale knows nothing beyond ASCII.

    Raises:
        UserError: its bytes are not UTF-8.
    """
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError as error:
        raise UserError(f"{text!r} is not UTF-8; set the terminal to UTF-8.") from error
