"""A GGUF file: values by key, then a table of tensors, then their data.

    "GGUF" version tensors values · (key type value)… · (name n_dims dims type offset)… · data

ggml-org/ggml, docs/gguf.md. All numbers are little-endian; a string is its length and its bytes, an
array its type, its count and its values; dims go from the fastest to the slowest. Every length is
checked against the file before it is believed. Blocks are unpacked by the `gguf` package; its own
reader takes seconds for a vocabulary, and can be kept busy for ever by a count in a broken file.
"""

import mmap
import struct
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from everyhead.errors import UserError

MAGIC, VERSIONS = b"GGUF", (2, 3)
FORMATS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
STRING, ARRAY = 8, 9
MOST_DIMS, ALIGNMENT = 4, 32
PLAIN = {"F32": "<f4", "F16": "<f2"}
AT_ONCE = 2**20  # numbers that are unpacked together


class Entry(NamedTuple):
    """Where a tensor lies: its shape as PyTorch has it, type, first byte and number of bytes."""

    shape: tuple[int, ...]
    kind: int
    start: int
    size: int


class GgufFile:
    """Values and tensors of one file."""

    def __init__(self, path: Path | str) -> None:
        """Read everything but the tensors' data.

        Raises:
            UserError: no such file, gguf is not installed, or the file is broken or of a kind
                that is not read here.
        """
        self.path = Path(path)
        self._gguf = _package()
        try:
            with open(self.path, "rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is empty"
            raise UserError(f"Could not read {self.path}: {reason}; check the path.") from error
        try:
            self.values, self.entries = self._read()
        except (struct.error, ValueError, KeyError, OverflowError) as error:
            raise UserError(
                f"{self.path} is no whole GGUF file ({error}); copy it again from where it came."
            ) from error

    def tensor(self, name: str) -> Tensor:
        """The tensor in float32, unpacked from its blocks, in memory of its own.

        Raises:
            UserError: blocks of a type that cannot be unpacked.
        """
        entry = self.entries[name]
        kind = self._gguf.GGMLQuantizationType(entry.kind)
        packed = np.frombuffer(self._data, np.uint8, entry.size, entry.start)
        if kind.name in PLAIN:
            numbers = packed.view(PLAIN[kind.name]).astype("<f4")  # a copy
            return torch.from_numpy(numbers.reshape(entry.shape))
        blocks = getattr(self._gguf.quants, kind.name, None)
        if blocks is None:
            raise UserError(
                f"{self.path} holds {name} as {kind.name}, which cannot be unpacked here; take a "
                "file in F16, Q8_0, Q4_0 or Q4_1."
            )
        blocks.init_grid()
        rows = packed.reshape(prod(entry.shape[:-1]), -1)
        numbers = np.empty((rows.shape[0], entry.shape[-1]), np.float32)
        step = max(1, AT_ONCE // entry.shape[-1])  # the package's own steps are of 16 rows
        for i in range(0, rows.shape[0], step):
            numbers[i : i + step] = blocks.dequantize_rows(rows[i : i + step])
        return torch.from_numpy(numbers.reshape(entry.shape))

    def _read(self) -> tuple[dict[str, Any], dict[str, Entry]]:
        n_tensors, n_values, place = self._head()
        values: dict[str, Any] = {}
        for _ in range(n_values):
            key, place = self._string(place)
            kind, place = self._number("<I", place)
            if key in values:
                raise ValueError(f"the key {key} stands in it twice")
            values[key], place = self._value(kind, place)
        table: list[tuple[str, tuple[int, ...], int, int]] = []
        for _ in range(n_tensors):
            row, place = self._row(place)
            table.append(row)
        alignment = values.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"an alignment of {alignment}")
        start = -(-place // alignment) * alignment
        entries = {
            name: self._entry(name, dims, kind, start + at) for name, dims, kind, at in table
        }
        if len(entries) < len(table):
            raise ValueError("a tensor stands in it twice")
        return values, entries

    def _head(self) -> tuple[int, int, int]:
        if self._data[:4] != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version, n_tensors, n_values = struct.unpack_from("<IQQ", self._data, 4)
        if version not in VERSIONS:
            swapped = version & 0xFFFF == 0
            what = "big-endian" if swapped else f"version {version}, and 2 and 3 are read here"
            raise ValueError(f"it is {what}")
        self._fits(n_tensors, 24, 24)
        self._fits(n_values, 13, 24)
        return n_tensors, n_values, 24

    def _row(self, place: int) -> tuple[tuple[str, tuple[int, ...], int, int], int]:
        name, place = self._string(place)
        n_dims, place = self._number("<I", place)
        if n_dims > MOST_DIMS:
            raise ValueError(f"{name} with {n_dims} dimensions")
        dims = struct.unpack_from(f"<{n_dims}Q", self._data, place)
        kind, offset = struct.unpack_from("<IQ", self._data, place + 8 * n_dims)
        return (name, dims[::-1], kind, offset), place + 8 * n_dims + 12

    def _entry(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> Entry:
        try:
            block, size = self._gguf.GGML_QUANT_SIZES[self._gguf.GGMLQuantizationType(kind)]
        except (ValueError, KeyError):
            raise ValueError(f"{name} is of the unknown type {kind}") from None
        width = shape[-1] if shape else 1
        if width % block or not prod(shape):
            raise ValueError(f"{name}'s rows of {width} are no whole blocks of {block}")
        n_bytes = prod(shape) // block * size
        if start + n_bytes > len(self._data):
            raise ValueError(f"{name} ends after the file does")
        return Entry(shape, kind, start, n_bytes)

    def _value(self, kind: int, place: int) -> tuple[Any, int]:
        if kind == STRING:
            return self._string(place)
        if kind != ARRAY:
            return self._number(self._format(kind), place)
        of, count = struct.unpack_from("<IQ", self._data, place)
        place += 12
        if of == STRING:
            self._fits(count, 8, place)
            texts = []
            for _ in range(count):
                text, place = self._string(place)
                texts.append(text)
            return texts, place
        one = self._format(of)
        self._fits(count, struct.calcsize(one), place)
        numbers = struct.unpack_from(f"<{count}{one[1]}", self._data, place)
        return list(numbers), place + count * struct.calcsize(one)

    def _format(self, kind: int) -> str:
        if kind not in FORMATS:
            raise ValueError(f"a value of the unknown type {kind}")
        return FORMATS[kind]

    def _number(self, form: str, place: int) -> tuple[Any, int]:
        (number,) = struct.unpack_from(form, self._data, place)
        return number, place + struct.calcsize(form)

    def _string(self, place: int) -> tuple[str, int]:
        length, place = self._number("<Q", place)
        self._fits(length, 1, place)
        return self._data[place : place + length].decode("utf-8"), place + length

    def _fits(self, count: int, width: int, place: int) -> None:
        if count * width > len(self._data) - place:
            raise ValueError("it is cut off")


def _package() -> ModuleType:
    try:
        import gguf
        import gguf.quants
    except ModuleNotFoundError as error:
        raise UserError(
            "Opening a .gguf file needs the gguf package, which is not installed: "
            "pip install 'everyhead[hf]'."
        ) from error
    return gguf
