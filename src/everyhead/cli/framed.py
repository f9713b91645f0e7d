"""Pages of explorer/ within the report: framed, with their script and without a right to anything.

A framed page is held to the policy of the page around it and to its own, so the report's policy
names the script of its frames by the hash that theirs names.
"""

import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

SCRIPT = re.compile(r"script-src ('sha256-[A-Za-z0-9+/=]+')")
NOTHING = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'"


class Frame(NamedTuple):
    """A page of explorer/ to be shown within another."""

    title: str
    caption: str
    html: str


def policy(frames: Sequence[Frame]) -> str:
    """What may run and load in a page that frames these: their scripts, nothing else."""
    found = [SCRIPT.search(frame.html) for frame in frames]  # the first: texts stand after it
    scripts = sorted({each[1] for each in found if each is not None})
    return f"{NOTHING}; script-src {' '.join(scripts)}" if scripts else NOTHING


def section(frame: Frame) -> str:
    """The frame under its title."""
    return (
        f"<section><h2>{escape(frame.title)}</h2>"
        f'<p class="note" dir="auto">{escape(frame.caption)}</p>'
        f'<iframe class="card" title="{escape(frame.title)}" '
        f'sandbox="allow-scripts allow-downloads" srcdoc="{escape(frame.html)}"></iframe></section>'
    )
