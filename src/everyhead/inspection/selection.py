"""Which heads, rows and positions somebody asks for, checked before anything is computed.

One number stands for a list of one: axes stay where they are, so what comes back is always
(B, h, t, S). Numbers count from 0; where something is read, −1 is the last, as in Python.
"""

import operator
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor

Heads = int | Sequence[int] | Tensor | slice | None
Rows = int | Sequence[int] | Tensor | slice | None


def heads_of(asked: Heads, n: int, place: str) -> list[int] | slice | None:
    """
    Raises:
        ValueError: no such head.
    """
    if asked is None or isinstance(asked, slice):
        return asked
    return _existing(asked, n, f"heads of {place}")


def rows_of(asked: Rows, n: int, place: str) -> slice | Tensor | None:
    """
    Raises:
        ValueError: no such row.
    """
    if asked is None or isinstance(asked, slice):
        return asked
    device = asked.device if isinstance(asked, Tensor) else None
    return torch.tensor(_existing(asked, n, f"rows of {place}"), dtype=torch.long, device=device)


def counted(numbers: int | Iterable[SupportsIndex], what: str) -> tuple[int, ...]:
    """Positions in something whose length is not known yet, so that nothing counts from its end.

    Raises:
        ValueError: one is below 0.
    """
    found = tuple(_numbers(numbers))
    for number in found:
        if number < 0:
            raise ValueError(
                f"there is no {number} among the {what}: they are counted from 0, from the "
                "beginning of the text"
            )
    return found


def within(numbers: Sequence[int] | None, n: int, what: str) -> list[int]:
    """
    Raises:
        ValueError: one of the numbers does not exist.
    """
    chosen = list(range(n)) if numbers is None else list(numbers)
    for number in chosen:
        if not 0 <= number < n:
            raise ValueError(f"there is no {number} among the {n} {what}, counted from 0")
    return chosen


def _existing(asked: int | Iterable[SupportsIndex] | Tensor, n: int, what: str) -> list[int]:
    listed = _listed(asked)
    if listed and all(map(_is_yes_or_no, listed)):
        if len(listed) != n:
            raise ValueError(f"one yes or no for each of the {n} {what}; got {len(listed)}")
        return [i for i, chosen in enumerate(listed) if chosen]
    numbers = _numbers(listed)
    return within([number + n if -n <= number < 0 else number for number in numbers], n, what)


def _listed(asked: Any) -> list[Any]:
    if isinstance(asked, Tensor):
        return asked.reshape(-1).tolist()
    return list(asked) if isinstance(asked, Iterable) else [asked]


def _numbers(asked: Any) -> list[int]:
    """
    Raises:
        ValueError: they are no whole numbers.
    """
    listed = _listed(asked)
    if any(map(_is_yes_or_no, listed)):
        raise ValueError(f"{listed} says yes or no where the numbers themselves are needed")
    try:
        return [operator.index(one) for one in listed]
    except TypeError:
        raise ValueError(f"{asked!r}: give whole numbers, or one") from None


def _is_yes_or_no(one: object) -> bool:
    return type(one).__name__ in ("bool", "bool_")  # NumPy's own too
