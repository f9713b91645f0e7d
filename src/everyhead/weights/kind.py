"""How one family lies in a Hugging Face folder: config.json ↔ our config, their tensors ↔ ours.

The table of all families is weights/kinds.py. A family without an entry there is written as
itself: our config, our names (weights/own.py).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel
from torch import Tensor, nn

from everyhead.weights.state import Slot


class Tidied(NamedTuple):
    """The file's tensors under the names that `slots` expects, and sentences about the rest."""

    tensors: dict[str, Tensor]
    notes: tuple[str, ...] = ()


def untouched(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> Tidied:
    """For files whose names need no tidying."""
    return Tidied(tensors)


def expressible(config: Any) -> str | None:
    """For families of which Hugging Face can say every config."""
    return None


def nothing(model: nn.Module) -> dict[str, Any]:
    """For families that store no more than their slots, and whose defaults suffice."""
    return {}


class Kind(NamedTuple):
    """One family on disk.

    family: its name in MODELS. model_types: of config.json. config: content of config.json and
    where it lies → our config, or a UserError that names the field we cannot express. values: our
    model → content of config.json. slots: our model → where each tensor lies. tidy: names as they
    are really published (with or without a prefix, gamma/beta, old buffers) → those of `slots`.
    heads: our names' beginnings that a file may lack; they start at random, which is announced.
    spare: tidied names' beginnings of heads that a file may hold although the model has no use for
    them; they are named in a warning.

    architectures: where several kinds share a model_type, those of config.json that are this one.
    why_not: what of our config Hugging Face cannot say, None if nothing; with a reason the model is
    written as itself. extra: tensors to store besides the slots'. generation: entries of
    generation_config.json beyond the ids. companion: opens what goes with the model (a tokenizer),
    by default what weights/companions.py finds. finish: a last touch after the tensors are in.
    remarks: our model → a sentence for each tool that cannot open what was written. hidden_there:
    their code does not let its attention be seen, so such a folder is looked at as ours.
    """

    family: str
    model_types: tuple[str, ...]
    config: Callable[[Mapping[str, Any], object], BaseModel]
    values: Callable[[Any], dict[str, Any]]
    slots: Callable[[Any], list[Slot]]
    tidy: Callable[[dict[str, Tensor], Mapping[str, Any]], Tidied] = untouched
    heads: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    why_not: Callable[[Any], str | None] = expressible
    extra: Callable[[Any], dict[str, Tensor]] = nothing
    generation: Callable[[Any], dict[str, Any]] = nothing
    companion: Callable[[Path], Any] | None = None
    finish: Callable[[Any], object] = nothing
    remarks: Callable[[Any], list[str]] | None = None
    hidden_there: bool = False
