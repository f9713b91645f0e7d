"""Which characters a piece covers: pieces may begin or end inside one, people read whole ones.

Each piece is bytes; laid end to end they are the text in UTF-8. A piece's span is every
character that one of its bytes belongs to, so the three pieces of a "家" cut into bytes all show
"家", never "�".
"""

from collections.abc import Sequence


def spans_of(pieces: Sequence[bytes]) -> list[str]:
    """One span of text a piece; bytes that are not UTF-8 show as U+FFFD."""
    data = b"".join(pieces)
    characters, owner = characters_of(data)
    spans, start = [], 0
    for piece in pieces:
        end = start + len(piece)
        spans.append("".join(characters[owner[start] : owner[end - 1] + 1]) if piece else "")
        start = end
    return spans


def characters_of(data: bytes) -> tuple[list[str], list[int]]:
    """The characters of `data`, and for each byte the index of its character."""
    characters: list[str] = []
    owner: list[int] = []
    for character in data.decode("utf-8", errors="surrogateescape"):
        broken = "\udc80" <= character <= "\udcff"  # one undecodable byte
        owner += [len(characters)] * (1 if broken else len(character.encode("utf-8")))
        characters.append("\ufffd" if broken else character)
    return characters, owner
