"""Pieces that are no text: what begins, ends, separates, pads, masks; and the files that say so."""

from typing import Any

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
# Files of a folder that would speak against a tokenizer.json and tokenizer_config.json beside them.
OVERRIDING = ("special_tokens_map.json", "added_tokens.json", "chat_template.jinja")


def text_of(token: Any) -> str:
    """A special piece, written plainly or with how it is cut out of a text."""
    return str(token["content"]) if isinstance(token, dict) else str(token)
