"""Which installed fonts have the glyphs of these labels?

matplotlib draws a character that its font lacks as an empty box. Here a list of families is chosen
for the characters at hand, DejaVu Sans first (matplotlib brings it along); matplotlib then picks
for each character the first family that has it. What no font has is named in one warning.
"""

import functools
import sys
import unicodedata
import warnings
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.font_manager import FontEntry

BASE = "DejaVu Sans"
# Sans-serif families with wide coverage, the most legible first.
PREFERRED = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Noto Sans CJK TC",
    "Noto Sans CJK KR",
    "Apple SD Gothic Neo",
    "Malgun Gothic",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Arial Unicode MS",
)
# Han characters are drawn differently in Japan, so text with kana prefers these.
PREFERRED_WITH_KANA = ("Noto Sans CJK JP", "Noto Sans JP", "Hiragino Sans", "Yu Gothic", "Meiryo")
# Has a box for every character, which is what we want to avoid.
LAST_RESORT = "Last Resort"
# Shown in place of white space, which would otherwise be invisible at the edge of a label.
VISIBLE = {" ": "␣", "\u3000": "␣", "\u00a0": "␣", "\t": "⇥", "\n": "↵", "\r": "↵"}
EMPTY, DOTTED_CIRCLE, ZERO_WIDTH_JOINER = "∅", "\u25cc", "\u200d"
SHAPELESS = ("Cc", "Cn", "Co", "Cs", "Zl", "Zp")  # control, unassigned, private, half a pair
TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
REMEDY = {
    "EMOJI": "fonts-symbola",
    "CJK": "fonts-noto-cjk or fonts-wqy-microhei",
    "HIRAGANA": "fonts-noto-cjk or fonts-wqy-microhei",
    "KATAKANA": "fonts-noto-cjk or fonts-wqy-microhei",
    "HANGUL": "fonts-noto-cjk",
}


class Fonts(NamedTuple):
    """Families to try in this order, and the characters that none of them has."""

    families: list[str]
    missing: frozenset[str]


def choose_fonts(texts: Iterable[str]) -> Fonts:
    """The families whose glyphs together draw `texts`; warns once about what none has.

    Returns: `Fonts(families, missing)`; `families` always starts with DejaVu Sans.
    """
    wanted = frozenset(c for text in texts for c in text if _needs_glyph(c))
    chosen = _choose(wanted)
    if chosen.missing:
        _warn_once(_first_script(chosen.missing))
    return chosen


def visible(text: str, *, limit: int = 18) -> str:
    """`text` as a label: white space shown, control characters spelled out, cut after `limit`.

    Nothing is `∅`; a mark that combines with nothing stands on a dotted circle.
    """
    shown = [VISIBLE.get(c) or _spelled_out(c) for c in text]
    if text and unicodedata.category(text[0])[0] == "M":
        shown[0] = DOTTED_CIRCLE + text[0]
    lengths = list(accumulate(len(each) for each in shown))
    if not shown or lengths[-1] <= limit:
        return "".join(shown) or EMPTY
    end = _boundary(text, max(1, bisect_right(lengths, limit - 1)))
    return "".join(shown[:end]) + "…"


def _boundary(text: str, end: int) -> int:
    """A place to cut at or before `end` that parts no letter from its marks, no emoji in two."""
    while end > 1 and (
        unicodedata.category(text[end])[0] == "M" or ZERO_WIDTH_JOINER in text[end - 1 : end + 1]
    ):
        end -= 1
    return end


def labels(texts: Iterable[str], fonts: Fonts) -> list[str]:
    """Labels for text spans; one that cannot be drawn is its index, as in `[3]`."""
    return [
        f"[{i}]" if fonts.missing.intersection(text) else visible(text)
        for i, text in enumerate(texts)
    ]


def drawable(text: str, fonts: Fonts, *, limit: int = 120) -> str:
    """Running text with `?` for what cannot be drawn, cut after `limit`."""
    cut = text if len(text) <= limit else text[: _boundary(text, limit - 1)] + "…"
    return "".join("?" if c in fonts.missing else _spelled_out(c) for c in cut)


def _spelled_out(character: str) -> str:
    """What has no shape, and what turns the writing of others around, by its number."""
    if unicodedata.category(character) in SHAPELESS or character in TURNING:
        code = ord(character)
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    return character


def _needs_glyph(character: str) -> bool:
    return character not in VISIBLE and unicodedata.category(character)[0] not in "CZ"


