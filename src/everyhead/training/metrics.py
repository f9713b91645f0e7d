"""metrics.jsonl: one JSON object a line, appended while training, cut back when a run resumes."""

import json
import math
from pathlib import Path
from typing import Any

from everyhead.files import atomic_write_bytes

FILE = "metrics.jsonl"


def append_row(run: Path, row: dict[str, Any]) -> None:
    """Add one line; numbers that are not finite are written as null."""
    clean = {
        k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()
    }
    with open(run / FILE, "ab") as file:
        file.write(json.dumps(clean, ensure_ascii=False).encode("utf-8") + b"\n")


def read_rows(run: Path) -> list[dict[str, Any]]:
    """All whole lines; a last line that a kill cut short is left out."""
    path = run / FILE
    if not path.is_file():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return [row for row in rows if isinstance(row, dict)]


def cut_back(run: Path, step: int) -> None:
    """Forget what was written after `step`."""
    kept = [row for row in read_rows(run) if row.get("step", 0) <= step]
    lines = [json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n" for row in kept]
    atomic_write_bytes(run / FILE, b"".join(lines))


def perplexity(nll: float, n_tokens: int) -> float:
    """exp(Σ −log p / Σ tokens); infinity where it overflows."""
    try:
        return math.exp(nll / n_tokens) if n_tokens else math.nan
    except OverflowError:
        return math.inf
