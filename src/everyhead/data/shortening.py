"""How much of a text and of its pair is kept where both together are too long."""

from collections.abc import Sequence


def shortened(lengths: Sequence[int], room: int) -> list[int]:
    """One or two lengths that fit into `room` together: the longer gives first, then both to half.

    As "longest_first" of the `tokenizers` library.
    """
    room = max(room, 0)
    if sum(lengths) <= room:
        return list(lengths)
    if len(lengths) == 1:
        return [room]
    less = min(*lengths, room // 2)
    return [less, room - less] if lengths[0] <= lengths[1] else [room - less, less]
