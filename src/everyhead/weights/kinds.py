"""The table of kinds: how each family lies in a Hugging Face folder.

A family's module says `KIND = Kind(…)` (weights/kind.py); one line here puts it into the table.
"""

from everyhead.weights import transformer
from everyhead.weights.kind import Kind, Tidied

__all__ = ["KINDS", "Kind", "Tidied"]

KINDS: tuple[Kind, ...] = (transformer.KIND,)
