"""Names of tensors as they were really published, brought to those of one table.

The same checkpoint lies about with and without the base model's prefix (`bert.`, `transformer.`,
`model.`), with TensorFlow's `gamma` and `beta` for a norm's weight and bias, and with buffers of
older code (`attn.bias`, `position_ids`) that are no weights. Each is known by name, and only so.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from everyhead.errors import UserError
from everyhead.weights.kind import Tidied

GAMMA_BETA = {"gamma": "weight", "beta": "bias"}


def tidied(
    tensors: Mapping[str, Tensor],
    *,
    prefix: str = "",
    outside: Sequence[str] = (),
    buffers: Collection[str] = (),
    renames: Mapping[str, str] | None = None,
) -> Tidied:
    """The tensors with `prefix` before each name, except those that begin as one of `outside`.

    Args:
        tensors: by their name in the file.
        prefix: of the base model, like `bert.`; names that have it already keep it.
        outside: beginnings of names that lie beside the base model: heads, `lm_head.`.
        buffers: patterns (of `re.fullmatch`) of names that are dropped. They see the prefixed name.
        renames: last parts of names → what they are called now; gamma and beta by `GAMMA_BETA`.

    Raises:
        UserError: two names of the file become one.
    """
    patterns = [re.compile(pattern) for pattern in buffers]
    found: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for old, tensor in tensors.items():
        name = _last_renamed(_prefixed(old, prefix, outside), renames or {})
        if any(pattern.fullmatch(name) for pattern in patterns):
            continue
        if name in found:
            raise UserError(
                f"the file holds {origin[name]} and {old}, which are two names of one tensor; "
                "remove one of them."
            )
        found[name], origin[name] = tensor, old
    return Tidied(found)


def tidier(**choices: Any) -> Callable[[dict[str, Tensor], Mapping[str, Any]], Tidied]:
    """`tidied` with these choices, as `Kind.tidy` wants it."""

    def tidy(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> Tidied:
        return tidied(tensors, **choices)

    return tidy


def _prefixed(name: str, prefix: str, outside: Sequence[str]) -> str:
    if name.startswith(prefix) or name.startswith(tuple(outside)):
        return name
    return prefix + name


def _last_renamed(name: str, renames: Mapping[str, str]) -> str:
    before, dot, last = name.rpartition(".")
    return before + dot + renames.get(last, last)
