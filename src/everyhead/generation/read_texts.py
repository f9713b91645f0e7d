"""What a trained classifier says of texts, tagger of words, reader of questions."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from everyhead.data.conll import entities
from everyhead.data.span_windows import Span, best_span, windows_of
from everyhead.data.text_batches import TextBatch, TextRows
from everyhead.data.word_rows import pieces_of, words_of
from everyhead.errors import UserError
from everyhead.generation.reading import encoded_within, tell_cut
from everyhead.models.tasks import SequenceClassifier, SpanReader, TokenClassifier

UNREAD = "is not read"


class Label(NamedTuple):
    """A label and its probability; of a regression the number itself."""

    name: str
    probability: float


class Found(NamedTuple):
    """An entity of a text: its kind, its words as they stand there, and their characters."""

    kind: str
    text: str
    start: int
    end: int


class TaggedText(NamedTuple):
    """A text's words, a tag each, and the entities they make."""

    words: list[str]
    tags: list[str]
    entities: list[Found]


@torch.no_grad()
def classify(
    model: Any, tokenizer: Any, texts: Sequence[str], *, max_len: int | None = None
) -> list[list[Label]]:
    """For each text every label with its probability, the likeliest first.

    Probabilities are those of one label among all (softmax), or of each for itself (sigmoid) where
    a text may have several (config.problem).

    Raises:
        UserError: the model is no classifier of texts.
    """
    _need(model, SequenceClassifier, "classify")
    ids = encoded_within(tokenizer, texts, _longest(model, tokenizer, max_len), UNREAD)
    rows = TextRows(ids, [0] * len(ids), pad_id=tokenizer.pad_id or 0)
    c = model.config
    spread = {"single_label_classification": lambda z: z.softmax(-1), "regression": lambda z: z}
    found: list[list[Label]] = [[]] * len(ids)
    for numbers, batch in _read(model, rows):
        logits = model(batch.ids, batch.mask).float()
        shares = spread.get(c.problem, torch.sigmoid)(logits).tolist()
        for number, row in zip(numbers, shares, strict=True):
            pairs = sorted(zip(row, c.labels, strict=True), key=lambda pair: -pair[0])
            found[number] = [Label(name, share) for share, name in pairs]
    return found


@torch.no_grad()
def tag(model: Any, tokenizer: Any, texts: Sequence[str]) -> list[TaggedText]:
    """The entities of each text; its words are cut at spaces and signs.

    Raises:
        UserError: the model is no tagger.
    """
    _need(model, TokenClassifier, "tag")
    words = [words_of(text) for text in texts]
    longest = _longest(model, tokenizer, None)
    pieces = [pieces_of(tokenizer, [word.text for word in each], longest) for each in words]
    long = [i for i, p in enumerate(pieces) if len(p.ids) == longest and p.first[-1:] == [None]]
    tell_cut(long, len(texts), longest, UNREAD)
    rows = TextRows([each.ids for each in pieces], [0] * len(pieces), pad_id=tokenizer.pad_id or 0)
    tags: list[list[str]] = [[]] * len(pieces)
    for numbers, batch in _read(model, rows):
        best = model(batch.ids, batch.mask).argmax(-1).tolist()
        for number, row in zip(numbers, best, strict=True):
            tags[number] = [
                "O" if place is None else model.config.labels[row[place]]
                for place in pieces[number].first
            ]
    found = []
    for text, cut, names in zip(texts, words, tags, strict=True):
        spans = [(e.kind, cut[e.first].start, cut[e.last].end) for e in entities(names)]
        whole = [Found(kind, text[start:end], start, end) for kind, start, end in spans]
        found.append(TaggedText([word.text for word in cut], names, whole))
    return found


@torch.no_grad()
def answer_from(
    model: Any,
    tokenizer: Any,
    questions: Sequence[tuple[str, str]],
    *,
    stride: int = 128,
    longest_answer: int = 30,
    threshold: float = 0.0,
    may_be_none: bool = True,
) -> list[Span]:
    """For each (question, text) the span of the text that answers; an empty one where none does.

    Args:
        stride: tokens that neighbouring windows of a long text share.
        threshold: by how much an answer's score must beat that of none.
        may_be_none: False: there is always an answer.

    Raises:
        UserError: the model answers no questions.
    """
    _need(model, SpanReader, "answer")
    longest = _longest(model, tokenizer, None)
    windows = windows_of(tokenizer, questions, longest=longest, stride=stride)
    rows = TextRows(
        [window.ids for window in windows],
        [0] * len(windows),
        segments=[window.segments for window in windows],
        pad_id=tokenizer.pad_id or 0,
    )
    logits: list[Any] = [None] * rows.size
    for numbers, batch in _read(model, rows):
        scores = model(batch.ids, batch.mask, segments=batch.segments).float().cpu().numpy()
        for number, each in zip(numbers, scores, strict=True):
            logits[number] = each
    found = []
    for row, (_, text) in enumerate(questions):
        mine = [i for i, window in enumerate(windows) if window.row == row]
        found.append(
            best_span(
                text,
                [windows[i] for i in mine],
                [logits[i] for i in mine],
                longest=longest_answer,
                threshold=threshold,
                may_be_none=may_be_none,
            )
        )
    return found


def _read(model: Any, rows: TextRows) -> list[tuple[list[int], TextBatch]]:
    if not rows.size:
        return []
    device = next(model.parameters()).device
    order, batches = rows.batches()
    return [(numbers, batch.to(device)) for numbers, batch in zip(order, batches, strict=True)]


def _longest(model: Any, tokenizer: Any, max_len: int | None) -> int:
    told = tokenizer.config.get("model_max_length")
    limits = [max_len, told if isinstance(told, int) else None, model.config.max_len]
    return min(limit for limit in limits if limit is not None)


def _need(model: Any, kind: type, verb: str) -> None:
    if not isinstance(model, kind):
        raise UserError(
            f"A {type(model).__name__} does not {verb}; open a run that has learnt to, which is a "
            f"{kind.__name__}."
        )
