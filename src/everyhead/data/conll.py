"""Words and their tags, one a line: files of CoNLL's form.

    word [more columns] tag          separated by TAB or spaces; a blank line ends a sentence

Tags are read as IOB1, BIO (IOB2), IOBES or BILOU and become BIO: an entity begins with B- and
goes on with I-. Tjong Kim Sang & Veenstra 1999 (cs/9907006).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from everyhead.data.text import read_lines
from everyhead.errors import UserError

OUTSIDE = "O"
BEGINS, GOES_ON = ("B", "S", "U"), ("I", "E", "L", "M")
SINGLE, LAST = ("S", "U"), ("E", "L")


class Tagged(NamedTuple):
    """A sentence: words and as many tags, BIO."""

    words: list[str]
    tags: list[str]


class Entity(NamedTuple):
    """Words first … last (counted from 0) are of this kind."""

    kind: str
    first: int
    last: int


def read_conll(path: Path) -> list[Tagged]:
    """The sentences of a file, in order.

    Raises:
        UserError: no such file, not UTF-8, a line without a tag, or a tag of another form.
    """
    sentences: list[Tagged] = []
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate([*read_lines(path), ""], 1):
        cells = line.split("\t") if "\t" in line else line.split()
        cells = [cell.strip() for cell in cells]
        if not any(cells):
            if words:
                sentences.append(Tagged(words, bio(tags)))
            words, tags = [], []
            continue
        if cells[0] == "-DOCSTART-" or (cells[0][:1] == "#" and not _is_tag(cells[-1])):
            continue
        if len(cells) < 2 or not cells[0]:
            raise UserError(f"{path}, line {number}: a word, a TAB and its tag are needed.")
        _check(cells[-1], path, number)
        words.append(cells[0])
        tags.append(cells[-1])
    if not sentences:
        raise UserError(f"{path} holds no tagged word.")
    return sentences


def _is_tag(text: str) -> bool:
    prefix, dash, kind = text.partition("-")
    return text == OUTSIDE or bool(prefix in (*BEGINS, *GOES_ON) and dash and kind)


def _check(tag: str, path: Path, number: int) -> None:
    if not _is_tag(tag):
        raise UserError(
            f"{path}, line {number}: {tag!r} is no tag; words outside entities have O, the others "
            "B- or I- and a kind, like B-person."
        )


def bio(tags: Sequence[str]) -> list[str]:
    """The same entities as B-, I- and O."""
    found = [OUTSIDE] * len(tags)
    for entity in entities(tags):
        found[entity.first] = f"B-{entity.kind}"
        found[entity.first + 1 : entity.last + 1] = [f"I-{entity.kind}"] * (
            entity.last - entity.first
        )
    return found


def entities(tags: Sequence[str]) -> Iterator[Entity]:
    """The entities of a sentence; one that goes on without a beginning begins there."""
    kind, first = "", 0
    for i, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, new = tag.partition("-")
        if kind and (new != kind or prefix in BEGINS):
            yield Entity(kind, first, i - 1)
            kind = ""
        if new and not kind:
            kind, first = new, i
        if kind and prefix in (*SINGLE, *LAST):
            yield Entity(kind, first, i)
            kind = ""
