r"""Lines of UTF-8 text, in and out: one sentence a line, and a line ends at "\n" only.

Python's `splitlines` also ends a line at U+2028, U+0085, \x0b and others, which shifts every
later line of one file against the other. Here they stay inside their line; a "\r" before the
"\n" is dropped.
"""

import gzip
import lzma
import unicodedata
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from everyhead.errors import UserError

BYTE_ORDER_MARK = "\ufeff"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
DECOMPRESS = {".gz": gzip.decompress, ".xz": lzma.decompress}


def read_lines(source: Path | BinaryIO) -> list[str]:
    """Lines of a UTF-8 file (also .gz and .xz) or of an open binary stream, without their ends.

    Byte order marks at line starts are removed; one that is not at the very start means that files
    were joined, and is warned of. Raises UserError: no such file, or not UTF-8 (names the line).
    """
    data, name = read_bytes(source)
    lines = decode(data, name).split("\n")
    if lines[-1] == "":
        lines.pop()
    lines = [line.removesuffix("\r") for line in lines]
    return without_byte_order_marks(lines, name)


def is_blank(text: str) -> bool:
    """Nothing to be seen: white space, control and format characters alone (U+200B, U+FEFF …)."""
    return all(c.isspace() or unicodedata.category(c) in ("Cc", "Cf") for c in text)


def read_bytes(source: Path | BinaryIO) -> tuple[bytes, str]:
    """The decompressed content and the name to call it by in messages."""
    if not isinstance(source, Path):
        return source.read(), str(getattr(source, "name", "the input"))
    try:
        data = source.read_bytes()
        return DECOMPRESS.get(source.suffix, bytes)(data), str(source)
    except FileNotFoundError:
        raise UserError(f"There is no file {source}; check the path.") from None
    except IsADirectoryError:
        raise UserError(f"{source} is a folder; name a text file in it.") from None
    except (lzma.LZMAError, zlib.error, EOFError) as error:
        raise UserError(f"{source} cannot be decompressed ({error}); is it complete?") from None
    except OSError as error:
        raise UserError(f"{source} cannot be read: {error.strerror or error}.") from None


def decode(data: bytes, name: str) -> str:
    """UTF-8 to text, strictly. Raises UserError with file and line number."""
    if data.startswith(UTF16_MARKS):
        raise UserError(f"{name} is UTF-16, not UTF-8; save it as UTF-8 and try again.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{name}, line {line}: byte 0x{data[error.start]:02X} is not UTF-8; "
            "save the file as UTF-8 and try again."
        ) from None


def without_byte_order_marks(lines: list[str], name: str) -> list[str]:
    inner = [n for n, line in enumerate(lines, 1) if n > 1 and line.startswith(BYTE_ORDER_MARK)]
    if inner:
        warnings.warn(
            f"{name}: removed a byte order mark from the start of {len(inner)} lines, "
            f"the first being line {inner[0]}; were files joined?",
            stacklevel=3,
        )
    return [line.lstrip(BYTE_ORDER_MARK) for line in lines]


def write_lines(lines: Iterable[str], target: Path | BinaryIO) -> None:
    r"""Write each line and "\n" in UTF-8. Raises ValueError if a line holds "\n"."""
    lines = list(lines)
    for number, line in enumerate(lines, 1):
        if "\n" in line:
            raise ValueError(f"Line {number} holds a line break and would be read back as two.")
    data = "".join(line + "\n" for line in lines).encode("utf-8")
    if isinstance(target, Path):
        target.write_bytes(data)
    else:
        target.write(data)
