"""What the demo shows before it trains: two senses of *bank* in a published model, head by head.

The weights are fetched once (weights/fetch.py); without them the demo goes on and says so.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

from everyhead.errors import UserError

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
RIVER, MONEY = "The bank of the river was muddy.", "The money was deposited in the bank."
CAPTION = (
    f"Every head of {MODEL} while it reads “{RIVER}” and “{MONEY}” A weight says what was mixed "
    "into a word, not why; docs/bank.md measures what this model does with the two senses."
)
PAGE = "look.html"


def first_look(run: Path) -> str | None:
    """Write run/look.html and return the page; None where there are no weights to look into."""
    kept = run / PAGE
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    if find_spec("transformers") is None:
        _left_out('it needs transformers: pip install "everyhead[hf]"')
        return None
    from everyhead.cli.asked import Wanted, open_session
    from everyhead.explorer.page import html, write

    try:
        scenes = Wanted(RIVER, MONEY).scenes(open_session(MODEL), measured=True)
    except UserError as error:
        _left_out(str(error))
        return None
    run.mkdir(parents=True, exist_ok=True)
    print(write(scenes, kept).resolve(), flush=True)
    return html(scenes)


def translations_page(run: Path, sentences: list[str]) -> str:
    """The page of a trained run while it translates these sentences."""
    from everyhead.cli.asked import Wanted, open_session
    from everyhead.explorer.page import html

    session = open_session(str(run))
    return html([scene for text in sentences for scene in Wanted(text).scenes(session)])


def _left_out(why: str) -> None:
    print(f"The page about “bank” is left out: {why}", file=sys.stderr)
