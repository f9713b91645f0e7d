"""The two sides' tokenizers, which may be one and the same, and their files in a model folder."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from everyhead.data.subwords import EOS, PAD, UNK, Kind
from everyhead.data.tokenizer import Tokenizer, train_tokenizer

SHARED_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SIDE_FILES = ("source_tokenizer.json", "target_tokenizer.json")


@dataclass(frozen=True)
class PairTokenizer:
    """Source and target tokenizer; the same object twice if they share one vocabulary."""

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def train(
        cls,
        source_lines: Sequence[str],
        target_lines: Sequence[str],
        *,
        kind: Kind = "byte-fallback",
        vocab_size: int | tuple[int, int] = 4000,
        shared: bool = True,
        min_count: int = 3,
    ) -> "PairTokenizer":
        """As `train_tokenizer`; with `shared=False` two vocabularies, of the two sizes."""
        if shared:
            one = train_tokenizer(
                source_lines, target_lines, kind=kind, vocab_size=vocab_size, min_count=min_count
            )
            return cls(one, one)
        sizes = (vocab_size, vocab_size) if isinstance(vocab_size, int) else vocab_size
        sides = [
            train_tokenizer(lines, [], kind=kind, vocab_size=size, min_count=min_count)
            for lines, size in zip((source_lines, target_lines), sizes, strict=True)
        ]
        return cls(*sides)

    @property
    def shared(self) -> bool:
        return self.source is self.target

    @property
    def sha256(self) -> str:
        """Changes if either side changes; kept in a checkpoint to tell that it fits."""
        return hashlib.sha256((self.source.sha256 + self.target.sha256).encode("ascii")).hexdigest()

    def save(self, folder: Path, *, model_max_length: int | None = None) -> None:
        """Shared: tokenizer.json and tokenizer_config.json. Separate: one file a side.

        The files of the other layout are removed, so that a folder never holds both.
        """
        if self.shared:
            self.source.save(folder / SHARED_FILE)
            config = hugging_face_config(model_max_length)
            (folder / CONFIG_FILE).write_bytes(json.dumps(config, indent=2).encode("utf-8") + b"\n")
        else:
            for name, tokenizer in zip(SIDE_FILES, (self.source, self.target), strict=True):
                tokenizer.save(folder / name)
        for name in SIDE_FILES if self.shared else (SHARED_FILE, CONFIG_FILE):
            (folder / name).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path) -> "PairTokenizer":
        """Raises UserError: no tokenizer there, or a broken one."""
        if any((folder / name).is_file() for name in SIDE_FILES):
            return cls(*(Tokenizer.load(folder / name) for name in SIDE_FILES))
        one = Tokenizer.load(folder / SHARED_FILE)
        return cls(one, one)


def hugging_face_config(model_max_length: int | None) -> dict[str, object]:
    """tokenizer_config.json: what `AutoTokenizer` must know to give our ids followed by `</s>`."""
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "unk_token": UNK,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
        "padding_side": "right",
    }
    if model_max_length is not None:
        config["model_max_length"] = model_max_length
    return config
