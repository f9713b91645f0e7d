"""Names of tensors: a row pairs our name with a foreign one, `{n}` standing for a layer's number.

    encoder.blocks.{n}.self_attn_norm.bias  ↔  model.encoder.layers.{n}.self_attn_layer_norm.bias

A row may carry an invertible change of the tensor itself. A model knows its own names, so reading
needs no search: what each of them is called in the file is looked up, and the rest is unexpected.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

Change = Callable[[Tensor], Tensor]


def unchanged(tensor: Tensor) -> Tensor:
    return tensor


class Row(NamedTuple):
    """Our name, theirs, and how the tensor changes on its way there and back."""

    ours: str
    theirs: str
    to_theirs: Change = unchanged
    to_ours: Change = unchanged


class NameTable:
    """The rows of one family."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = tuple(rows)
        self._patterns = [(_pattern(row.ours), row) for row in self.rows]

    def row_of(self, name: str) -> Row:
        """The row of one of our names, with the layer's number filled in on both sides.

        Raises:
            KeyError: no row has that name as a whole.
        """
        for pattern, row in self._patterns:
            if match := pattern.fullmatch(name):
                return row._replace(ours=name, theirs=row.theirs.replace("{n}", match[1]))
        raise KeyError(name)


def _pattern(ours: str) -> re.Pattern[str]:
    before, brace, after = ours.partition("{n}")
    number = "(0|[1-9][0-9]*)" if brace else "()"
    return re.compile(re.escape(before) + number + re.escape(after))
