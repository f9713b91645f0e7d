"""Sentence pairs: reading, filtering. Source and target are filtered together, never a side alone.

A filter on one side alone shifts every pair that follows: a,"",c / A,B,C must give (a,A), (c,C).
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from everyhead.data.text import is_blank, read_lines
from everyhead.errors import UserError


class Pairs(NamedTuple):
    """Two lists of equal length: target[i] translates source[i]."""

    source: list[str]
    target: list[str]

    @classmethod
    def of(cls, rows: list[tuple[str, str]]) -> Self:
        return cls([source for source, _ in rows], [target for _, target in rows])

    @property
    def size(self) -> int:
        return len(self.source)

    def rows(self) -> Iterator[tuple[str, str]]:
        return zip(self.source, self.target, strict=True)

    def pick(self, indices: list[int]) -> "Pairs":
        return Pairs([self.source[i] for i in indices], [self.target[i] for i in indices])


def read_tsv(path: Path) -> Pairs:
    """Pairs of a file of lines `source TAB target` (also .gz, .xz); a blank line is a blank pair.

    Quotation marks are text like any other; where all columns stand in them, a warning says so.
    Raises UserError that names the line if it has not exactly two columns, or if the file is empty.
    """
    rows = [_columns(line, f"{path}, line {n}") for n, line in enumerate(read_lines(path), 1)]
    if not rows:
        raise UserError(f"{path} is empty; it needs one pair a line: source TAB target.")
    columns = [column for row in rows for column in row if column]
    if columns and all(map(_is_quoted, columns)):
        warnings.warn(
            f'{path}: every column stands in quotation marks ("…"), which are learnt as part of '
            "the sentences; if a spreadsheet put them there, save it again without them.",
            stacklevel=2,
        )
    return Pairs.of(rows)


def _is_quoted(column: str) -> bool:
    return len(column) > 1 and column[0] == column[-1] == '"'


def _columns(line: str, place: str) -> tuple[str, str]:
    if is_blank(line):
        return "", ""
    columns = line.split("\t")
    if len(columns) != 2:
        count = "1 column" if len(columns) == 1 else f"{len(columns)} columns"
        raise UserError(
            f"{place} has {count} where two are needed: source TAB target. "
            "To drop further columns: cut -f1,2 FILE > pairs.tsv"
        )
    return columns[0], columns[1]


def read_parallel(source: Path, target: Path) -> Pairs:
    """Pairs of two files, line by line. Raises UserError with both counts if they differ."""
    pairs = Pairs(read_lines(source), read_lines(target))
    if len(pairs.source) != len(pairs.target):
        raise UserError(
            f"{source} has {len(pairs.source):,} lines and {target} has {len(pairs.target):,}; "
            "line n of one must translate line n of the other, so the counts must be equal."
        )
    if not pairs.source:
        raise UserError(f"{source} and {target} are empty; they need one sentence a line.")
    return pairs


@dataclass(frozen=True, kw_only=True)
class PairFilter:
    """What is kept. Lengths are UTF-8 bytes: by them English and Chinese are about alike long."""

    max_bytes: int = 1000
    max_ratio: float = 4.0
    drop_identical: bool = True
    drop_duplicates: bool = True

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_ratio < 1:
            raise UserError(
                f"The filter's max_bytes is {self.max_bytes} and its max_ratio {self.max_ratio}; "
                "both must be 1 or more."
            )

    def reason(self, source: str, target: str) -> str | None:
        """Why a stripped pair is dropped, or None; of several reasons the first counts."""
        if is_blank(source) or is_blank(target):
            return "blank"
        if self.drop_identical and source == target:
            return "identical"
        short, long = sorted((len(source.encode("utf-8")), len(target.encode("utf-8"))))
        if long > self.max_bytes:
            return "too_long"
        return "length_ratio" if long > self.max_ratio * short else None


class FilterCounts(NamedTuple):
    """Pairs read, pairs dropped by first reason, pairs kept; read is the sum of the others."""

    read: int
    blank: int
    identical: int
    too_long: int
    length_ratio: int
    duplicate: int
    kept: int


def filter_pairs(pairs: Pairs, keep: PairFilter | None = None) -> tuple[Pairs, FilterCounts]:
    """Kept pairs, in order and stripped of outer white space, and how many fell to which filter.

    Raises ValueError if the sides differ in number.
    """
    keep = keep or PairFilter()
    counts = dict.fromkeys(FilterCounts._fields, 0)
    kept: list[tuple[str, str]] = []
    seen: set[tuple[str, str]] = set()
    for source, target in pairs.rows():
        row = source.strip(), target.strip()
        reason = keep.reason(*row)
        if reason is None and keep.drop_duplicates and row in seen:
            reason = "duplicate"
        counts["read"] += 1
        counts[reason or "kept"] += 1
        if reason is None:
            kept.append(row)
            seen.add(row)
    return Pairs.of(kept), FilterCounts(**counts)
