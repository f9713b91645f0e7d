"""Which pairs a run is scored on, and whether they are still those it did not train on."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everyhead.cli.opened import Opened
from everyhead.data.splits import fingerprint
from everyhead.errors import UserError
from everyhead.files import read_json
from everyhead.training.jobs.translate_recipe import FINGERPRINT, TranslateRecipe

SPLITS = ("test", "validation", "train")


def held_out(opened: Opened, split: str, pairs: Path | None = None) -> tuple[list[str], list[str]]:
    """The run's pairs of that split, or those of the file.

    Raises:
        UserError: no such split, or the folder has no recipe to cut pairs by.
    """
    if split not in SPLITS:
        raise UserError(f"There is no split {split!r}; there are {', '.join(SPLITS)}.")
    if pairs is not None:
        from everyhead.data.pairs import filter_pairs, read_tsv
        from everyhead.data.translation import GIVEN

        given, counts = filter_pairs(read_tsv(pairs), GIVEN)
        if not given.size:
            raise UserError(f"{pairs} holds no pair to score.")
        if given.size < counts.read:
            print(
                f"everyhead: {counts.read - given.size} of {counts.read} pairs of {pairs} lack a "
                "side and are left out.",
                file=sys.stderr,
            )
        return given.source, given.target
    if not isinstance(opened.recipe, TranslateRecipe):
        raise UserError(
            f"{opened.folder} is a model without a recipe, so it has no held-out pairs: "
            "give some with --pairs."
        )
    from everyhead.training.jobs.translate import read_splits

    splits = read_splits(opened.recipe.data)[0]
    _warn_if_changed(opened.folder, fingerprint(splits))
    chosen = getattr(splits, split)
    return chosen.source, chosen.target


def warn_if_others(run: Path, report: Mapping[str, Any]) -> None:
    """Say where a run's data fall into other sets now than when it began, whatever its job."""
    from everyhead.training.job import DATA

    began = read_json(run / DATA).get("splits") if (run / DATA).is_file() else None
    now = report.get("splits")
    if began and now and began != json.loads(json.dumps(now)):
        print(
            f"everyhead: the data have changed since {run} began ({_sizes(began)} then, "
            f"{_sizes(now)} now): what is called held-out now may have been trained on.",
            file=sys.stderr,
        )
        return
    _warn_if_changed(run, report.get(FINGERPRINT))


def _sizes(splits: Mapping[str, Any]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in splits.items() if isinstance(n, int))


def _warn_if_changed(run: Path, now: str | None) -> None:
    from everyhead.training.job import DATA

    trained_on = read_json(run / DATA).get(FINGERPRINT) if (run / DATA).is_file() else None
    if None not in (trained_on, now) and trained_on != now:
        print(
            f"everyhead: the pairs have changed since {run} began: what is called held-out now may "
            "have been trained on.",
            file=sys.stderr,
        )
