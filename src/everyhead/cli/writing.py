"""Text on its way out: piece by piece to a terminal, by whole lines to a pipe, and what is read."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from everyhead.errors import UserError


def note(sentence: str) -> None:
    """A sentence beside the output."""
    print(f"everyhead: {sentence}", file=sys.stderr)


def is_terminal(stream: object) -> bool:
    return stream is not None and bool(getattr(stream, "isatty", bool)())


def show(pieces: Iterable[str]) -> str:
    """Write pieces of one text as they come, and end its last line; → the text."""
    at_once, text, line = is_terminal(sys.stdout), "", ""
    for piece in pieces:
        text += piece
        if at_once:
            print(piece, end="", flush=True)
            continue
        whole, newline, line = (line + piece).rpartition("\n")
        if newline:
            print(whole, flush=True)
    print(line, flush=True)
    return text


def one_line(text: str) -> str:
    """A text as one line: \\ and line breaks are spelled out."""
    escaped = text.replace("\\", "\\\\").replace("\r", "\\r")
    return escaped.replace("\n", "\\n")


def unescaped(text: str) -> str:
    """What was typed with \\n, \\t and \\\\ for a line break, a tab and a backslash."""
    parts = [part.replace("\\n", "\n").replace("\\t", "\t") for part in text.split("\\\\")]
    return "\\".join(parts)


def decoded(content: bytes, name: str) -> str:
    """
    Raises:
        UserError: the bytes are not UTF-8.
    """
    try:
        return content.decode("utf-8").lstrip("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{name}, line {line}, is not UTF-8 ({error.reason}): convert it, for example with "
            "iconv."
        ) from error


def standard_input() -> str:
    """All of it, without a last line break."""
    content = sys.stdin.buffer.read() if sys.stdin is not None else b""
    return decoded(content, "standard input").removesuffix("\n")


def lines_of(file: Path) -> list[str]:
    """Lines of a file, or of standard input where it is called -.

    Raises:
        UserError: there is no such file, or it is not UTF-8.
    """
    if str(file) == "-":
        text = standard_input()
    elif file.is_dir() or not file.exists():
        kind = "a folder" if file.is_dir() else "not there"
        raise UserError(f"{file} is {kind}; give a text file.")
    else:
        text = decoded(file.read_bytes(), str(file)).removesuffix("\n")
    return text.split("\n") if text else []


@contextmanager
def counting(total: int, noun: str) -> Iterator["Counter"]:
    """How many are done, on a terminal that the output itself does not go to."""
    counter = Counter(total, noun)
    try:
        yield counter
    finally:
        counter.clear()


class Counter:
    """A line on stderr that is written over and over."""

    def __init__(self, total: int, noun: str) -> None:
        self.total, self.noun = total, noun
        self.shown = is_terminal(sys.stderr) and not is_terminal(sys.stdout)

    def __call__(self, done: int) -> None:
        if self.shown:
            print(f"\r{done:,} of {self.total:,} {self.noun}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
