"""Text to ids and back, exactly: `decode(encode(text)) == text` for every text. See `subwords.py`
for how.

Nothing is normalised, and special tokens typed in a text are text. `encode` adds no `</s>`;
whoever builds a batch does. A text is a list of ids below `vocab_size`; `</s>` is 0, `<unk>` 1
and `<pad>` the last id.
"""

import hashlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import tokenizers

from everyhead.data import subwords
from everyhead.data.spans import spans_of
from everyhead.data.subwords import EOS, FIXED, PAD, UNK, Kind
from everyhead.errors import UserError


class Tokenizer:
    """Subwords of one kind, around `tokenizers.Tokenizer` (which `self.inner` is)."""

    def __init__(self, inner: tokenizers.Tokenizer):
        inner.encode_special_tokens = True  # "</s>" in a text is four characters
        self.inner = inner
        self.kind: Kind = kind_of(inner)
        self.vocab_size: int = inner.get_vocab_size(with_added_tokens=True)
        self.eos_id, self.unk_id, self.pad_id = 0, 1, self.vocab_size - 1
        self._names = {self.eos_id: EOS, self.unk_id: UNK, self.pad_id: PAD}
        self._bytes = piece_bytes(inner, self.kind)

    def encode(self, text: str) -> list[int]:
        """Ids without `</s>`. Raises UserError if the text holds a lone surrogate."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without `</s>`; several threads work on long lists."""
        try:
            found = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:
            raise UserError(lone_surrogate(texts)) from None
        return [encoding.ids for encoding in found]

    def decode(self, ids: Sequence[int]) -> str:
        """The text; specials are dropped, bytes that are not UTF-8 become U+FFFD.

        Raises ValueError if an id is not in the vocabulary.
        """
        return self.inner.decode(self._checked(ids), skip_special_tokens=True)

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self.decode(ids) for ids in rows]

    def _checked(self, ids: Sequence[int]) -> list[int]:
        numbers = [int(number) for number in ids]
        for number in numbers:
            if not 0 <= number < self.vocab_size:
                raise ValueError(
                    f"Id {number} is not in the vocabulary of {self.vocab_size} entries; "
                    "model and tokenizer may not belong together."
                )
        return numbers

    def spans(self, text: str) -> list[str]:
        """For each id of `encode(text)` the characters that it covers, wholly or in part."""
        return self.pieces_to_spans(self.encode(text))

    def pieces_to_spans(self, ids: Sequence[int]) -> list[str]:
        """For each id the characters it covers in `decode(ids)`; specials show as their names."""
        shown: list[str] = []
        for special, numbers in groupby(self._checked(ids), key=self._names.__contains__):
            if special:
                shown += [self._names[number] for number in numbers]
            else:
                shown += spans_of([self._bytes[number] for number in numbers])
        return shown

    @property
    def sha256(self) -> str:
        """Of the tokenizer's content, however its file is laid out."""
        return hashlib.sha256(self.inner.to_str().encode("utf-8")).hexdigest()

    def save(self, path: Path) -> None:
        """One tokenizer.json, which Hugging Face's libraries read as well."""
        path.write_bytes((self.inner.to_str(pretty=True) + "\n").encode("utf-8"))

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Raises UserError: no such file, broken, or not a tokenizer of everyhead's kinds."""
        if not path.is_file():
            raise UserError(f"There is no tokenizer {path}; is this a folder that everyhead wrote?")
        try:
            inner = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{path} is not a whole tokenizer file ({error}).") from None
        try:
            return cls(inner)
        except ValueError as error:
            raise UserError(f"{path} cannot be used: {error}") from None


def kind_of(inner: tokenizers.Tokenizer) -> Kind:
    """Raises ValueError if the tokenizer is not laid out as `subwords.assemble` does it."""
    ids = [inner.token_to_id(piece) for piece in (EOS, UNK, PAD)]
    if ids != [0, 1, inner.get_vocab_size() - 1]:
        raise ValueError(
            f"the ids of {EOS}, {UNK} and {PAD} are {ids}, not first, second and last."
        )
    for kind in ("byte-fallback", "byte-level"):
        if [inner.id_to_token(2 + byte) for byte in range(256)] == subwords.byte_pieces(kind):
            return kind
    raise ValueError("its ids 2 to 257 are not the 256 bytes.")


def piece_bytes(inner: tokenizers.Tokenizer, kind: Kind) -> list[bytes]:
    """For each id the UTF-8 bytes it stands for."""
    vocab = inner.get_vocab()
    pieces = sorted(vocab, key=vocab.__getitem__)
    if kind == "byte-level":
        value = {character: byte for byte, character in enumerate(subwords.byte_characters())}
        return [bytes(value.get(character, 0) for character in piece) for piece in pieces]
    encoded = [piece.encode("utf-8") for piece in pieces]
    encoded[2:258] = [bytes([byte]) for byte in range(256)]
    return encoded


def lone_surrogate(texts: Sequence[str]) -> str:
    for number, text in enumerate(texts, 1):
        for place, character in enumerate(text, 1):
            if "\ud800" <= character <= "\udfff":
                return (
                    f"Text {number}, character {place} is U+{ord(character):04X}, "
                    "half a character; the input was not UTF-8."
                )
    return "Every text must be a string."


def train_tokenizer(
    source_lines: Sequence[str],
    target_lines: Sequence[str],
    *,
    kind: Kind = "byte-fallback",
    vocab_size: int | tuple[int, int] = 4000,
    min_count: int = 3,
) -> Tokenizer:
    """One tokenizer for both sides. Same lines, same tokenizer, byte for byte.

    `vocab_size` counts every entry. One number: one BPE over both sides (joint). Two numbers: one
    BPE a side, of these sizes, joined into one vocabulary that shares what both have.
    """
    if isinstance(vocab_size, int):
        found = _learn([*source_lines, *target_lines], kind, vocab_size, min_count)
    else:
        source_size, target_size = vocab_size
        found = subwords.union(
            _learn(source_lines, kind, source_size, min_count),
            _learn(target_lines, kind, target_size, min_count),
        )
    return Tokenizer(subwords.assemble(found, kind))


def _learn(lines: Sequence[str], kind: Kind, vocab_size: int, min_count: int) -> subwords.Subwords:
    subwords.check_kind(kind)
    if vocab_size < FIXED:
        raise UserError(
            f"vocab_size is {vocab_size}; it must be {FIXED} or more, "
            "since 256 bytes and 3 special tokens are always in it."
        )
    return subwords.learn(lines, kind, size=vocab_size - FIXED, min_count=min_count)