@functools.lru_cache(maxsize=256)
def _choose(wanted: frozenset[str]) -> Fonts:
    from matplotlib import font_manager

    families, missing = [BASE], wanted
    for entry in font_manager.fontManager.ttflist:
        if entry.name == BASE:
            missing -= _glyphs(entry, missing)
    if missing:
        _greedy(families, missing, _entries(wanted))
        missing = _uncovered(wanted, families)
    if missing and _add_new_fonts():
        _greedy(families, missing, _entries(wanted))
        missing = _uncovered(wanted, families)
    return Fonts(families, missing)


def _greedy(families: list[str], missing: frozenset[str], entries: "list[FontEntry]") -> None:
    """Appends the family that draws most of what is missing, until none draws more."""
    while missing:
        best: tuple[frozenset[str], str] = (frozenset(), "")
        for entry in entries:
            found = _glyphs(entry, missing)
            if len(found) > len(best[0]):
                best = (found, entry.name)
            if found == missing:
                break
        if not best[0]:
            return
        families.append(best[1])
        missing -= best[0]


def _uncovered(wanted: frozenset[str], families: list[str]) -> frozenset[str]:
    from matplotlib import font_manager

    for entry in font_manager.fontManager.ttflist:
        if wanted and entry.name in families:
            wanted -= _glyphs(entry, wanted)
    return wanted


def _entries(wanted: frozenset[str]) -> "list[FontEntry]":
    """Installed upright regular faces, preferred ones first."""
    from matplotlib import font_manager

    kana = any(unicodedata.name(c, "").startswith(("HIRAGANA", "KATAKANA")) for c in wanted)
    order = PREFERRED_WITH_KANA + PREFERRED if kana else PREFERRED + PREFERRED_WITH_KANA
    rank = {name: place for place, name in enumerate(order)}
    upright = [
        entry
        for entry in font_manager.fontManager.ttflist
        if entry.style == "normal" and not entry.name.startswith(LAST_RESORT)
    ]
    return sorted(upright, key=lambda entry: (rank.get(entry.name, len(rank)), *_plainness(entry)))


def _plainness(entry: "FontEntry") -> tuple[bool, int, str]:
    fancy = any(word in entry.name for word in ("Serif", "Mono", "Song", "Ming", "Kai", "cm"))
    weight = entry.weight if isinstance(entry.weight, int) else 400
    return fancy, abs(weight - 400), entry.name


def _glyphs(entry: "FontEntry", characters: frozenset[str]) -> frozenset[str]:
    """Which of the characters this face draws; none for one that matplotlib cannot scale."""
    face = _face(entry.fname, getattr(entry, "index", 0))
    if face is None:
        return frozenset()
    return frozenset(c for c in characters if face.get_char_index(ord(c)))  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=64)
def _face(path: str, index: int) -> object | None:
    from matplotlib.ft2font import FT2Font

    try:
        # Before matplotlib 3.11 only the first face of a collection could be opened.
        face = FT2Font(path, face_index=index) if index else FT2Font(path)
        return face if face.scalable else None
    except (OSError, RuntimeError, TypeError):
        return None


def _add_new_fonts() -> bool:
    """Adds fonts installed after matplotlib wrote its font list; True if there were any."""
    from matplotlib import font_manager

    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    added = False
    for path in sorted(set(font_manager.findSystemFonts()) - known):
        try:
            font_manager.fontManager.addfont(path)
            added = True
        except (OSError, RuntimeError, ValueError):
            continue
    return added


def _first_script(missing: frozenset[str]) -> str:
    """The script that is missing, in Unicode's words: the first of a letter's name."""
    symbols = [c for c in missing if unicodedata.category(c) in ("So", "Sk")]
    letters = sorted(missing.difference(symbols))
    names = [unicodedata.name(c, "").split(" ")[0] for c in letters] + ["EMOJI"] * bool(symbols)
    return next((name for name in names if name in REMEDY), next(iter(names), ""))


@functools.lru_cache(maxsize=64)
def _warn_once(script: str) -> None:
    fonts = REMEDY.get(script, "fonts-noto-core")
    remedy = {"EMOJI": "Symbola"}.get(script, "Noto Sans CJK" if "cjk" in fonts else "Noto Sans")
    if sys.platform.startswith("linux"):
        remedy += f" (on Debian: apt-get install {fonts})"
    warnings.warn(
        f"No installed font has the glyphs of some labels ({script.title() or 'unnamed'} script); "
        f"they are shown as numbers. Install a font that has them, such as {remedy}, and draw "
        "again.",
        stacklevel=4,
    )
