"""Timing of systems side by side on a noisy machine.

Systems take turns, round by round; a ratio is taken inside each round and the median over rounds
is reported. Before each timed call the process rests and makes an untimed call, because other
libraries' thread pools keep spinning after theirs.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

REST = 0.3


class System(NamedTuple):
    """A name, the call that is timed, and the untimed call before it (the same by default)."""

    name: str
    call: Callable[[], Any]
    warm: Callable[[], Any] | None = None


def rounds(systems: list[System], n: int, *, rest: float = REST) -> dict[str, list[float]]:
    """Seconds of each system in each of n rounds."""
    seconds: dict[str, list[float]] = {system.name: [] for system in systems}
    for i in range(n):
        for system in systems if i % 2 == 0 else systems[::-1]:
            time.sleep(rest)
            (system.warm or system.call)()
            start = time.perf_counter()
            system.call()
            seconds[system.name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: dict[str, list[float]], ours: str, other: str) -> float:
    """How many times as fast ours is: the median over rounds of other / ours."""
    pairs = zip(seconds[other], seconds[ours], strict=True)
    return statistics.median(b / a for b, a in pairs)


def gemm_rate(n: int = 4096, k: int = 512, m: int = 2048, repeats: int = 3) -> float:
    """GFLOP/s of a float32 product, the better of `@` and oneDNN, now."""
    x, w = torch.randn(n, k), torch.randn(m, k)
    kinds: list[Callable[[], Any]] = [lambda: torch.nn.functional.linear(x, w)]
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        kinds.append(lambda: torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], ""))
    best = 0.0
    for kind in kinds:
        kind()
        for _ in range(repeats):
            start = time.perf_counter()
            kind()
            best = max(best, 2 * n * k * m / (time.perf_counter() - start) / 1e9)
    return best


class Row(NamedTuple):
    """One line of the table and of results.json."""

    job: str
    setting: str
    system: str
    value: float
    unit: str
    speed_over_best_peer: float | None


def rows_of(
    job: str,
    setting: str,
    seconds: dict[str, list[float]],
    work: float,
    unit: str,
    ours: str = "everyhead",
) -> list[Row]:
    """One row a system: work per second by the median, and the ratio to the fastest peer."""
    peers = [name for name in seconds if not name.startswith(ours)]
    mine = [name for name in seconds if name.startswith(ours)]
    best_peer = min(peers, key=lambda name: statistics.median(seconds[name])) if peers else None
    best_mine = min(mine, key=lambda name: statistics.median(seconds[name]))
    rows = []
    for name, values in seconds.items():
        over = None
        if best_peer is not None and name == best_mine:
            over = round(ratio(seconds, name, best_peer), 3)
        value = round(work / statistics.median(values), 1)
        rows.append(Row(job, setting, name, value, unit, over))
    return rows
