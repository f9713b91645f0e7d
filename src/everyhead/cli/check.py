"""everyhead check: does a model keep the laws of padding, caches, the future, files and runs?"""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everyhead.cli.options import Device, Threads

if TYPE_CHECKING:
    from everyhead.inspection.verdicts import Finding

# Those of inspection/checks.py, and of runs; said here so that --help need not wait for torch.
NAMES = (
    *("repeat", "batch", "padding-right", "padding-left", "under-padding", "nan-padding"),
    *("empty-row", "future", "cache", "reorder", "greedy", "sum", "save-load", "ties", "resume"),
)
WIDTH = max(map(len, NAMES))
WORDS = {"pass": "pass", "fail": "FAIL", "not applicable": "--"}


def check(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run, a model folder, a .gguf file, or a name on the Hugging Face Hub.",
        ),
    ],
    law: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help=f"Try this law alone; may be repeated: {', '.join(NAMES)}."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> int:
    """Try each law on a model: padding, batch, cache, future, dropout, files, ties, sums.

    Each one holds, or is broken (with the smallest input that breaks it, and the first layer), or
    says nothing about this model and why. A run is also resumed, on a copy. The exit code is 1 if
    a law is broken.
    """
    from everyhead.cli.checked import findings, open_model

    opened = open_model(model, device=device, threads=threads)
    found = []
    for finding in findings(opened, law):
        found.append(finding)
        if not as_json:
            print("\n".join(lines(finding)), flush=True)
    counts = {verdict: sum(f.verdict == verdict for f in found) for verdict in WORDS}
    if as_json:
        print(json.dumps(described(opened.name, found, counts), ensure_ascii=False, indent=2))
    else:
        print(", ".join(f"{n} {verdict}" for verdict, n in counts.items()) + ".")
    return 1 if counts["fail"] else 0


def described(name: str, found: "list[Finding]", counts: dict[str, int]) -> dict[str, Any]:
    """What --json prints."""
    return {
        "model": name,
        "passed": counts["pass"],
        "failed": counts["fail"],
        "not_applicable": counts["not applicable"],
        "findings": [finding.described() for finding in found],
    }


def lines(finding: "Finding") -> list[str]:
    """A line for the law, and what breaks it below."""
    told = [f"{WORDS[finding.verdict]:4}  {finding.law:{WIDTH}}  {finding.sentence}"]
    if finding.smallest is not None:
        told.append(f"{'':{WIDTH + 8}}smallest input: {smallest(finding.smallest)}")
    return told


def smallest(told: dict[str, Any]) -> str:
    """The failing input as one line."""
    parts = [" | ".join(_row(row) for row in told["rows"])] if "rows" in told else []
    if "padding" in told:
        parts.append(_padding(dict(told["padding"])))
    said = ("rows", "padding", "output", "difference", "row", "token")
    parts += [f"{key.replace('_', ' ')} {_plain(x)}" for key, x in told.items() if key not in said]
    if "token" in told:
        row = f" of row {told['row']}" if len(told.get("rows", [])) > 1 else ""
        parts.append(f"wrong from token {told['token']}{row} on")
    return "; ".join(parts)


def _padding(told: dict[str, Any]) -> str:
    on = told.pop("on")
    if not told:
        return f"padded to one length on the {on}, or a mask that hides nothing"
    return ", ".join(f"{n} of padding on the {on} of {side}" for side, n in told.items())


def _row(row: dict[str, list[int]]) -> str:
    return ", ".join(f"{side} {_plain(ids)}" for side, ids in row.items())


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "(empty)"
    return str(value)
