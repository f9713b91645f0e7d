"""everyhead predict: what a trained model says of texts or pictures, one answer for each input."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everyhead.cli.options import Device, Run, Threads, utf8
from everyhead.errors import UserError

if TYPE_CHECKING:
    from everyhead.cli.predicting import Answer, Predicting


def predict(
    run: Run,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT …",
            help="Texts, pictures, or a picture and a question; without any: standard input, one "
            "input a line, its parts with a TAB between them.",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Or inputs, one a line.")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(metavar='"A, B, …"', help="The classes, for a model that is told them now."),
    ] = None,
    top: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The likeliest N, with probabilities.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines, with the input.")] = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """One line for each input, in the same order; a blank input gives a blank line.

    What an input is follows from what the run has learnt: a text for classes or names, a question
    and a text for answers, a picture, a picture and a question.
    """
    from everyhead.cli.opened import open_run
    from everyhead.cli.predicting import Asked

    opened = open_run(run, device=device, threads=threads)
    kind = _kind_of(opened.recipe.job if opened.recipe else None, run)
    names = tuple(filter(None, map(str.strip, utf8(labels or "").split(","))))
    _check(kind, names, top)
    rows = _rows([utf8(each) for each in inputs or []], file, kind.parts)
    filled = [row for row in rows if any(map(str.strip, row))]
    answers = iter(kind.predict(opened, Asked(filled, names, top)))
    for row in rows:
        answer = next(answers) if any(map(str.strip, row)) else None
        print(_json(kind.parts, row, answer) if as_json else answer.line if answer else "")


def _kind_of(job: str | None, run: Path) -> "Predicting":
    """How this run predicts, or what to use it with instead."""
    from everyhead.cli.predicting import predicting_of
    from everyhead.training.jobs import job_kind

    if job is None:
        raise UserError(
            f"{run} is a model without a recipe, so predict does not know what it has learnt to "
            "do: give a run's folder."
        )
    kind = predicting_of(job)
    if kind is None:
        verb = job_kind(job).verb
        command = shlex.join(["everyhead", verb, str(run)])
        raise UserError(f"{run} has learnt to {job}, which predict does not do; use: {command}")
    return kind


def _check(kind: "Predicting", labels: Sequence[str], top: int | None) -> None:
    if kind.labels and not labels:
        raise UserError('Say what to choose from, for example --labels "a red circle, a square".')
    if labels and not kind.labels:
        raise UserError("This run knows its labels from training: leave --labels out.")
    if top is not None and not kind.top:
        raise UserError("This run gives one answer for each input: leave --top out.")


def _rows(inputs: list[str], file: Path | None, parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Inputs of so many parts each: typed, or lines of a file or of standard input.

    Raises:
        UserError: a part is missing or too many, or there is nothing.
    """
    from everyhead.cli.lines import input_lines

    n, wanted = len(parts), " and ".join(parts)
    if inputs:
        if file is not None:
            raise UserError("Give inputs or --file, not both.")
        if len(inputs) % n:
            raise UserError(f"Each input is {wanted}, so {len(inputs)} arguments do not divide.")
        return [tuple(inputs[i : i + n]) for i in range(0, len(inputs), n)]
    rows = []
    for number, line in enumerate(input_lines(file, " TAB ".join(parts)), 1):
        row = tuple(line.split("\t")) if n > 1 else (line,)
        if len(row) != n and line.strip():
            raise UserError(
                f"Line {number} has {len(row)} columns where {n} are needed: {' TAB '.join(parts)}."
            )
        rows.append(row if line.strip() else ("",) * n)
    if not rows:
        raise UserError("There is no line to read: the input is empty.")
    return rows


def _json(parts: tuple[str, ...], row: tuple[str, ...], answer: "Answer | None") -> str:
    values = dict(zip(parts, row, strict=True)) | (answer.fields if answer else {})
    return json.dumps(values, ensure_ascii=False, allow_nan=False)
