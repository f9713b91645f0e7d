"""Lines that a verb reads: of a file, or of standard input."""

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from everyhead.cli.options import utf8
from everyhead.errors import UserError


def input_lines(file: Path | None, hint: str) -> Iterator[str]:
    """Lines as UTF-8, split at \\n alone, byte order marks dropped; `-` is standard input.

    hint: what is typed, shown where standard input is a person's keyboard.

    Raises:
        UserError: no such file, or a line that is not UTF-8.
    """
    if file is not None and str(file) != "-":
        from everyhead.data.text import read_lines

        yield from read_lines(file)
        return
    if sys.stdin is not None and sys.stdin.isatty():
        print(f"Type {hint} and Enter; Ctrl-D ends.", file=sys.stderr)
    yield from stdin_lines()


def stdin_lines() -> Iterator[str]:
    """Lines of standard input as UTF-8, split at \\n alone; byte order marks are dropped.

    Raises:
        UserError: a line that is not UTF-8.
    """
    for number, line in enumerate(sys.stdin.buffer if sys.stdin is not None else (), 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"Line {number} of standard input is not UTF-8 ({error.reason}): convert it, for "
                "example with iconv."
            ) from error
        yield _bare(text.removesuffix("\n"))


def typed_lines(text: str) -> list[str]:
    """The lines of a text that was typed as an argument, as standard input's are read."""
    return [_bare(line) for line in text.split("\n")]


def _bare(line: str) -> str:
    return line.removesuffix("\r").lstrip("\ufeff")


def given_lines(
    verb: str, run: object, sentence: str | None, file: Path | None, hint: str
) -> list[str]:
    """The sentence that was typed, else the lines of a file or of standard input.

    Raises:
        UserError: a sentence and a file are given, or neither holds a line.
    """
    if sentence is not None and file is not None:
        raise UserError("Give a sentence or --file, not both.")
    if sentence is None:
        lines = list(input_lines(file, hint))
        if not lines:
            raise UserError("There is no line to read: the input is empty.")
        return lines
    sentence = utf8(sentence)
    if os.path.isfile(sentence):
        command = shlex.join(["everyhead", verb, str(run), "--file", sentence])
        note = f"{sentence!r} is taken as a sentence; to read that file's lines: {command}"
        print(f"everyhead: {note}", file=sys.stderr)
    return typed_lines(sentence)
