"""A question and a long text as windows that fit a model, and back from logits to an answer.

    [CLS] question [SEP] a stretch of the text [SEP]      the stretches overlap

The answer is the span with the largest start + end logit, over all windows; no answer where the
logits at [CLS] are larger by more than a threshold (Devlin et al. 2019, 1810.04805, section 4.3).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from everyhead.data.squad import Question
from everyhead.data.text_batches import TextRows

LONGEST_QUESTION = 64  # tokens; of a longer one the beginning is read
BEST = 20  # starts and ends that are paired


class Window(NamedTuple):
    """Ids of one stretch; offsets: characters of the text, None where an id is not of it."""

    row: int
    ids: list[int]
    segments: list[int]
    offsets: list[tuple[int, int] | None]

    def place_of(self, start: int, end: int) -> tuple[int, int]:
        """The ids that hold these characters of the text; (0, 0) where they are not all here."""
        inside = [i for i, o in enumerate(self.offsets) if o and o[0] < end and o[1] > start]
        if not inside:
            return 0, 0
        (first, _), (_, last) = self._of(inside[0]), self._of(inside[-1])
        return (inside[0], inside[-1]) if first <= start and last >= end else (0, 0)

    def _of(self, i: int) -> tuple[int, int]:
        return self.offsets[i] or (0, 0)


class Span(NamedTuple):
    """An answer: its text (empty: none), its characters, and by how much it beats no answer."""

    text: str
    start: int
    end: int
    margin: float


def windows_of(
    tokenizer: Any, questions: Sequence[tuple[str, str]], *, longest: int, stride: int
) -> list[Window]:
    """(question, text) pairs as windows of at most `longest` ids that share `stride` ids.

    Raises:
        ValueError: a stride that leaves no room.
    """
    reader = tokenizers.Tokenizer.from_str(tokenizer.inner.to_str())
    found = []
    for row, (question, text) in enumerate(questions):
        question = _cut(tokenizer, question, min(LONGEST_QUESTION, longest // 2))
        used = len(tokenizer.encode(question, "")) + 1
        overlap = max(0, min(stride, longest - used - 1))
        reader.enable_truncation(longest, stride=overlap, strategy="only_second")
        encoding = reader.encode(question, text)
        for each in (encoding, *encoding.overflowing):
            offsets = [
                place if of == 1 else None
                for place, of in zip(each.offsets, each.sequence_ids, strict=True)
            ]
            found.append(Window(row, list(each.ids), list(each.type_ids), offsets))
    return found


def _cut(tokenizer: Any, question: str, longest: int) -> str:
    encoding = tokenizer.inner.encode(question, add_special_tokens=False)
    return question if len(encoding) <= longest else question[: encoding.offsets[longest - 1][1]]


def span_rows(tokenizer: Any, windows: Sequence[Window], questions: Sequence[Question]) -> TextRows:
    """The windows with the place of the first answer in each; [CLS] where it is not there."""
    labels = []
    for window in windows:
        answers = questions[window.row].answers
        text, start = answers[0] if answers else ("", 0)
        labels.append(window.place_of(start, start + len(text)) if answers else (0, 0))
    return TextRows(
        [window.ids for window in windows],
        labels,
        segments=[window.segments for window in windows],
        pad_id=tokenizer.pad_id or 0,
    )


def best_span(
    text: str,
    windows: Sequence[Window],
    logits: Sequence[np.ndarray],
    *,
    longest: int = 30,
    threshold: float = 0.0,
    may_be_none: bool = True,
) -> Span:
    """The best answer in a text: logits (T, 2) a window, spans of at most `longest` ids."""
    found: list[tuple[float, int, int]] = []
    none = float("inf")
    for window, scores in zip(windows, logits, strict=True):
        none = min(none, float(scores[0, 0] + scores[0, 1]))
        places = [i for i, offset in enumerate(window.offsets) if offset is not None]
        starts, ends = (sorted(places, key=lambda i: -scores[i, side])[:BEST] for side in (0, 1))
        for a in starts:
            for b in ends:
                if a <= b < a + longest:
                    first, last = window.offsets[a] or (0, 0), window.offsets[b] or (0, 0)
                    found.append((float(scores[a, 0] + scores[b, 1]), first[0], last[1]))
    if not found:
        return Span("", 0, 0, -none)
    score, start, end = max(found)
    if may_be_none and score - none <= threshold:
        return Span("", 0, 0, score - none)
    return Span(text[start:end], start, end, score - none)
