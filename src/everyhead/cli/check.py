"""everyhead check: does a model keep the laws of padding, caches, the future, files and runs?"""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everyhead.cli.options import Device, Threads

if TYPE_CHECKING:
    from everyhead.inspection.verdicts import Finding

WORDS = {"pass": "pass", "fail": "FAIL", "not applicable": "--"}


def check(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A run, a model folder, or a name on the Hugging Face Hub."
        ),
    ],
    law: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Try this law alone; may be repeated."),
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
    found = findings(opened, law)
    counts = {verdict: sum(f.verdict == verdict for f in found) for verdict in WORDS}
    if as_json:
        print(json.dumps(described(opened.name, found, counts), ensure_ascii=False, indent=2))
    else:
        print("\n".join(lines(found, counts)))
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


def lines(found: "list[Finding]", counts: dict[str, int]) -> list[str]:
    """A line a law, what breaks it below, and the sum."""
    width = max(len(finding.law) for finding in found)
    told = []
    for finding in found:
        told.append(f"{WORDS[finding.verdict]:4}  {finding.law:{width}}  {finding.sentence}")
        if finding.smallest is not None:
            told.append(f"{'':{width + 8}}smallest input: {smallest(finding.smallest)}")
    told.append(
        f"{counts['pass']} laws hold, {counts['fail']} are broken, "
        f"{counts['not applicable']} do not apply."
    )
    return told


def smallest(told: dict[str, Any]) -> str:
    """The failing input as one line."""
    rows = told.get("rows", [])
    parts = [" | ".join(_row(row) for row in rows)] if rows else []
    padding = dict(told.get("padding", {}))
    if padding:
        side = padding.pop("side")
        amounts = ", ".join(f"{n} more on the {name}" for name, n in padding.items())
        parts.append(f"padded on the {side}" + (f", {amounts}" if amounts else ""))
    hidden = ("rows", "padding", "output", "difference", "row")
    parts += [f"{key} {_plain(value)}" for key, value in told.items() if key not in hidden]
    return "; ".join(parts)


def _row(row: dict[str, list[int]]) -> str:
    return ", ".join(f"{side} {_plain(ids)}" for side, ids in row.items())


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "(empty)"
    return str(value)
