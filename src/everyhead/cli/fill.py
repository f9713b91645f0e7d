"""everyhead fill: what stands in the gaps of a sentence."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everyhead.cli.lines import given_lines
from everyhead.cli.options import Device, Threads
from everyhead.errors import UserError

if TYPE_CHECKING:
    from everyhead.generation.fill import Filled


def fill(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run or a folder of a BERT.")],
    sentence: Annotated[
        str | None,
        typer.Argument(
            metavar="SENTENCE", help="With [MASK] in its gaps. Without it: standard input."
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Or sentences, one a line.")
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", help="Show so many for each gap.")] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help='JSON lines: {"text": …, "gaps": [[{"piece": …}]]}.')
    ] = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """The likeliest words for each [MASK], with their probabilities.

    A sentence with one gap: probability, word and whole sentence. Several gaps or lines have the
    line's and the gap's number before them.
    """
    if top < 1:
        raise UserError(f"--top must be 1 or more; got {top}.")
    lines = given_lines("fill", run, sentence, file, 'a sentence with a gap, "The [MASK] barks."')
    from everyhead.cli.opened_model import open_model
    from everyhead.generation.fill import fill as filled

    opened = open_model(run, device=device, threads=threads)
    found = filled(opened.model, opened.tokenizer, lines, top=top)
    for number, each in enumerate(found, 1):
        if as_json:
            print(_json(each))
            continue
        alone = len(lines) == 1 and len(each.gaps) == 1
        for gap, candidates in enumerate(each.gaps, 1):
            for one in candidates:
                before = "" if alone else f"{number}\t{gap}\t"
                print(f"{before}{one.probability:.4f}\t{one.piece}\t{one.line}")


def _json(found: "Filled") -> str:
    gaps = [
        [
            {"piece": one.piece, "id": one.id, "probability": round(one.probability, 6)}
            | {"line": one.line}
            for one in candidates
        ]
        for candidates in found.gaps
    ]
    return json.dumps({"text": found.text, "gaps": gaps}, ensure_ascii=False)
