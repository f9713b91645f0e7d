"""Attention as the length grows, 1,024 … 131,072 tokens: time and memory, ours beside others.

    python -m bench.long [--lengths 1024 …] [--systems NAME …] [--threads 2] [--out FILE]

8 heads of 64, batch 1, float32 (systems: bench/long_systems.py). Every cell is a process of its own
with a limit of time and of memory, twice: once timed, once watched (the most memory held during the
call less what was held before it, the result included). `growth` is the exponent e of cost ~ nᵉ,
fitted over 8,192 … the longest length.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench.long_systems import HEADS, SYSTEMS, WIDTH, Attend

LENGTHS = [1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072]
FITTED_FROM = 8192
MEBIBYTE = 2**20
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.long", description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--directions", nargs="+", default=["forward", "backward"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--limit-s", type=float, default=420)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cell", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        name, n, direction, what = args.cell
        torch.set_num_threads(args.threads)
        print(json.dumps(measured(name, int(n), direction == "backward", what == "memory")))
        return
    rows: list[Row] = []
    for direction in args.directions:
        for n in args.lengths:
            for name in args.systems:
                if n > (SYSTEMS[name].longest if direction == "forward" else SYSTEMS[name].trains):
                    continue
                row = cell(name, n, direction, args.threads, args.limit_s)
                print(line(row), file=sys.stderr, flush=True)
                rows.append(row)
                if args.out is not None:
                    args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"{args.threads} threads\n")
    for direction in args.directions:
        print(table(rows, args.lengths, direction))


def cell(name: str, n: int, direction: str, threads: int, limit: float) -> Row:
    """Time and memory of one system at one length, or why there is none."""
    row: Row = {"system": name, "n": n, "direction": direction}
    for what in ("time", "memory"):
        command = [sys.executable, "-m", "bench.long", "--threads", str(threads)]
        command += ["--cell", name, str(n), direction, what]
        # Blocks go back to the system when they are freed, or the peak would count old ones.
        env = os.environ | ({"MALLOC_MMAP_THRESHOLD_": "65536"} if what == "memory" else {})
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=env)
        except subprocess.TimeoutExpired:
            return row | {"failed": f"over {limit:.0f} s"}
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["killed"])[-1]
            return row | {"failed": said[:120] if done.returncode > 0 else "killed"}
        row |= json.loads(done.stdout.splitlines()[-1])
    return row


def measured(name: str, n: int, backward: bool, memory: bool) -> Row:
    """In a process of its own: the least seconds of some calls, or the MiB of one."""
    system = SYSTEMS[name]
    attend = system.make(n)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, HEADS, n, WIDTH, generator=generator).requires_grad_(backward)
        for _ in range(3)
    )
    if system.compiles:
        once(attend, q, k, v, backward)
    if memory:
        before = held()
        forget_peak()
        once(attend, q, k, v, backward)
        return {"MiB": round((peak() - before) / MEBIBYTE, 1)}
    seconds = [once(attend, q, k, v, backward)]
    n_more = 4 if seconds[0] < 1 else 1 if seconds[0] < 10 else 0
    seconds += [once(attend, q, k, v, backward) for _ in range(n_more)]
    return {"seconds": min(seconds)}


def once(
    attend: Attend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backward: bool
) -> float:
    for x in (q, k, v):
        x.grad = None
    start = time.perf_counter()
    with torch.set_grad_enabled(backward):
        out = attend(q, k, v)
        if backward:
            out.backward(torch.ones_like(out))
    return time.perf_counter() - start


def held() -> int:
    """Bytes of memory this process holds now (Linux)."""
    return status("VmRSS")


def peak() -> int:
    """The most it held since `forget_peak`."""
    return status("VmHWM")


def status(name: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = next(line for line in text.splitlines() if line.startswith(name + ":"))
    return int(found.split()[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def growth(rows: list[Row], key: str) -> float | None:
    """The slope of log cost over log n, by least squares; None for fewer than three lengths."""
    points = [(math.log(r["n"]), math.log(r[key])) for r in rows if r["n"] >= FITTED_FROM]
    if len(points) < 3:
        return None
    x, y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def line(row: Row) -> str:
    cost = row.get("failed") or f"{row['seconds']:.4f} s, {row['MiB']:.0f} MiB"
    return f"{row['direction']:8} {row['n']:7} {row['system']}: {cost}"


def table(rows: list[Row], lengths: list[int], direction: str) -> str:
    """Seconds and MiB of each system, its growth, and ours beside the others of its method."""
    heads = [direction, *(f"{n:,}" for n in lengths), "growth of time", "of memory"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name in SYSTEMS:
        own = [r for r in rows if r["system"] == name and r["direction"] == direction]
        if not own:
            continue
        by_n = {r["n"]: r for r in own}
        done = [r for r in own if "failed" not in r]
        cells = [shown(by_n.get(n)) for n in lengths]
        slopes = [growth(done, key) for key in ("seconds", "MiB")]
        cells += ["–" if slope is None else f"{slope:.2f}" for slope in slopes]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines) + "\n"


def shown(row: Row | None) -> str:
    if row is None:
        return ""
    if "failed" in row:
        return row["failed"]
    return f"{row['seconds']:.3g} s, {row['MiB']:.0f} MiB"


if __name__ == "__main__":
    main()
