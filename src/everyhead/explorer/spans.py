"""What to write beside a row: the piece of text that a token stands for, or the token itself."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Pieces(NamedTuple):
    """A text as a model reads it: ids, a text for each, which are special, whose sentence."""

    ids: list[int]
    texts: list[str]
    special: list[bool]
    segments: list[int]


def pieces_of(tokenizer: Any, text: str, second: str | None = None) -> Pieces:
    """The pieces that a Hugging Face tokenizer makes of a text or a pair, special ones included."""
    pair = () if second is None else (second,)
    fast = bool(getattr(tokenizer, "is_fast", False))
    encoded = tokenizer(text, *pair, return_offsets_mapping=fast)
    ids = [int(i) for i in encoded["input_ids"]]
    tokens = [str(t) for t in tokenizer.convert_ids_to_tokens(ids)]
    known = set(tokenizer.all_special_ids)
    special = [i in known for i in ids]
    segments = [1 if part == 1 else 0 for part in sentence_numbers(encoded, len(ids))]
    if not fast:
        return Pieces(ids, tokens, special, segments)
    sources = [text if part != 1 else (second or "") for part in segments]
    spans = encoded["offset_mapping"]
    return Pieces(ids, _texts(tokens, spans, sources, special), special, segments)


def continued(tokenizer: Any, pieces: Pieces, ids: Sequence[int]) -> Pieces:
    """The pieces with ids after them that a model wrote."""
    known = set(tokenizer.all_special_ids)
    return Pieces(
        [*pieces.ids, *ids],
        [*pieces.texts, *texts_of_ids(tokenizer, ids)],
        [*pieces.special, *(i in known for i in ids)],
        [*pieces.segments, *([pieces.segments[-1] if pieces.segments else 0] * len(ids))],
    )


def sentence_numbers(encoded: Any, n: int) -> list[int | None]:
    """0, 1 or, for special tokens, the sentence before them."""
    numbers = encoded.sequence_ids() if callable(getattr(encoded, "sequence_ids", None)) else None
    if numbers is None:
        return [0] * n
    found, last = [], 0
    for number in numbers:
        last = last if number is None else number
        found.append(last)
    return found


def _texts(
    tokens: Sequence[str],
    spans: Sequence[tuple[int, int]],
    sources: Sequence[str],
    special: Sequence[bool],
) -> list[str]:
    """The span of the text; where bytes of one character are several tokens, the token."""
    found = []
    for i, (token, (start, end)) in enumerate(zip(tokens, spans, strict=True)):
        shared = i > 0 and spans[i - 1][1] > start and sources[i - 1] == sources[i]
        shared |= i + 1 < len(spans) and spans[i + 1][0] < end and spans[i + 1][0] >= start
        plain = special[i] or start >= end or shared
        found.append(token if plain else sources[i][start:end])
    return found


def texts_of_ids(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """A text for each id, where there is no text yet that they were cut from."""
    tokens = [str(t) for t in tokenizer.convert_ids_to_tokens([*ids])]
    known = set(tokenizer.all_special_ids)
    found = []
    for i, token in zip(ids, tokens, strict=True):
        plain = tokenizer.decode([i], clean_up_tokenization_spaces=False)
        found.append(token if i in known or not plain or "\ufffd" in plain else plain)
    return found
