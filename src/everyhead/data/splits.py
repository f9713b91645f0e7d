"""Training, validation and test pairs, cut so that no sentence of a held-out pair is in training.

By group, for corpora whose order means nothing: pairs that share a source or a target are
connected, and a hash of the connected group decides for all of it, so the cut stays when a
corpus grows or is reordered. By block, for files whose neighbours are related (verses,
paragraphs): whole blocks of lines are held out, then held-out pairs that share a sentence with
training are dropped.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple

from everyhead.data.pairs import Pairs
from everyhead.errors import UserError


class Splits(NamedTuple):
    train: Pairs
    validation: Pairs
    test: Pairs


class SplitCounts(NamedTuple):
    """Pairs in each set, and pairs in none because they share a sentence with another set."""

    train: int
    validation: int
    test: int
    dropped_train: int
    dropped_validation: int
    dropped_test: int


def split_by_group(
    pairs: Pairs, *, validation: float = 0.05, test: float = 0.05, salt: str = ""
) -> tuple[Splits, SplitCounts]:
    """About these shares of the groups are held out.

    Raises UserError with the sizes if a set would be empty.
    """
    if min(validation, test) <= 0 or validation + test >= 1:
        raise UserError(
            f"The shares held out are {validation} for validation and {test} for test; "
            "both must be above 0 and their sum below 1."
        )
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for index, group in enumerate(groups(pairs)):
        point = stable_fraction(salt + group)
        parts[2 if point < test else 1 if point < test + validation else 0].append(index)
    return finished(Splits(*map(pairs.pick, parts)), dropped=(0, 0, 0))


def groups(pairs: Pairs) -> list[str]:
    """For each pair the least pair of its connected group as text, whatever the order."""
    parent: dict[tuple[str, str], tuple[str, str]] = {}

    def root(node: tuple[str, str]) -> tuple[str, str]:
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for source, target in pairs.rows():
        parent[root(("source", source))] = root(("target", target))
    roots = [root(("source", source)) for source in pairs.source]
    names: dict[tuple[str, str], str] = {}
    for place, row in zip(roots, map("\t".join, pairs.rows()), strict=True):
        names[place] = min(row, names.get(place, row))
    return [names[place] for place in roots]


def stable_fraction(text: str) -> float:
    """A number in [0, 1) that depends on the text alone, not on the process or the version."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:6], "big") / 2**48


def split_blocks(pairs: Pairs, *, block: int = 50, every: int = 20) -> tuple[Splits, SplitCounts]:
    """Of every `every` blocks of `block` pairs the last is for test, the middle for validation.

    Blocks are smaller where the file would have fewer than two rounds of them.
    Raises UserError with the sizes if a set would be empty.
    """
    if block < 1 or every < 3:
        raise UserError(f"block is {block} and every is {every}; they must be at least 1 and 3.")
    block = max(1, min(block, pairs.size // (2 * every)))
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for index in range(pairs.size):
        turn = index // block % every
        parts[{every - 1: 2, (every - 1) // 2: 1}.get(turn, 0)].append(index)
    train, validation, test = map(pairs.pick, parts)
    test, lost_test = without_shared(test, [train])
    validation, lost_validation = without_shared(validation, [train, test])
    return finished(Splits(train, validation, test), dropped=(0, lost_validation, lost_test))


def without_shared(pairs: Pairs, others: Iterable[Pairs]) -> tuple[Pairs, int]:
    """The pairs of which neither source nor target is in the others, and how many are not kept."""
    others = list(others)
    sources = {line for other in others for line in other.source}
    targets = {line for other in others for line in other.target}
    kept = [row for row in pairs.rows() if row[0] not in sources and row[1] not in targets]
    return Pairs.of(kept), pairs.size - len(kept)


def finished(splits: Splits, *, dropped: tuple[int, int, int]) -> tuple[Splits, SplitCounts]:
    """The splits and their counts. Raises UserError if one of them is empty."""
    sizes = [part.size for part in splits]
    train, validation, test = sizes
    if 0 in sizes:
        lost = f" ({sum(dropped)} were dropped for sharing a sentence)" if any(dropped) else ""
        raise UserError(
            f"Too few pairs to train and to measure: they fall into {train} for training, "
            f"{validation} for validation and {test} for test{lost}; "
            "give more pairs, or validation and test files of their own."
        )
    return splits, SplitCounts(train, validation, test, *dropped)


def fingerprint(splits: Splits) -> str:
    """SHA-256 of every sentence of every set, in order."""
    total = hashlib.sha256()
    for side in (side for part in splits for side in part):
        total.update(json.dumps(side).encode("ascii"))
    return total.hexdigest()
