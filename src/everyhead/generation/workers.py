"""Several searches at once: threads that compute with a share of the processor's cores each.

While one search decides what to do next, which takes one core, another multiplies. What a search
finds does not depend on its thread. Who looks (layers/probe.py) looks in one thread: then there is
one.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from everyhead.layers import probe

Item = TypeVar("Item")
Result = TypeVar("Result")

# More searches than this would only wait for the interpreter.
MOST = 4


def at_once(
    work: Callable[[Item], Result], items: Sequence[Item], device: torch.device
) -> Iterator[Result]:
    """work(item) of each item, in their order; on a processor several at a time."""
    threads = torch.get_num_threads()
    alone = device.type != "cpu" or probe.active()
    workers = 1 if alone else min(threads, len(items), MOST)
    if workers < 2:
        yield from map(work, items)
        return

    def begin() -> None:
        torch.set_num_threads(threads // workers)  # of this thread and of threads to come

    pool = ThreadPoolExecutor(workers, "search", initializer=begin)
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
