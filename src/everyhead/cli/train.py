"""everyhead train: from a recipe or files of one's own to a run folder."""

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everyhead.cli.chosen import Wish, refuse
from everyhead.cli.options import Changes, Device, Files, Threads

if TYPE_CHECKING:
    from everyhead.cli.progress import TrainingDisplay
    from everyhead.training.job import Prepared, Tools
    from everyhead.training.loop import Trainer
    from everyhead.training.sections import Recipe

WEIGHTS = "model.safetensors"
# Made from an older run's weights, which the new tokenizer does not fit.
LEFTOVERS = (
    "config.json",
    "generation_config.json",
    WEIGHTS,
    "tokenizer.json",
    "tokenizer_config.json",
    "learning-curve.png",
    "scores.json",
    "index.html",
    "DATA-LICENCE.txt",
)


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="A built-in recipe, or the path of a recipe.toml."),
    ] = None,
    files: Files = None,
    pairs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your own pairs: source TAB target, one pair a line."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Or your own sentences, one a line …")
    ] = None,
    target: Annotated[
        Path | None, typer.Option(metavar="FILE", help="… and in another file their translations.")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the run lies; by default runs/RECIPE."),
    ] = None,
    changes: Changes = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on exactly where the run stopped.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew where a run lies already.")
    ] = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> int:
    """Train a model, from a recipe, on its data or on yours; or from sentence pairs of your own.

    The recipe in use is written into the run, to be read and changed. Ctrl-C saves, and --resume
    goes on exactly there.
    """
    wish = Wish(
        recipe=recipe,
        files=tuple(files or ()),
        pairs=pairs,
        source=source,
        target=target,
        run=run,
        resume=resume,
        overwrite=overwrite,
    )
    wish.check()
    refuse(wish.folder, resume=resume, overwrite=overwrite)
    return train_run(
        wish.read(changes or []),
        wish.folder,
        resume=resume,
        overwrite=overwrite,
        device=device,
        threads=threads,
    )


def train_run(
    recipe: "Recipe",
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    threads: int | None = None,
) -> int:
    """Train the recipe into the folder; returns the exit code.

    Raises:
        UserError: the folder holds a run and neither resume nor overwrite is asked for, or the
            data or the recipe are wrong. Then nothing on disk has changed.
    """
    from everyhead.cli.held_out import warn_if_others
    from everyhead.cli.opened import choose_device, choose_threads
    from everyhead.cli.progress import TrainingDisplay
    from everyhead.training import run as runs
    from everyhead.training.allocation import keep_large_blocks
    from everyhead.training.alone import alone
    from everyhead.training.jobs import job_kind

    choose_threads(threads)
    place = choose_device(device)
    refuse(folder, resume=resume, overwrite=overwrite)
    keep_large_blocks()
    display = TrainingDisplay(recipe.train.max_steps, unit=job_kind(recipe.job).unit)
    prepared = runs.prepare(recipe, folder if resume else None, tools())
    _introduce(display, prepared, folder, place)
    score = _bleu(prepared, display) if recipe.job == "translate" else None
    trainer = runs.make_trainer(prepared, folder, device=place, score=score, listener=display)
    if not resume:
        runs.beginnings(prepared)  # what cannot be written is told before there is a folder
        folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        refuse(folder, resume=resume, overwrite=overwrite)  # it may have begun while we read
        if resume:
            trainer.resume()
            _expect_weights(trainer, display, folder)
            warn_if_others(folder, prepared.report)
        if not resume or recipe != runs.run_recipe(folder):
            _begin(folder, prepared, keep=resume)
        return _fit(trainer, display, folder, recipe)


def tools() -> "Tools":
    """What training needs of the floor beside it."""
    from everyhead.training.job import Tools
    from everyhead.weights.as_task import load_as
    from everyhead.weights.folder import load, save

    return Tools(load, save, load_as)


def _fit(trainer: "Trainer", display: "TrainingDisplay", folder: Path, recipe: "Recipe") -> int:
    from everyhead.cli.opened import resume_command
    from everyhead.training.jobs import job_kind
    from everyhead.training.signals import Interrupted

    if trainer.state.step >= trainer.recipe.max_steps:
        display.say("All steps are trained already; --set train.max_steps=N goes on to step N.")
    try:
        state = trainer.fit()
    except Interrupted as stop:
        display.close()
        display.say(
            f"Stopped at step {stop.step:,}; everything is saved. "
            f"Go on with: {resume_command(folder)}"
        )
        return 128 + stop.signal_number
    finally:
        display.close()
    draw_curve(folder, recipe.train.best)
    kind = job_kind(recipe.job)
    command = shlex.join(["everyhead", kind.verb, str(folder)])
    display.say(
        f"Trained {state.step:,} steps on {state.n_tokens:,} {kind.unit}; the weights of step "
        f"{state.best_step:,}, the best, lie in {folder}. Use them with: {command}"
    )
    return 0


def _begin(folder: Path, prepared: "Prepared", *, keep: bool) -> None:
    """Write what a run begins with, recipe.toml last; `keep` leaves what lies there."""
    from everyhead.training import run as runs

    runs.beginnings(prepared)  # what cannot be written is told before anything is removed
    if not keep:
        for name in (runs.RECIPE, *LEFTOVERS):
            (folder / name).unlink(missing_ok=True)
        runs.clear(folder)
        prepared.write(folder)
    runs.write_beginnings(folder, prepared, keep=keep)


def _expect_weights(trainer: "Trainer", display: "TrainingDisplay", folder: Path) -> None:
    """Where the best weights are gone, the next that are measured are the best again."""
    state = trainer.state
    if state.best_step is None or (folder / WEIGHTS).is_file():
        return
    display.say(
        f"The weights of step {state.best_step:,}, the best so far, lie in {folder} no more: "
        "the next that are measured are kept."
    )
    state.best = state.best_step = None


def _introduce(display: "TrainingDisplay", prepared: "Prepared", folder: Path, place: str) -> None:
    import torch

    from everyhead.training.precision import resolve_precision

    precision = resolve_precision(prepared.recipe.train.precision, torch.device(place))
    *lines, last = prepared.introduction()
    for line in (*lines, f"{last}, {precision} on {place}; run folder {folder}"):
        display.say(line)


def _bleu(prepared: Any, display: "TrainingDisplay") -> Any:
    """BLEU and chrF of the validation set while training, if sacreBLEU is there."""
    if find_spec("sacrebleu") is None:
        display.say("sacreBLEU is not installed: the loss alone chooses the best weights.")
        return None
    from everyhead.generation.translate import translate as translate_lines
    from everyhead.training.scoring import score_translations

    recipe = prepared.recipe.evaluate
    held_out = prepared.splits.validation
    lines = held_out.source[: recipe.max_sentences]
    references = held_out.target[: recipe.max_sentences]
    score_translations(references[:1], references[:1], tokenize=recipe.tokenize)  # fails early

    def score(model: Any) -> dict[str, Any]:
        found = translate_lines(model, prepared.tokenizer, lines)
        scores = score_translations(found, references, tokenize=recipe.tokenize)
        return {key: scores[key] for key in ("bleu", "chrf")}

    return score


def draw_curve(folder: Path, metric: str) -> None:
    """Draw the run's learning-curve.png, where matplotlib is there."""
    from everyhead.training.metrics import read_rows

    if find_spec("matplotlib") is None:
        return
    from everyhead.training.curves import learning_curve

    learning_curve(read_rows(folder), folder / "learning-curve.png", metric=metric)
