"""How well labels are told: accuracy beside the majority's, F1 of each class, of entities.

precision = right / found      recall = right / wanted      F1 = 2 · right / (found + wanted)
"""

from collections.abc import Sequence
from typing import Any

from everyhead.data.conll import entities


def class_scores(
    found: Sequence[int], wanted: Sequence[int], labels: Sequence[str], commonest: int
) -> dict[str, Any]:
    """accuracy, macro_f1 (over the classes that occur on either side), majority, and F1 by class.

    commonest: the class that is commonest in training; `majority` is the accuracy of always it.
    """
    n = len(wanted)
    by_class = {}
    for k, name in enumerate(labels):
        right = sum(f == w == k for f, w in zip(found, wanted, strict=True))
        total = list(found).count(k) + list(wanted).count(k)
        if total:
            by_class[name] = 2 * right / total
    return {
        "accuracy": sum(f == w for f, w in zip(found, wanted, strict=True)) / n,
        "macro_f1": sum(by_class.values()) / len(by_class),
        "majority": list(wanted).count(commonest) / n,
        "texts": n,
    } | {f"f1 {name}": value for name, value in by_class.items()}


def entity_scores(
    found: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Word-level F1 of whole entities (type, first and last word), all types together.

    A type that occurs has its own line too. Tjong Kim Sang & De Meulder 2003 (CoNLL-2003).
    """
    counts: dict[str, list[int]] = {}
    for mine, theirs in zip(found, wanted, strict=True):
        a, b = set(entities(mine)), set(entities(theirs))
        for place, group in enumerate((a & b, a, b)):
            for entity in group:
                counts.setdefault(entity.kind, [0, 0, 0])[place] += 1
    total = [sum(column) for column in zip(*counts.values(), strict=True)] or [0, 0, 0]
    return {
        "f1": f1(*total),
        "precision": total[0] / total[1] if total[1] else 0.0,
        "recall": total[0] / total[2] if total[2] else 0.0,
        "entities": total[2],
    } | {f"f1 {kind}": f1(*counts[kind]) for kind in sorted(counts)}


def f1(right: int, found: int, wanted: int) -> float:
    return 2 * right / (found + wanted) if found + wanted else 0.0
