"""Lines as rows of ids: cut to what is read of each, which is told, and which are read together.

Rows of like length go together, within a budget of rows × longest.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

PIECES = 8192


def groups_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Every index once, in groups; a row that is over the budget is a group by itself."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if group and (len(group) + 1) * lengths[index] > budget:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def encoded_within(
    tokenizer: Any, texts: Sequence[str], limit: int, effect: str
) -> list[list[int]]:
    """Each text's ids, cut to `limit`; a warning counts those cut and says to what effect."""
    ids: list[list[int]] = tokenizer.encode_batch(list(texts))
    long = [i for i, row in enumerate(ids) if len(row) > limit]
    for i in long:
        ids[i] = tokenizer.encode(texts[i], max_len=limit)
    tell_cut(long, len(texts), limit, effect)
    return ids


def tell_cut(long: Sequence[int], n: int, limit: int, effect: str) -> None:
    """Warn that these of n lines were cut, if there are any."""
    if long:
        warnings.warn(
            f"{len(long):,} of {n:,} lines are longer than {limit} tokens (the first is line "
            f"{long[0] + 1}); what comes after {effect}.",
            stacklevel=4,
        )
