"""For each id of any tokenizer the UTF-8 bytes it stands for in the text, read from its decoder.

ByteLevel              each character of a piece is one byte (GPT-2's table)
WordPiece              "##ing" goes on with a word, and is "ing"
Metaspace, Replace     "▁" is a space
ByteFallback           "<0x41>" is one byte
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import tokenizers

from everyhead.data.subwords import byte_characters

ONE_BYTE = re.compile("<0x([0-9A-F]{2})>")


def piece_bytes(inner: tokenizers.Tokenizer, suffix: str = "") -> Callable[[int], bytes]:
    """A function from an id to its bytes. suffix: what ends a word, shown as a space."""
    steps = list(_steps(_state(inner)))
    kinds = {step["type"] for step in steps}

    def shown(piece: str) -> bytes:
        ends = bool(suffix) and piece.endswith(suffix)
        piece = piece[: -len(suffix)] if ends else piece
        if "ByteLevel" in kinds:
            value = _byte_of()
            data = b"".join(bytes([value[c]]) if c in value else c.encode("utf-8") for c in piece)
        elif "ByteFallback" in kinds and (match := ONE_BYTE.fullmatch(piece)):
            data = bytes([int(match[1], 16)])
        else:
            data = _plain(piece, steps).encode("utf-8")
        return data + b" " if ends else data

    return cache(lambda number: shown(inner.id_to_token(number) or ""))


def _state(inner: tokenizers.Tokenizer) -> dict[str, Any]:
    """The decoder as JSON says it; there may be none."""
    if inner.decoder is None:
        return {"type": "none"}
    state: dict[str, Any] = json.loads(inner.decoder.__getstate__())
    return state


def _steps(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if state["type"] == "Sequence":
        for step in state["decoders"]:
            yield from _steps(step)
    else:
        yield state


def _plain(piece: str, steps: list[dict[str, Any]]) -> str:
    for step in steps:
        if step["type"] == "WordPiece":
            piece = piece.removeprefix(step["prefix"])
        elif step["type"] == "Metaspace":
            piece = piece.replace(step["replacement"], " ")
        elif step["type"] == "Replace" and "String" in step["pattern"]:
            piece = piece.replace(step["pattern"]["String"], step["content"])
    return piece


@cache
def _byte_of() -> dict[str, int]:
    return {character: byte for byte, character in enumerate(byte_characters())}
