"""What is wrong with a recipe, in words for people: which key, why, and the nearest right one."""

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

# What others call a thing, where the letters alone would lead astray.
ELSEWHERE = {
    "lr": "train.peak",
    "learning_rate": "train.peak",
    "batch_size": "train.batch_sentences",
    "epochs": "train.max_steps",
    "steps": "train.max_steps",
}


def sentence(error: ValidationError, known: Iterable[str], section: str = "") -> str:
    """Every complaint of pydantic's as one sentence; `known` are the right keys with sections."""
    known = list(known)
    return "; ".join(_complaint(item, known, section) for item in error.errors())


def nearest(wrong: str, right: Iterable[str]) -> str:
    """The right name that is most like the wrong one, or all of them, as half a sentence."""
    names = list(right)
    last = wrong.rpartition(".")[2]
    if ELSEWHERE.get(last) in names:
        return f"did you mean {ELSEWHERE[last]}?"
    ends = {name.rpartition(".")[2]: name for name in names}
    if last in ends:  # the right key in the wrong section
        return f"did you mean {ends[last]}?"
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=0.5)
    close = close or [ends[end] for end in difflib.get_close_matches(last, ends, n=1)]
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}."


def _complaint(item: Any, known: list[str], section: str) -> str:
    place = ".".join([*([section] if section else []), *map(str, item["loc"])])
    if item["type"] == "missing":
        return f"{place} is missing"
    if item["type"] == "value_error":
        return f"{place}: {item['ctx']['error']}"
    if item["type"] != "extra_forbidden":
        return f"{place}: {item['msg']} (got {item['input']!r})"
    if isinstance(item["input"], dict):  # a section; its first key says best what was meant
        if not item["input"]:
            return f"there is no section {place}; {nearest(place, _sections(known))}"
        place = f"{place}.{next(iter(item['input']))}"
    return f"there is no key {place}; {nearest(place, known)}"


def _sections(known: list[str]) -> list[str]:
    return list(dict.fromkeys(key.partition(".")[0] for key in known if "." in key))
