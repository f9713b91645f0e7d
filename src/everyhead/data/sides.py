"""A tokenizer for each side of a model of two halves, whatever kind of tokenizer that is.

Ids of a side have no special pieces around them; whoever builds a batch ends them with `eos_id`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError


class Side(Protocol):
    """Text of one side to ids and back."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_id(self) -> int: ...
    @property
    def pad_id(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]: ...
    def spans(self, text: str) -> list[str]: ...
    def pieces_to_spans(self, ids: Sequence[int]) -> list[str]: ...


class Sides(Protocol):
    """What reads the source, and what reads and writes the target."""

    @property
    def source(self) -> Side: ...
    @property
    def target(self) -> Side: ...


class BothSides(NamedTuple):
    """One for each side, which may be the same."""

    source: Side
    target: Side


class TextSide:
    """A tokenizer of one text as a side: its special pieces are left to whoever builds a batch.

    A published model may write ids that its tokenizer has no piece for; they are no text.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        if tokenizer.eos_id is None or tokenizer.pad_id is None:
            raise UserError(
                "The tokenizer names no piece that ends a text, or none that fills rows, and a "
                "model of two halves needs both: say eos_token and pad_token in "
                "tokenizer_config.json."
            )
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.eos_id, self.pad_id = tokenizer.eos_id, tokenizer.pad_id

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, special=False)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer.encode_batch(texts, special=False)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([i for i in ids if i < self.vocab_size])

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self.decode(ids) for ids in rows]

    def spans(self, text: str) -> list[str]:
        return self.tokenizer.spans(self.encode(text))

    def pieces_to_spans(self, ids: Sequence[int]) -> list[str]:
        known = iter(self.tokenizer.spans([i for i in ids if i < self.vocab_size]))
        return [next(known) if i < self.vocab_size else "" for i in ids]


def sides_of(tokenizer: Any) -> Sides:
    """The tokenizer by its sides: a pair as it is, one for texts on both sides.

    Raises:
        UserError: it is neither, or lacks a piece that a model of two halves needs.
    """
    if isinstance(tokenizer, TextTokenizer):
        side = TextSide(tokenizer)
        return BothSides(side, side)
    if hasattr(tokenizer, "source") and hasattr(tokenizer, "target"):
        sides: Sides = tokenizer
        return sides
    raise UserError(
        f"{'No tokenizer' if tokenizer is None else type(tokenizer).__name__} lies beside the "
        "model, and to read and write text it needs one of texts or of pairs."
    )
