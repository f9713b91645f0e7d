"""The tokenizer of a model that reads one text: a published one, opened, or one trained here.

Around a `tokenizers.Tokenizer` (which `self.inner` is) it keeps what tokenizer_config.json says:
which piece begins, ends, separates, pads, masks; and the chat template. Opened folders give the
ids that Hugging Face's AutoTokenizer gives. Special pieces typed in a text are special, as there;
`literal=True` takes them as text.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import tokenizers

from everyhead.data.piece_bytes import piece_bytes
from everyhead.data.shortening import shortened
from everyhead.data.spans import spans_of
from everyhead.data.special_pieces import CONFIG, OVERRIDING, ROLES, TOKENIZER, text_of
from everyhead.data.tokenizer import lone_surrogate
from everyhead.data.tokenizer_folder import open_folder
from everyhead.data.tokenizer_training import Kind, trained
from everyhead.errors import UserError

# By this class others open tokenizer.json as it is, not as their own code would rebuild it.
OPENED_AS_IT_IS = "PreTrainedTokenizerFast"


class TextTokenizer:
    """Text to ids and back.

    inner: the tokenizer itself. config: of tokenizer_config.json; its `bos_token`, `eos_token`, …
    name the special pieces.
    """

    def __init__(self, inner: tokenizers.Tokenizer, config: Mapping[str, Any] | None = None):
        inner.no_truncation()
        inner.no_padding()
        self.inner = inner
        self.config = dict(config or {})
        self.special_pieces: dict[str, str] = {
            role: text_of(self.config[f"{role}_token"])
            for role in ROLES
            if self.config.get(f"{role}_token") is not None
        }
        known = {role: inner.token_to_id(piece) for role, piece in self.special_pieces.items()}
        self.bos_id: int | None = known.get("bos")
        self.eos_id: int | None = known.get("eos")
        self.unk_id: int | None = known.get("unk")
        self.sep_id: int | None = known.get("sep")
        self.pad_id: int | None = known.get("pad")
        self.cls_id: int | None = known.get("cls")
        self.mask_id: int | None = known.get("mask")
        # one more than the largest id, since a vocabulary may have gaps
        self.vocab_size: int = 1 + max(inner.get_vocab().values(), default=-1)

    @classmethod
    def load(cls, folder: Path) -> "TextTokenizer":
        """The tokenizer of a model folder, in whichever of the published formats it lies.

        Raises:
            UserError: there is none, it is broken, or of a kind that is not known here.
        """
        return cls(*open_folder(folder))

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        *,
        kind: Kind = "byte-level",
        vocab_size: int = 8000,
        specials: Sequence[str] = (),
        lowercase: bool = True,
    ) -> "TextTokenizer":
        """Learn pieces from lines of text; see data/tokenizer_training.py."""
        return cls(*trained(lines, kind, vocab_size, specials, lowercase=lowercase))

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        special: bool = True,
        literal: bool = False,
        max_len: int | None = None,
    ) -> list[int]:
        """Ids of a text, or of a text and its pair, with the special pieces its model expects.

        Args:
            special: False leaves those out that are put around a text.
            literal: special pieces typed in the text are text.
            max_len: longer texts are cut so that the special pieces around them stay.

        Raises:
            UserError: the text holds a lone surrogate.
            ValueError: max_len has no room even for the special pieces.
        """
        return list(self._encoding(text, pair, special, literal, max_len).ids)

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        special: bool = True,
        literal: bool = False,
        max_len: int | None = None,
    ) -> list[list[int]]:
        """`encode` of each; several threads work on long lists."""
        if max_len is None:
            given: list[Any] = list(texts if pairs is None else zip(texts, pairs, strict=True))
            try:
                found = self._reader(literal).encode_batch(given, add_special_tokens=special)
            except TypeError:
                raise UserError(lone_surrogate([*texts, *(pairs or [])])) from None
            return [list(encoding.ids) for encoding in found]
        seconds = [None] * len(texts) if pairs is None else pairs
        return [
            self.encode(text, second, special=special, literal=literal, max_len=max_len)
            for text, second in zip(texts, seconds, strict=True)
        ]

    def segments(
        self, text: str, pair: str | None = None, *, max_len: int | None = None
    ) -> list[int]:
        """For each id of `encode(text, pair)`: 0 in the first text, 1 in its pair."""
        return list(self._encoding(text, pair, True, False, max_len).type_ids)

    def offsets(
        self, text: str, pair: str | None = None, *, max_len: int | None = None
    ) -> list[tuple[int, int]]:
        """For each id of `encode(text, pair)`: where its characters lie in the text or the pair."""
        return list(self._encoding(text, pair, True, False, max_len).offsets)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of these ids.

        Raises:
            ValueError: an id is not in the vocabulary.
        """
        text: str = self.inner.decode(self._checked(ids), skip_special_tokens=skip_special)
        return text.replace(self._suffix, " ").strip() if self._suffix else text

    def spans(self, ids: Sequence[int]) -> list[str]:
        """For each id the characters it covers, wholly or in part; specials show their names."""
        shown: list[str] = []
        for special, numbers in groupby(self._checked(ids), key=self.special_ids.__contains__):
            if special:
                shown += [self.piece(number) for number in numbers]
            else:
                shown += spans_of([self._bytes(number) for number in numbers])
        return shown

    def piece(self, number: int) -> str:
        """The piece of an id as the vocabulary writes it, empty for an id that no piece has."""
        return self.inner.id_to_token(number) or ""

    def id(self, piece: str) -> int | None:
        """The id of a piece, None if there is no such piece."""
        found: int | None = self.inner.token_to_id(piece)
        return found

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that are no text: they are dropped by `decode` and never masked in training."""
        added = self.inner.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of a conversation, None for a model that was not taught any."""
        given = self.config.get("chat_template")
        if isinstance(given, list):  # several by name
            given = {each.get("name"): each.get("template") for each in given}.get("default")
        return given if isinstance(given, str) else None

    def save(self, folder: Path, *, model_max_length: int | None = None) -> None:
        """tokenizer.json and tokenizer_config.json, from which others get the same ids.

        Files of the folder that would say otherwise are removed.
        """
        dropped = ("added_tokens_decoder", "add_bos_token", "add_eos_token", "auto_map")
        config = {key: value for key, value in self.config.items() if key not in dropped}
        config |= {f"{role}_token": piece for role, piece in self.special_pieces.items()}
        config["tokenizer_class"] = "CLIPTokenizer" if self._suffix else OPENED_AS_IT_IS
        config["clean_up_tokenization_spaces"] = False
        if model_max_length is not None:
            config["model_max_length"] = model_max_length
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (folder / TOKENIZER).write_bytes((self.inner.to_str(pretty=True) + "\n").encode("utf-8"))
        (folder / CONFIG).write_bytes(text.encode("utf-8"))
        for name in OVERRIDING:
            (folder / name).unlink(missing_ok=True)

    def _encoding(
        self, text: str, pair: str | None, special: bool, literal: bool, max_len: int | None
    ) -> Any:
        reader = self._reader(literal)
        try:
            if max_len is None:
                return reader.encode(text, pair, add_special_tokens=special)
            parts = [
                reader.encode(each, add_special_tokens=False)
                for each in (text, pair)
                if each is not None
            ]
        except TypeError:
            raise UserError(lone_surrogate([text] if pair is None else [text, pair])) from None
        around = reader.num_special_tokens_to_add(pair is not None) if special else 0
        if max_len < around:
            raise ValueError(f"max_len {max_len} has no room for the {around} special pieces")
        lengths = shortened([len(part) for part in parts], max_len - around)
        for part, length in zip(parts, lengths, strict=True):
            part.truncate(length)
        return reader.post_process(parts[0], parts[1] if parts[1:] else None, special)

    def _reader(self, literal: bool) -> tokenizers.Tokenizer:
        return self._literal if literal else self.inner

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """A second one: a switch would change what other threads read."""
        copied = tokenizers.Tokenizer.from_str(self.inner.to_str())
        copied.encode_special_tokens = True
        return copied

    @cached_property
    def _suffix(self) -> str:
        """How CLIP's pieces say that a word ends; it is shown as a space."""
        return getattr(self.inner.model, "end_of_word_suffix", None) or ""

    @cached_property
    def _bytes(self) -> Any:
        return piece_bytes(self.inner, self._suffix)

    def _checked(self, ids: Sequence[int]) -> list[int]:
        numbers = [int(number) for number in ids]
        for number in numbers:
            if not 0 <= number < self.vocab_size:
                raise ValueError(
                    f"Id {number} is not in the vocabulary of {self.vocab_size} entries; "
                    "model and tokenizer may not belong together."
                )
        return numbers
