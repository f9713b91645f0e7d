"""Do a model and a tokenizer belong together? Sizes tell most mistakes, the pieces the rest."""

import hashlib
import json
from pathlib import Path

from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.errors import UserError
from everyhead.models.transformer import TransformerConfig


def fingerprint(tokenizer: PairTokenizer) -> str:
    """Of the pieces and their ids, which stay the same when a library lays its file out anew."""
    sides = [
        side.inner.get_vocab(with_added_tokens=True)
        for side in (tokenizer.source, tokenizer.target)
    ]
    return hashlib.sha256(json.dumps(sides, sort_keys=True).encode("ascii")).hexdigest()


def check_same(expected: object, tokenizer: PairTokenizer, folder: Path) -> None:
    """Raises UserError if the folder's config expects another fingerprint (None: it says none)."""
    if expected is not None and expected != fingerprint(tokenizer):
        raise UserError(
            f"The tokenizer in {folder} is not the one the model was saved with; "
            "put that one back, or remove tokenizer_sha256 from config.json to use this one."
        )


def check_sizes(config: TransformerConfig, tokenizer: PairTokenizer, folder: Path) -> None:
    """Raises UserError if vocabulary, padding or end differ from what the model was made for."""
    source_size = config.source_vocab_size or config.vocab_size
    needed = (source_size, config.source_pad_id), (config.vocab_size, config.pad_id)
    for side, (size, pad) in zip(("source", "target"), needed, strict=True):
        has = getattr(tokenizer, side)
        if (has.vocab_size, has.pad_id, has.eos_id) != (size, pad, config.eos_id):
            raise UserError(
                f"The {side} tokenizer has {has.vocab_size} entries, padding {has.pad_id} and end "
                f"{has.eos_id}, but the model for {folder} was made for {size}, {pad} and "
                f"{config.eos_id}; they do not belong together."
            )
