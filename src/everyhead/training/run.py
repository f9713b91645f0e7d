"""A run: its recipe, its trainer, and what lies in its folder.

recipe → Prepared (data, tokenizer, numbers) → Job (model, batches, loss) → Trainer
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from everyhead.errors import UserError
from everyhead.files import atomic_write_bytes, json_text
from everyhead.training import metrics
from everyhead.training.checkpoints import FOLDER, complete_checkpoints
from everyhead.training.job import DATA, NO_TOOLS, Prepared, Scores, Tools
from everyhead.training.jobs import job_kind
from everyhead.training.listener import Listener
from everyhead.training.loop import Trainer
from everyhead.training.recipe import load_recipe, recipe_text
from everyhead.training.sections import Recipe

RECIPE = "recipe.toml"


def prepare(recipe: Recipe, begun: Path | None = None, tools: Tools = NO_TOOLS) -> Prepared:
    """All that stands before the first step; `begun` is the run, where there is one to go on with.

    Raises:
        UserError: the files, the sizes or the numbers are wrong.
    """
    return job_kind(recipe.job).prepare(recipe, begun, tools)


def make_trainer(
    prepared: Prepared,
    run: Path,
    *,
    device: str = "cpu",
    save: Callable[[Any], None] | None = None,
    score: Callable[[Any], Scores] | None = None,
    listener: Listener | None = None,
) -> Trainer:
    """The trainer of a prepared run; `save` and `score` take the place of the job's own."""
    job = prepared.job(device)
    job.score = score or job.score
    return Trainer(
        job,
        recipe=prepared.recipe.train,
        run=run,
        save=save or (lambda model: prepared.save(model, run)),
        listener=listener,
    )


def beginnings(prepared: Prepared) -> dict[str, bytes]:
    """By name: data.json, the corpus' attribution where it asks for it, and last recipe.toml.

    Raises:
        UserError: a name in them is not UTF-8.
    """
    texts = {DATA: json_text(prepared.report)}
    origin = prepared.report.get("origin", {})
    if origin.get("attribution"):
        texts["DATA-LICENCE.txt"] = f"{origin['attribution']}\nLicence: {origin['licence']}\n"
    texts[RECIPE] = recipe_text(prepared.recipe)
    return {name: _encoded(name, text) for name, text in texts.items()}


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        line = text.split("\n")[text.count("\n", 0, error.start)].strip()
        raise UserError(
            f"{name} cannot be written as UTF-8, for in {line!a} the name of a file or folder "
            "is not UTF-8: rename it."
        ) from None


def write_beginnings(run: Path, prepared: Prepared, *, keep: bool = False) -> None:
    """Write them; `keep` leaves what a run says of its data, and writes its recipe.

    A folder with a recipe.toml is a run that has begun, so whatever else it needs comes before.
    """
    files = beginnings(prepared)
    run.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if name == RECIPE or not (keep and (run / DATA).is_file()):
            atomic_write_bytes(run / name, content)


def is_run(run: Path) -> bool:
    """Has training begun in this folder?"""
    return (run / RECIPE).is_file() or bool(complete_checkpoints(run))


def run_recipe(run: Path) -> Recipe:
    """The recipe that lies in the run.

    Raises:
        UserError: the folder is no run.
    """
    if not (run / RECIPE).is_file():
        raise UserError(f"{run} is no run of everyhead's: it has no {RECIPE}.")
    return load_recipe(str(run / RECIPE))


def clear(run: Path) -> None:
    """Remove the checkpoints and rows of an earlier training in this folder."""
    import shutil

    shutil.rmtree(run / FOLDER, ignore_errors=True)
    (run / metrics.FILE).unlink(missing_ok=True)
