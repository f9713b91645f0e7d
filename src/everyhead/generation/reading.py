"""Which rows are read together: those of like length, within a budget of rows × longest."""

from collections.abc import Iterator, Sequence

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
