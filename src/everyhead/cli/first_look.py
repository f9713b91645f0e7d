"""What the demo shows before it trains: two senses of *bank* in a published model, head by head.

The weights are fetched once (weights/fetch.py); without them the demo goes on and says so.
"""

import sys
from html import escape
from importlib.util import find_spec
from pathlib import Path

from everyhead.errors import UserError

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
RIVER, MONEY = "The bank of the river was muddy.", "The money was deposited in the bank."
CAPTION = (
    f"Every head of {MODEL} while it reads “{RIVER}” and “{MONEY}” A weight says what was mixed "
    "into a word, not why; docs/bank.md measures what this model does with the two senses."
)
PAGE = "bank.html"
VERSION = sys.modules["everyhead"].__version__


def first_look(run: Path) -> str | None:
    """Write run/bank.html and return the page; None where there are no weights to look into.

    One that this version wrote of this model is kept.
    """
    kept = run / PAGE
    mark = f"<!-- everyhead {VERSION}: {escape(MODEL)} -->\n"
    if kept.is_file():
        before = kept.read_bytes()
        if before.endswith(mark.encode("utf-8")):
            return before.decode("utf-8")
    if find_spec("transformers") is None:
        _left_out('it needs transformers: pip install "everyhead[hf]"')
        return None
    from everyhead.cli.asked import Wanted, open_session
    from everyhead.explorer.page import html
    from everyhead.files import atomic_write_text

    try:
        page = html(Wanted(RIVER, MONEY).scenes(open_session(MODEL), measured=True)) + mark
    except UserError as error:
        _left_out(str(error))
        return None
    run.mkdir(parents=True, exist_ok=True)
    atomic_write_text(kept, page)
    print(kept.resolve(), flush=True)
    return page


def translations_page(run: Path, sentences: list[str]) -> str:
    """The page of a trained run while it translates these sentences."""
    from everyhead.cli.asked import Wanted, open_session
    from everyhead.explorer.page import html

    session = open_session(str(run))
    return html([scene for text in sentences for scene in Wanted(text).scenes(session)])


def _left_out(why: str) -> None:
    print(f"The page about “bank” is left out: {why}", file=sys.stderr)
