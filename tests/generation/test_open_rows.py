"""A batch that shrinks: who stays, where, and how often."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from everyhead.generation.open_rows import round_size, smaller


@given(st.lists(st.booleans(), min_size=1, max_size=80))
def test_every_open_row_stays_once_and_most_do_not_move(flags: list[bool]) -> None:
    done = torch.tensor(flags)
    rows = smaller(done)
    n_open = flags.count(False)
    if rows is None:
        assert round_size(n_open) >= len(flags)
        return
    kept = rows.tolist()
    assert len(set(kept)) == len(kept) == round_size(n_open) < len(flags)
    assert {i for i, flag in enumerate(flags) if not flag} <= set(kept)
    moved = [i for i, row in enumerate(kept) if row != i]
    assert len(moved) == sum(not flag for flag in flags[len(kept) :])


def test_sizes_are_exact_when_small_and_an_eighth_apart_when_large() -> None:
    assert [round_size(n) for n in range(9)] == list(range(9))
    assert [round_size(n) for n in (9, 15, 17, 31, 33, 63, 65, 128)] == [
        9, 15, 18, 32, 36, 64, 72, 128,
    ]  # fmt: skip
    assert len({round_size(n) for n in range(1, 513)}) < 60
