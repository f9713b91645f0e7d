"""Texts with a label each, from a file of the user's own: TSV, CSV or JSON lines.

    text TAB label              two columns in either order, with or without a header
    {"text": …, "label": …}     one JSON object a line

.gz and .xz are read as they are. Columns called text, sentence, question, review … and label,
class, category … are known by name; without a header the column with fewer different values is
the label, or with shorter ones where both have as many.
"""

import csv
import io
import json
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from everyhead.data.splits import stable_fraction
from everyhead.data.text import is_blank, read_lines
from everyhead.errors import UserError

TEXTS = ("text", "sentence", "question", "review", "message", "tweet", "content", "document")
LABELS = ("label", "class", "category", "target", "sentiment", "intent", "topic", "tag")
PACKED = (".gz", ".xz")
FORMS = {".tsv": "\t", ".txt": "\t", ".csv": ","}


class Labelled(NamedTuple):
    """Texts and their labels."""

    texts: list[str]
    labels: list[str]

    @property
    def size(self) -> int:
        return len(self.texts)

    def pick(self, rows: Sequence[int]) -> "Labelled":
        return Labelled([self.texts[i] for i in rows], [self.labels[i] for i in rows])


class LabelledSplits(NamedTuple):
    train: Labelled
    validation: Labelled
    test: Labelled


def read_labelled(path: Path) -> Labelled:
    """The labelled texts of a file, in order; rows without a text are left out.

    Raises:
        UserError: no such file, not UTF-8, a row without a label, or columns that cannot be told.
    """
    ending = path.with_suffix("").suffix if path.suffix in PACKED else path.suffix
    lines = read_lines(path)
    if ending in (".jsonl", ".json"):
        rows = _json_rows(lines, path)
    elif ending in FORMS:
        rows = _columns(_cells(lines, FORMS[ending], path), path)
    else:
        raise UserError(
            f"{path} should end in .tsv, .csv or .jsonl, which says how its texts and labels lie."
        )
    found = [(number, text, label) for number, text, label in rows if not is_blank(text)]
    for number, _, label in found:
        if is_blank(label):
            raise UserError(f"{path}, line {number}: the text has no label.")
    if not found:
        raise UserError(f"{path} holds no labelled text.")
    return Labelled([text.strip() for _, text, _ in found], [label.strip() for *_, label in found])


def _json_rows(lines: Sequence[str], path: Path) -> list[tuple[int, str, str]]:
    rows = []
    for number, line in enumerate(lines, 1):
        if is_blank(line):
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number} is no JSON: {error}.") from None
        if not isinstance(value, dict):
            raise UserError(f"{path}, line {number} is no JSON object of a text and a label.")
        text, label = (_named(list(value), names) for names in (TEXTS, LABELS))
        if text is None or label is None:
            raise UserError(
                f"{path}, line {number} has {', '.join(value) or 'nothing'}; it needs a text "
                f"({', '.join(TEXTS)}) and a label ({', '.join(LABELS)})."
            )
        one, other = (_cell(value[name], name, number, path) for name in (text, label))
        rows.append((number, one, other))
    return rows


def _cell(value: Any, name: str, number: int, path: Path) -> str:
    """A JSON value as text; null is blank."""
    if value is None:
        return ""
    if not isinstance(value, str | int | float):
        raise UserError(
            f"{path}, line {number}: {name} is {type(value).__name__}, and must be a text or a "
            "number."
        )
    return str(value)


def _cells(lines: Sequence[str], separator: str, path: Path) -> list[tuple[int, list[str]]]:
    """Rows of cells with their line's number; a CSV cell in quotes may hold line breaks."""
    if separator == "\t":
        return [(n, line.split("\t")) for n, line in enumerate(lines, 1) if not is_blank(line)]
    reader = csv.reader(io.StringIO("\n".join(lines), newline=""), strict=True)
    try:
        return [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num} is no CSV: {error}.") from None


