"""How each family lies in a Hugging Face folder: the table of kinds.

A kind is one two-way table: config.json ↔ our config, their tensors ↔ ours (`Slot`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel
from torch import Tensor, nn

from everyhead.weights.state import Slot


class Tidied(NamedTuple):
    """The file's tensors under the names that `slots` expects, and sentences about the rest."""

    tensors: dict[str, Tensor]
    notes: tuple[str, ...] = ()


class Kind(NamedTuple):
    """One family on disk.

    family: its name in MODELS. model_types: of config.json. config: content of config.json and
    where it lies → our config, or a UserError that names the field we cannot express. values: our
    model → content of config.json. slots: our model → where each tensor lies. tidy: names as they
    are really published (with or without a prefix, gamma/beta, old buffers) → those of `slots`.
    heads: our names' beginnings that a file may lack; they start at random, which is announced.
    """

    family: str
    model_types: tuple[str, ...]
    config: Callable[[Mapping[str, Any], object], BaseModel]
    values: Callable[[nn.Module], dict[str, Any]]
    slots: Callable[[nn.Module], list[Slot]]
    tidy: Callable[[dict[str, Tensor], Mapping[str, Any]], Tidied]
    heads: tuple[str, ...] = ()


KINDS: tuple[Kind, ...] = ()
