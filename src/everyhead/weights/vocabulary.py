"""Do a model and a tokenizer belong together? Sizes tell most mistakes, the pieces the rest."""

import hashlib
import json
from pathlib import Path
from typing import Any

from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.errors import UserError


def fingerprint(tokenizer: Any) -> str | None:
    """Of the pieces and their ids, which stay the same when a library lays its file out anew.

    None for what has no pieces.
    """
    if isinstance(tokenizer, PairTokenizer):
        sides = [
            side.inner.get_vocab(with_added_tokens=True)
            for side in (tokenizer.source, tokenizer.target)
        ]
    elif hasattr(tokenizer, "inner"):
        sides = [tokenizer.inner.get_vocab(with_added_tokens=True)]
    else:
        return None
    return hashlib.sha256(json.dumps(sides, sort_keys=True).encode("ascii")).hexdigest()


def check_same(expected: object, tokenizer: Any, folder: Path) -> None:
    """Raises UserError if the folder's config expects another fingerprint (None: it says none)."""
    if expected is not None and expected != fingerprint(tokenizer):
        raise UserError(
            f"The tokenizer in {folder} is not the one the model was saved with; "
            "put that one back, or remove tokenizer_sha256 from config.json to use this one."
        )


def check_sizes(config: Any, tokenizer: Any, folder: Path) -> None:
    """Raises UserError if vocabulary, padding or end differ from what the model was made for.

    A table may have more rows than a published tokenizer has pieces, never fewer.
    """
    if isinstance(tokenizer, PairTokenizer):
        _check_pair(config, tokenizer, folder)
        return
    pieces, rows = getattr(tokenizer, "vocab_size", None), getattr(config, "vocab_size", None)
    if pieces is not None and rows is not None and pieces > rows:
        raise UserError(
            f"The tokenizer has {pieces} entries, but the model for {folder} was made for {rows}; "
            "they do not belong together."
        )


def _check_pair(config: Any, tokenizer: PairTokenizer, folder: Path) -> None:
    source_size = getattr(config, "source_vocab_size", None) or config.vocab_size
    source_pad = getattr(config, "source_pad_id", config.pad_id)
    needed = (source_size, source_pad), (config.vocab_size, config.pad_id)
    for side, (size, pad) in zip(("source", "target"), needed, strict=True):
        has = getattr(tokenizer, side)
        if (has.vocab_size, has.pad_id, has.eos_id) != (size, pad, config.eos_id):
            raise UserError(
                f"The {side} tokenizer has {has.vocab_size} entries, padding {has.pad_id} and end "
                f"{has.eos_id}, but the model for {folder} was made for {size}, {pad} and "
                f"{config.eos_id}; they do not belong together."
            )
