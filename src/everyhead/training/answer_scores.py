"""Exact match and F1 of answers, as SQuAD's own programs define them.

An answer is lower-cased and loses its punctuation, articles (a, an, the) and extra spaces; exact
match is 1 or 0, F1 is of the words in common. Of several right answers the best counts; no answer
is right where there is none. Rajpurkar et al. 2016 (1606.05250) section 6.1, 2018 (1806.03822).
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

ARTICLES = re.compile(r"\b(a|an|the)\b")


def plain(answer: str) -> str:
    """What is compared of an answer."""
    kept = "".join(c for c in answer.lower() if c not in string.punctuation)
    return " ".join(ARTICLES.sub(" ", kept).split())


def exact(found: str, wanted: str) -> float:
    return float(plain(found) == plain(wanted))


def words_f1(found: str, wanted: str) -> float:
    """F1 of the words; where one side has none, both must have none."""
    mine, theirs = plain(found).split(), plain(wanted).split()
    if not mine or not theirs:
        return float(mine == theirs)
    same = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * same / (len(mine) + len(theirs))


def answer_scores(found: Sequence[str], wanted: Sequence[Sequence[str]]) -> dict[str, Any]:
    """exact and f1 over all questions, and over those with and without an answer.

    wanted: the right answers of each question, none where there is no answer. `majority` is exact
    of always saying that there is none.
    """
    rows = []
    for mine, answers in zip(found, wanted, strict=True):
        right = [text for text in answers if plain(text)] or [""]
        best = max(exact(mine, each) for each in right), max(words_f1(mine, each) for each in right)
        rows.append((bool(answers), *best))
    scores: dict[str, Any] = {"questions": len(rows)}
    for name, kept in (
        ("", rows),
        ("answered ", [row for row in rows if row[0]]),
        ("unanswerable ", [row for row in rows if not row[0]]),
    ):
        if kept:
            scores[f"{name}exact"] = sum(row[1] for row in kept) / len(kept)
            scores[f"{name}f1"] = sum(row[2] for row in kept) / len(kept)
    return scores | {"majority": sum(not row[0] for row in rows) / len(rows)}
