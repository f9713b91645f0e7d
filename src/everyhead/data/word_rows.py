"""Words as pieces: a word is known by its first piece, the others are only read.

Devlin et al. 2019 (1810.04805) section 5.3.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from everyhead.data.conll import OUTSIDE, Tagged
from everyhead.data.text_batches import TextRows
from everyhead.errors import UserError

# An address, a @name or #tag, a Chinese character, an ending like 's, a word, any other sign.
WORD = re.compile(r"https?://\S+|[@#]\w+|[\u3400-\u9fff]|['’]\w+|[^\W\u3400-\u9fff]+|\S")


class Word(NamedTuple):
    """A word of a text, and where it lies there."""

    text: str
    start: int
    end: int


def words_of(text: str) -> list[Word]:
    """A text cut as the tagged files are: signs and Chinese characters stand alone."""
    return [Word(match[0], *match.span()) for match in WORD.finditer(text)]


class Pieces(NamedTuple):
    """Ids of a sentence, and for each of its words the place of its first piece, None if cut."""

    ids: list[int]
    first: list[int | None]


def pieces_of(tokenizer: Any, words: Sequence[str], longest: int) -> Pieces:
    """The sentence with the special pieces around it, cut to `longest` ids."""
    inner = tokenizer.inner
    encoding = inner.encode(list(words), is_pretokenized=True, add_special_tokens=False)
    encoding.truncate(longest - inner.num_special_tokens_to_add(False))
    encoding = inner.post_process(encoding, None, True)
    first: list[int | None] = [None] * len(words)
    for place, number in reversed(list(enumerate(encoding.word_ids))):
        if number is not None:
            first[number] = place
    return Pieces(list(encoding.ids), first)


class TaggedRows:
    """Sentences as rows, and which word each learnt piece is of."""

    def __init__(
        self, tokenizer: Any, sentences: Sequence[Tagged], *, tags: Sequence[str], longest: int
    ) -> None:
        number = {tag: i for i, tag in enumerate(tags)}
        self.sentences, self.tags = sentences, tuple(tags)
        pieces = [pieces_of(tokenizer, each.words, longest) for each in sentences]
        self.first = [each.first for each in pieces]
        labels = []
        for sentence, (ids, first) in zip(sentences, pieces, strict=True):
            row = [-1] * len(ids)
            for tag, place in zip(sentence.tags, first, strict=True):
                if place is not None:
                    row[place] = number[tag]
            labels.append(row)
        kept = [each.ids for each in pieces]
        self.rows = TextRows(kept, labels, by_token=True, pad_id=tokenizer.pad_id or 0)

    @property
    def n_cut(self) -> int:
        """Words beyond the longest length, or without any piece: O for the model."""
        return sum(place is None for row in self.first for place in row)

    def read(self, row: int, numbers: Sequence[int]) -> list[str]:
        """The tags of a sentence's words from the numbers of its ids' likeliest tags."""
        return [
            OUTSIDE if place is None else self.tags[numbers[place]] for place in self.first[row]
        ]


def tag_names(sets: Sequence[Sequence[Tagged]]) -> tuple[str, ...]:
    """O, then B- and I- of every kind that occurs.

    Raises:
        UserError: no word is of any entity.
    """
    tags = {tag for part in sets for sentence in part for tag in sentence.tags}
    kinds = sorted({tag.partition("-")[2] for tag in tags if tag != OUTSIDE})
    if not kinds:
        raise UserError("No word of the data is of an entity: every tag is O.")
    return (OUTSIDE, *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))
