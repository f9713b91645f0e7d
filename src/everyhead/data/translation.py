"""From what a recipe names to a translation model's three sets of pairs, and a report of it.

A built-in corpus is cut by group, a user's own file by block. Validation and test files that
the user gives stay as they are but for blank lines; training pairs that share a sentence with
them are dropped.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from everyhead.data.corpora import Corpus, load_corpus
from everyhead.data.pairs import (
    FilterCounts,
    PairFilter,
    Pairs,
    filter_pairs,
    read_parallel,
    read_tsv,
)
from everyhead.data.splits import (
    SplitCounts,
    Splits,
    finished,
    split_blocks,
    split_by_group,
    without_shared,
)
from everyhead.errors import UserError

GIVEN = PairFilter(max_bytes=2**31, max_ratio=2**31, drop_identical=False, drop_duplicates=False)


@dataclass(frozen=True, kw_only=True)
class PairSource:
    """Where pairs come from: a corpus' name, a TSV file, or a source and a target file."""

    corpus: str | None = None
    pairs: Path | None = None
    source: Path | None = None
    target: Path | None = None

    def __post_init__(self) -> None:
        if (self.source is None) != (self.target is None):
            raise UserError("A source file needs a target file beside it, and the other way round.")
        if [self.corpus, self.pairs, self.source].count(None) != 2:
            raise UserError(
                "Name one origin of pairs: a built-in corpus, a file of pairs, "
                "or a source file and a target file."
            )

    def read(self) -> tuple[Pairs, dict[str, Any]]:
        """The pairs unfiltered, and what the report says of their origin."""
        if self.corpus is not None:
            corpus = load_corpus(self.corpus)
            return corpus.pairs, described(corpus)
        if self.pairs is not None:
            return read_tsv(self.pairs), {"pairs": str(self.pairs)}
        assert self.source is not None and self.target is not None
        files = {"source": str(self.source), "target": str(self.target)}
        return read_parallel(self.source, self.target), files


def described(corpus: Corpus) -> dict[str, Any]:
    return {
        "corpus": corpus.name,
        "source_language": corpus.source_language,
        "target_language": corpus.target_language,
        "licence": corpus.licence,
        "attribution": corpus.attribution,
    }


@dataclass(frozen=True, kw_only=True)
class SplitRule:
    """Shares and salt for a corpus cut by group; block and every for a file cut by block."""

    validation: float = 0.05
    test: float = 0.05
    salt: str = ""
    block: int = 50
    every: int = 20


class Prepared(NamedTuple):
    """The sets, and the report that a run keeps as data.json: origin, filters, splits."""

    splits: Splits
    report: dict[str, Any]


def prepare_pairs(
    origin: PairSource,
    *,
    validation: PairSource | None = None,
    test: PairSource | None = None,
    keep: PairFilter | None = None,
    rule: SplitRule | None = None,
) -> Prepared:
    """Read, filter and cut.

    Raises UserError for whatever is wrong with the files, or if too few pairs are left.
    """
    everything, about = origin.read()
    pairs, counts = filter_pairs(everything, keep)
    if not pairs.size:
        raise UserError(f"No pair is left after the filters: {counts_text(counts)}.")
    report: dict[str, Any] = {"origin": about, "filters": counts._asdict()}
    rule = rule or SplitRule()
    report["split_by"] = "group" if origin.corpus is not None else "block"
    if validation is None and test is None:
        splits, sizes = cut(pairs, rule, report["split_by"])
    else:
        held_out = (
            read_given("validation", validation, report),
            read_given("test", test, report),
        )
        splits, sizes = around_given(pairs, *held_out, rule, report["split_by"])
    report["splits"] = sizes._asdict()
    return Prepared(splits, report)


def cut(pairs: Pairs, rule: SplitRule, by: str) -> tuple[Splits, SplitCounts]:
    if by == "group":
        return split_by_group(pairs, validation=rule.validation, test=rule.test, salt=rule.salt)
    return split_blocks(pairs, block=rule.block, every=rule.every)


def read_given(name: str, origin: PairSource | None, report: dict[str, Any]) -> Pairs | None:
    """A set that the user gave, without its blank pairs; None if there is none."""
    if origin is None:
        return None
    everything, about = origin.read()
    pairs, counts = filter_pairs(everything, GIVEN)
    report[name] = {"origin": about, "filters": counts._asdict()}
    return pairs


def around_given(
    pairs: Pairs, validation: Pairs | None, test: Pairs | None, rule: SplitRule, by: str
) -> tuple[Splits, SplitCounts]:
    """Training without what the given sets hold; a set that is not given is cut out of training."""
    given = [held for held in (validation, test) if held is not None]
    train, lost_train = without_shared(pairs, given)
    lost_held = 0
    if validation is None or test is None:
        (train, first, second), sizes = cut(train, rule, by)
        held, rest = (second, first) if test is None else (first, second)
        train = Pairs(train.source + rest.source, train.target + rest.target)
        lost_held = sizes.dropped_validation + sizes.dropped_test
        validation, test = (held, test) if validation is None else (validation, held)
    assert validation is not None and test is not None
    return finished(Splits(train, validation, test), dropped=(lost_train + lost_held, 0, 0))


def counts_text(counts: FilterCounts) -> str:
    """For people, e.g. "4,354 read, 2 duplicate, 4,352 kept"."""
    return ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in counts._asdict().items() if n)
