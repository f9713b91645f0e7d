"""What belongs to a model in its folder: the tokenizer that made its ids.

Which one it is, config.json says (`tokenizer_kind`) where everyhead wrote it; published folders
hold the files of a tokenizer for one text (data/text_tokenizer.py).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from everyhead.data.image_preparation import Preparation
from everyhead.data.pair_tokenizer import CONFIG_FILE, SHARED_FILE, SIDE_FILES, PairTokenizer
from everyhead.data.text_and_pictures import TextAndPictures
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.data.tokenizer_folder import has_tokenizer
from everyhead.models import MODELS
from everyhead.weights.kind import Kind
from everyhead.weights.vocabulary import fingerprint

FINGERPRINT, KIND_KEY, PAIR = "tokenizer_sha256", "tokenizer_kind", "pair"


class Companion(Protocol):
    """What can be saved beside a model."""

    def save(self, folder: Path, *, model_max_length: int | None = None) -> None: ...


def open_companion(folder: Path, kind: Kind, values: Mapping[str, Any]) -> Any:
    """The tokenizer of a folder; None where it holds none and the family reads no text.

    Raises:
        UserError: it is broken, or missing where it is needed.
    """
    if values.get(KIND_KEY) == PAIR or any((folder / name).is_file() for name in SIDE_FILES):
        return PairTokenizer.load(folder)
    if kind.companion is not None:
        return kind.companion(folder)
    fields = MODELS[kind.family].config.model_fields
    reads_text = "vocab_size" in fields
    if "image_size" in fields:
        return TextAndPictures.load(folder) if reads_text else Preparation.find(folder)
    return TextTokenizer.load(folder) if reads_text or has_tokenizer(folder) else None


def companion_values(tokenizer: Companion) -> dict[str, Any]:
    """What config.json says of the tokenizer."""
    values = {KIND_KEY: PAIR} if isinstance(tokenizer, PairTokenizer) else {}
    number = fingerprint(tokenizer)
    return values if number is None else values | {FINGERPRINT: number}


def remove_others(folder: Path, tokenizer: Companion) -> None:
    """A folder never holds the files of two tokenizers."""
    joint = not isinstance(tokenizer, PairTokenizer) or tokenizer.shared
    for name in SIDE_FILES if joint else (SHARED_FILE, CONFIG_FILE):
        (folder / name).unlink(missing_ok=True)
