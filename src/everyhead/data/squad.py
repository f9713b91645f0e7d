"""Questions whose answers are spans of a text: SQuAD's JSON, versions 1 and 2.

    {"data": [{"paragraphs": [{"context": …, "qas": [{"id": …, "question": …,
        "answers": [{"text": …, "answer_start": …}], "is_impossible": false}]}]}]}

Rajpurkar et al. 2016 (1606.05250) and 2018 (1806.03822). In version 2 a question may
have no answer.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from everyhead.data.text import decode, is_blank, read_bytes
from everyhead.errors import UserError


class Question(NamedTuple):
    """answers: (text, where it starts in the context), empty where there is none."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]


def read_squad(path: Path) -> list[Question]:
    """The questions of a file, in order; answers are checked against their text.

    Raises:
        UserError: no such file, no such JSON, or an answer that does not stand where it says.
    """
    data, name = read_bytes(path)
    try:
        content = json.loads(decode(data, name).removeprefix("\ufeff"))
        found = [
            _question(each, paragraph["context"], path)
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for each in paragraph["qas"]
        ]
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} is not SQuAD's JSON ({type(error).__name__}: {error}): data, paragraphs, "
            "context and qas are needed, as docs/jobs.md shows."
        ) from None
    if not found:
        raise UserError(f"{path} holds no question.")
    ids = [each.id for each in found]
    if len(set(ids)) < len(ids):
        double = next(number for number in ids if ids.count(number) > 1)
        raise UserError(f"{path}: the id {double!r} is of two questions.")
    return found


def _question(values: dict[str, Any], context: str, path: Path) -> Question:
    number, question = str(values["id"]), values["question"]
    if not isinstance(question, str) or not isinstance(context, str):
        raise UserError(f"{path}, question {number}: the question and its context must be text.")
    impossible = bool(values.get("is_impossible", False))
    given = [] if impossible else values.get("answers", [])
    answers = []
    for each in given:
        text, start = str(each["text"]), int(each["answer_start"])
        if is_blank(text) or context[start : start + len(text)] != text:
            raise UserError(
                f"{path}, question {number}: the answer {text!r} does not stand at character "
                f"{start} of its context; there is {context[start : start + len(text)]!r}."
            )
        answers.append((text, start))
    if is_blank(question) or is_blank(context):
        raise UserError(f"{path}, question {number}: the question or its context is empty.")
    return Question(number, question, context, tuple(answers))
