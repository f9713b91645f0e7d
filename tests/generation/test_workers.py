"""Several searches at once: order, errors, and the number of threads afterwards."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from everyhead.generation.workers import at_once
from everyhead.layers import probe

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def threads_seen(i: int) -> tuple[int, int]:
    time.sleep(0.002 * (i % 3))
    return i, torch.get_num_threads()


def test_results_come_in_order_each_from_a_share_of_the_threads() -> None:
    assert list(at_once(threads_seen, range(7), CPU)) == [(i, 1) for i in range(7)]
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("items", [[], [5]])
def test_a_single_item_gets_all_threads(items: list[int]) -> None:
    assert list(at_once(threads_seen, items, CPU)) == [(i, 2) for i in items]


def test_elsewhere_than_on_a_processor_one_at_a_time() -> None:
    assert list(at_once(threads_seen, [0, 1], torch.device("meta"))) == [(0, 2), (1, 2)]


def test_an_error_comes_out_and_threads_are_as_before() -> None:
    def fail(i: int) -> int:
        if i == 2:
            raise ValueError("no")
        return i

    with pytest.raises(ValueError, match="no"):
        list(at_once(fail, range(9), CPU))
    assert torch.get_num_threads() == 2


def test_what_is_not_wanted_any_more_is_not_begun() -> None:
    begun: list[int] = []

    def note(i: int) -> int:
        begun.append(i)
        time.sleep(0.01)
        return i

    results = at_once(note, range(50), CPU)
    assert next(results) == 0
    results.close()
    assert len(begun) < 10 and torch.get_num_threads() == 2


def test_who_looks_sees_all_of_it_in_one_thread() -> None:
    class Looker:
        def attention(self, module: object, parts: Any, mask: Any, attend: Any) -> Any:
            return attend(parts, mask)

    looker = Looker()
    probe.attach(looker)
    try:
        assert list(at_once(threads_seen, range(3), CPU)) == [(i, 2) for i in range(3)]
    finally:
        probe.detach(looker)