def _columns(cells: list[tuple[int, list[str]]], path: Path) -> list[tuple[int, str, str]]:
    """Which column is the text and which the label."""
    if not cells:
        return []
    width = len(cells[0][1])
    for number, row in cells:
        if len(row) != width:
            raise UserError(
                f"{path}, line {number} has {len(row)} columns and line {cells[0][0]} has {width}; "
                "every line needs as many (CSV puts cells that hold a comma into quotes)."
            )
    header = [cell.strip() for cell in cells[0][1]]
    text, label = (_named(header, names) for names in (TEXTS, LABELS))
    if text is not None and label is not None:
        t, k = header.index(text), header.index(label)
        return [(number, row[t], row[k]) for number, row in cells[1:]]
    if width != 2:
        raise UserError(
            f"{path} has {width} columns and no header that tells them apart: name one text and "
            "one label in its first line."
        )
    values = [{row[i] for _, row in cells} for i in (0, 1)]
    different = [(len(column), sum(map(len, column))) for column in values]
    if different[0] == different[1]:
        raise UserError(
            f"{path}: both columns have {len(values[0])} different values of one length, so the "
            "label cannot be told from the text: write a first line with the names text and label."
        )
    k = 0 if different[0] < different[1] else 1
    rows = [(number, row[1 - k], row[k]) for number, row in cells]
    return rows[1:] if _is_header(rows, path) else rows


def _is_header(rows: list[tuple[int, str, str]], path: Path) -> bool:
    """A first line whose label comes nowhere else, while every other label does."""
    counts = Counter(label for _, _, label in rows)
    first = rows[0][2]
    if counts[first] > 1 or len(counts) < 3 or min(n for x, n in counts.items() if x != first) < 2:
        return False
    warnings.warn(
        f"{path}: the label {first!r} of the first line comes nowhere else, so the line is taken "
        "as a header and left out.",
        stacklevel=5,
    )
    return True


def _named(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The one name that is known; of several the first of `known`."""
    lowered = {name.casefold(): name for name in names}
    return next((lowered[name] for name in known if name in lowered), None)


def key_of(text: str) -> str:
    """What two texts share that are the same but for capitals and white space."""
    return " ".join(text.casefold().split())


def deduplicated(data: Labelled) -> tuple[Labelled, dict[str, int]]:
    """Each text once, in order, and counts; texts under several labels are left out entirely."""
    labels: dict[str, set[str]] = {}
    for text, label in zip(*data, strict=True):
        labels.setdefault(key_of(text), set()).add(label)
    seen: set[str] = set()
    kept: list[int] = []
    contradicting = 0
    for i, text in enumerate(data.texts):
        key = key_of(text)
        if len(labels[key]) > 1:
            contradicting += 1
        elif key not in seen:
            seen.add(key)
            kept.append(i)
    counts = {"read": data.size, "contradicting": contradicting}
    counts["duplicate"] = data.size - contradicting - len(kept)
    return data.pick(kept), counts | {"kept": len(kept)}


def split_labelled(data: Labelled, *, validation: float, test: float) -> LabelledSplits:
    """Cut by a hash of each text, so that the cut stays when a file grows or is reordered."""
    parts: tuple[list[int], ...] = ([], [], [])
    for i, text in enumerate(data.texts):
        point = stable_fraction(key_of(text))
        parts[2 if point < test else 1 if point < test + validation else 0].append(i)
    return LabelledSplits(*map(data.pick, parts))


def without(data: Labelled, others: Labelled) -> Labelled:
    """The texts that are not among the others."""
    theirs = set(map(key_of, others.texts))
    return data.pick([i for i, text in enumerate(data.texts) if key_of(text) not in theirs])


def checked(splits: LabelledSplits, where: object) -> LabelledSplits:
    """Raises UserError if a set is empty, or training shows fewer than two labels."""
    sizes = [part.size for part in splits]
    if not all(sizes):
        raise UserError(
            f"{where}: too few texts; {sizes[0]}, {sizes[1]} and {sizes[2]} are left for training, "
            "validation and test. Give more, or larger shares."
        )
    known = set(splits.train.labels)
    if len(known) < 2:
        raise UserError(
            f"{where}: all training texts have the label {known.pop()!r}; at least two are needed."
        )
    return splits
