"""Tokenizers of published translation models: a SentencePiece model a side, and a vocabulary.

source.spm, target.spm      how text is normalised and cut (Kudo & Richardson 2018, 1808.06226)
vocab.json                  piece → id; another order than SentencePiece's own, and of both sides
target_vocab.json           the target's own, where the sides are separate

Ids and texts are those of transformers' MarianTokenizer. So special pieces typed in a text are
special, and a language code at its start (`>>cmn<<`) is one piece that SentencePiece never sees.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from everyhead.data.piece_bytes import ONE_BYTE
from everyhead.data.spans import spans_of
from everyhead.data.special_pieces import CONFIG, text_of
from everyhead.data.tokenizer import lone_surrogate
from everyhead.errors import UserError
from everyhead.files import read_json

SPM = ("source.spm", "target.spm")
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
SPECIALS = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
SPACE = "▁"
CODE = re.compile(">>.*?<<", re.DOTALL)


class SentencePieceSide:
    """One side. model: content of a .spm file. vocabulary: piece → id."""

    def __init__(
        self,
        model: bytes,
        vocabulary: Mapping[str, int],
        *,
        specials: Mapping[str, str] = SPECIALS,
    ) -> None:
        self.model, self.vocabulary, self.specials = model, dict(vocabulary), dict(specials)
        self.processor = _processor(model)
        self.vocab_size = 1 + max(self.vocabulary.values(), default=-1)
        self.eos_id, self.unk_id, self.pad_id = (
            self.vocabulary[self.specials[role]] for role in ("eos", "unk", "pad")
        )
        self._pieces = {number: piece for piece, number in self.vocabulary.items()}
        self._special = re.compile("|".join(map(re.escape, self.specials.values())))

    @property
    def language_codes(self) -> list[str]:
        """What a text may begin with to say the target's language; none for one language."""
        return [piece for piece in self.vocabulary if CODE.fullmatch(piece)]

    def encode(self, text: str) -> list[int]:
        """Ids without `</s>`. Raises UserError if the text holds a lone surrogate."""
        return [self.vocabulary.get(piece, self.unk_id) for piece in self._cut(text)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text; special pieces are dropped, unknown ones among them.

        Raises ValueError if an id is not in the vocabulary.
        """
        pieces = [piece for piece in self._known(ids) if piece not in self.specials.values()]
        text: str = self.processor.decode_pieces(pieces)
        return text.replace(SPACE, " ").strip()

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self.decode(ids) for ids in rows]

    def spans(self, text: str) -> list[str]:
        """For each id of `encode(text)` the characters of the normalised text that it covers."""
        return self._shown(self._cut(text))

    def pieces_to_spans(self, ids: Sequence[int]) -> list[str]:
        """For each id the characters it covers in `decode(ids)`; specials show as their names."""
        return self._shown(self._known(ids))

    def _cut(self, text: str) -> list[str]:
        """The pieces; what no vocabulary has is cut out as it stands."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(lone_surrogate([text])) from None
        pieces: list[str] = []
        start = 0
        for match in self._special.finditer(text):
            pieces += [*self._plain(text[start : match.start()]), match[0]]
            start = match.end()
        return pieces + self._plain(text[start:])

    def _plain(self, text: str) -> list[str]:
        code = CODE.match(text)
        rest: list[str] = self.processor.encode(text[code.end() :] if code else text, out_type=str)
        return [code[0], *rest] if code else rest

    def _known(self, ids: Sequence[int]) -> list[str]:
        numbers = [int(number) for number in ids]
        for number in numbers:
            if not 0 <= number < self.vocab_size:
                raise ValueError(
                    f"Id {number} is not in the vocabulary of {self.vocab_size} entries; "
                    "model and tokenizer may not belong together."
                )
        return [self._pieces.get(number, self.specials["unk"]) for number in numbers]

    def _shown(self, pieces: Sequence[str]) -> list[str]:
        shown: list[str] = []
        for special, group in groupby(pieces, key=set(self.specials.values()).__contains__):
            some = list(group)
            shown += some if special else spans_of([_bytes_of(piece) for piece in some])
        if shown and pieces[0].startswith(SPACE):
            shown[0] = shown[0][1:]  # SentencePiece begins every text with a space
        return shown


class SentencePiecePair:
    """Source and target side of a published translation model."""

    def __init__(
        self,
        source: SentencePieceSide,
        target: SentencePieceSide,
        *,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.source, self.target = source, target
        self.config = dict(config or {})  # of tokenizer_config.json

    @property
    def shared(self) -> bool:
        """Have both sides one vocabulary?"""
        return self.source.vocabulary == self.target.vocabulary

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    @property
    def sha256(self) -> str:
        """Changes if either side changes."""
        digest = hashlib.sha256()
        for side in (self.source, self.target):
            digest.update(side.model)
            digest.update(json.dumps(side.vocabulary, sort_keys=True).encode("ascii"))
        return digest.hexdigest()

    def save(self, folder: Path, *, model_max_length: int | None = None) -> None:
        """The files that MarianTokenizer reads."""
        sides = (self.source, self.target)
        for name, side in zip(SPM, sides, strict=True):
            (folder / name).write_bytes(side.model)
        names = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": not self.shared}
        config = self.config | names
        config |= {f"{role}_token": piece for role, piece in self.source.specials.items()}
        if model_max_length is not None:
            config["model_max_length"] = model_max_length
        files = {VOCABULARY: self.source.vocabulary, CONFIG: config}
        if not self.shared:
            files[TARGET_VOCABULARY] = self.target.vocabulary
        for name, content in files.items():
            text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
            (folder / name).write_bytes(text.encode("utf-8"))

    @classmethod
    def found_in(cls, folder: Path) -> bool:
        """Do a published model's two .spm files lie there?"""
        return all((folder / name).is_file() for name in SPM)

    @classmethod
    def load(cls, folder: Path) -> "SentencePiecePair":
        """Raises UserError: a file is missing or broken, or sentencepiece is not installed."""
        for name in (*SPM, VOCABULARY):
            if not (folder / name).is_file():
                raise UserError(f"{folder} has no {name}; copy the whole folder again.")
        config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
        vocabulary = _vocabulary(folder / VOCABULARY)
        separate = bool(config.get("separate_vocabs"))
        other = _vocabulary(folder / TARGET_VOCABULARY) if separate else vocabulary
        specials = {
            role: text_of(config.get(f"{role}_token") or piece) for role, piece in SPECIALS.items()
        }
        sides = [
            _side(folder / name, pieces, specials)
            for name, pieces in zip(SPM, (vocabulary, other), strict=True)
        ]
        return cls(*sides, config=config)


def _side(path: Path, pieces: dict[str, int], specials: dict[str, str]) -> SentencePieceSide:
    try:
        return SentencePieceSide(path.read_bytes(), pieces, specials=specials)
    except KeyError as error:
        raise UserError(
            f"The vocabulary beside {path} lacks the piece {error}; is it the model's own?"
        ) from None
    except (RuntimeError, OSError) as error:
        raise UserError(f"{path} is no whole SentencePiece model ({error}).") from None


def _vocabulary(path: Path) -> dict[str, int]:
    pieces = read_json(path)
    if not all(isinstance(number, int) and number >= 0 for number in pieces.values()):
        raise UserError(f"{path} is no vocabulary: each piece must have an id.")
    return pieces


def _processor(model: bytes) -> Any:
    try:
        import sentencepiece
    except ModuleNotFoundError as error:
        raise UserError(
            "This model's tokenizer is SentencePiece's: pip install 'everyhead[hf]' brings it."
        ) from error
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return processor


def _bytes_of(piece: str) -> bytes:
    if match := ONE_BYTE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(SPACE, " ").encode("utf-8")
