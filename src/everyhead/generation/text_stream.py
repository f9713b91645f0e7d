"""Tokens to text while they come, so that no character is ever shown in halves.

A character may be spread over several tokens: bytes of one character (byte-level pieces, or byte
tokens like <0xE4>), or the parts of a joined emoji. What may still change is held back until it
cannot; all pieces, joined, are what the tokenizer makes of the whole text after its prompt, but for
half a character at its end. A piece that stands for a word with its space before it keeps the
space, because the tokens before it are decoded with it.

Text is never shown past a stop string either: what may be the beginning of one is held back, too.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Protocol

BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
BROKEN, JOINER = "\ufffd", "\u200d"
LONGEST_CHARACTER = 4  # bytes in UTF-8
# Regional indicators make flags in pairs; from here on pictures are.
FIRST_PICTURE = 0x1F000


class Spelling(Protocol):
    """What is needed of a tokenizer: to decode, and `inner`, the `tokenizers.Tokenizer` in it."""

    @property
    def inner(self) -> Any: ...
    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...


class Alphabet:
    """A tokenizer's tokens by what they do in a text: nothing, one byte, or more."""

    def __init__(self, tokenizer: Spelling) -> None:
        self.decode = tokenizer.decode
        added = tokenizer.inner.get_added_tokens_decoder()
        self.silent = {number for number, token in added.items() if token.special}
        words = tokenizer.inner.get_vocab()
        self.bytes = {number for word, number in words.items() if BYTE_TOKEN.fullmatch(word)}


class TextStream:
    """The text of one row: `push` a token, get what may be shown now."""

    def __init__(self, alphabet: Alphabet, prompt: Sequence[int] = ()) -> None:
        self.alphabet = alphabet
        visible = [number for number in prompt if number not in alphabet.silent]
        start = len(visible) - 1
        while start > 0 and visible[start] in alphabet.bytes:  # a run of bytes is one spelling
            start -= 1
        self._before = visible[max(start, 0) :]  # tokens whose text is out already
        self._new: list[int] = []

    def push(self, number: int) -> str:
        """What is certain with this token, often its text, sometimes nothing."""
        if number in self.alphabet.silent:
            return ""
        self._new.append(number)
        if number in self.alphabet.bytes:  # what follows may make a character of it
            return ""
        text = self._text()
        return "" if text.endswith(BROKEN) else self._out(text)

    def close(self) -> str:
        """What was held back, now that nothing follows; half a character stays away."""
        if not self._new:
            return ""
        whole = self._text()
        if not whole.endswith(BROKEN):
            return self._out(whole)
        for _ in range(LONGEST_CHARACTER - 1):  # byte tokens spell a run of them wholly or not
            if not self._new or self._new[-1] not in self.alphabet.bytes:
                break
            self._new.pop()
            if not (text := self._text()).endswith(BROKEN):
                return self._out(text)
        return self._out(whole.removesuffix(BROKEN))

    def _text(self) -> str:
        """The text of the new tokens."""
        before = self.alphabet.decode(self._before)
        text = self.alphabet.decode(self._before + self._new)
        return text[len(before) :] if text.startswith(before) else self.alphabet.decode(self._new)

    def _out(self, text: str) -> str:
        self._before, self._new = self._new, []
        return text


def open_end(text: str) -> int:
    """Where a last picture of a text begins that the next character may join; else its length."""
    end = len(text)
    while end and _joins(text[end - 1]):
        end -= 1
    return end


def _joins(char: str) -> bool:
    """A part of a joined emoji: a picture, a joiner, a skin tone or another selector."""
    if ord(char) >= FIRST_PICTURE or char == JOINER or "\ufe00" <= char <= "\ufe0f":
        return True
    return unicodedata.category(char) == "So"


class Writing:
    """A text that grows to its end or to a stop string; `push` and `close` give what may be shown.

    `stopped` once a stop string was met; the text then ends before it.
    """

    def __init__(self, stream: TextStream, stops: Sequence[str] = ()) -> None:
        self.stream, self.stops = stream, tuple(stops)
        self.stopped = False
        self._shown: list[str] = []
        self._held = ""

    @property
    def text(self) -> str:
        """All that was shown."""
        return "".join(self._shown)

    def push(self, number: int) -> str:
        return self._show(self.stream.push(number), last=False)

    def close(self) -> str:
        return self._show(self.stream.close(), last=True)

    def _show(self, piece: str, last: bool) -> str:
        if self.stopped or not (piece or last):
            return ""
        text, self._held = self._held + piece, ""
        places = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        if places:
            self.stopped, end = True, min(places)
            text = text[:end]
        elif not last:
            end = min(self._possible_stop(text), open_end(text))
            text, self._held = text[:end], text[end:]
        if text:
            self._shown.append(text)
        return text

    def _possible_stop(self, text: str) -> int:
        """Where a stop string may have begun that is not complete yet; else the text's length."""
        ends = [len(text)]
        for stop in self.stops:
            for length in range(min(len(stop) - 1, len(text)), 0, -1):
                if text.endswith(stop[:length]):
                    ends.append(len(text) - length)
                    break
        return min(ends)
