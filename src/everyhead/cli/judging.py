"""Labels by examples: `generate --shots`."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from everyhead.cli.options import utf8
from everyhead.cli.writing import counting, lines_of, note, unescaped
from everyhead.errors import UserError

if TYPE_CHECKING:
    from everyhead.cli.opened_model import OpenedModel
    from everyhead.generation.few_shot import FewShot, Judgement


def task_of(shots: Path | None, labels: str | None, template: str | None) -> "FewShot":
    """What was asked for.

    Raises:
        UserError: a line without a label, or labels and template that make no sense.
    """
    from everyhead.generation.few_shot import TEMPLATE, Example, FewShot

    examples: list[Example] = []
    for number, line in enumerate([] if shots is None else lines_of(shots), 1):
        text, tab, label = line.rpartition("\t")
        if line.strip() and not (tab and text.strip() and label.strip()):
            raise UserError(f"{shots}, line {number}: an example is a text, a tab and its label.")
        if line.strip():
            examples.append(Example(text.strip(), label.strip()))
    known = [each.label for each in examples]
    if labels is not None:
        known = [label.strip() for label in utf8(labels).split(",")]
    form = TEMPLATE if template is None else unescaped(utf8(template))
    task = FewShot(tuple(examples), tuple(dict.fromkeys(known)), form)
    task.check()
    strange = sorted({each.label for each in examples} - set(task.labels))
    if strange:
        raise UserError(
            f"{shots} has the label {strange[0]!r}, and --labels are {', '.join(task.labels)}."
        )
    return task


def judge(
    opened: "OpenedModel",
    task: "FewShot",
    lines: Sequence[str],
    mean: bool,
    batch_tokens: int,
    as_json: bool,
) -> None:
    """A line for each text: the label, a tab, and each label's probability.

    Raises:
        UserError: a label that is none of the task's, or examples that are too long.
    """
    from everyhead.generation import few_shot

    rows = [_split(line, number, task.labels) for number, line in enumerate(lines, 1)]
    asked = [text for text, _ in rows if text.strip()]
    if not asked:
        return
    with counting(len(asked), "texts") as count:
        found = few_shot.judge(
            opened.model,
            opened.tokenizer,
            asked,
            task,
            mean=mean,
            batch_tokens=batch_tokens,
            progress=count,
        )
    answers = iter(found)
    scored: list[tuple[str, str]] = []
    for text, label in rows:
        judged = next(answers) if text.strip() else None
        print("" if judged is None else _line(text, label, judged, as_json), flush=True)
        if judged is not None and label is not None:
            scored.append((label, judged.label))
    if scored:
        _say_accuracy(scored)


def _split(line: str, number: int, labels: Sequence[str]) -> tuple[str, str | None]:
    text, tab, label = line.rpartition("\t")
    if not tab:
        return line.strip(), None
    if label.strip() not in labels:
        raise UserError(
            f"Line {number} has the label {label.strip()!r}; the labels are {', '.join(labels)}."
        )
    return text.strip(), label.strip()


def _line(text: str, label: str | None, judged: "Judgement", as_json: bool) -> str:
    if not as_json:
        shares = [f"{name} {p:.4f}" for name, p in judged.probabilities.items()]
        return "\t".join([judged.label, *shares])
    values = {"text": text, "label": judged.label, "probabilities": judged.probabilities}
    values |= {} if label is None else {"given": label}
    return json.dumps(values, ensure_ascii=False)


def _say_accuracy(scored: Sequence[tuple[str, str]]) -> None:
    """The share of right labels, beside what the most frequent given label would get."""
    right = sum(given == found for given, found in scored)
    (label, most), *_ = Counter(given for given, _ in scored).most_common(1)
    note(
        f"{right} of {len(scored)} labels are right ({right / len(scored):.1%}); always "
        f"{label!r} would get {most / len(scored):.1%}."
    )
