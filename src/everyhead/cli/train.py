"""everyhead train: from a recipe or a file of pairs to a run folder."""

from pathlib import Path
from typing import Annotated, Any

import typer

from everyhead.errors import UserError


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A built-in recipe, or the path of a recipe.toml.")
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="Your own pairs: source TAB target, one pair a line.")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="Your own sentences, one a line …")] = None,
    target: Annotated[Path | None, typer.Option(help="… and their translations.")] = None,
    run: Annotated[
        Path | None, typer.Option(help="The run's folder; by default runs/RECIPE.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the recipe: section.key=value; may be repeated."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin anew.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Processor threads.")] = None,
) -> int:
    """Train a translation model; Ctrl-C saves, and --resume goes on exactly there."""
    own = [f for f in (pairs, source, target) if f is not None]
    if (recipe is None) == (not own):
        raise UserError(
            "Give either a recipe (like translate-en-zh) or your own --pairs (or --source and "
            "--target)."
        )
    if own and run is None:
        raise UserError("Say where the run shall lie, for example --run runs/mine.")
    if resume and overwrite:
        raise UserError("--resume goes on and --overwrite begins anew: give one of them.")
    folder = run or Path("runs") / Path(str(recipe)).stem
    files = {"pairs": pairs, "source": source, "target": target}
    chosen = _recipe(recipe, files, folder, set_ or [], resume)
    return train_run(
        chosen, folder, resume=resume, overwrite=overwrite, device=device, threads=threads
    )


def train_run(
    recipe: Any,
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
            data or the recipe are wrong.
    """
    from everyhead.cli.opened import choose_device, choose_threads
    from everyhead.cli.progress import TrainingDisplay
    from everyhead.training import run as runs
    from everyhead.training.allocation import keep_large_blocks
    from everyhead.training.signals import Interrupted

    choose_threads(threads)
    _refuse(folder, resume, overwrite)
    keep_large_blocks()
    display = TrainingDisplay(recipe.train.max_steps)
    tokenizer = _run_tokenizer(folder) if resume else None
    prepared = runs.prepare(recipe, tokenizer)
    _introduce(display, prepared, folder)
    if not resume:
        runs.clear(folder)
        runs.write_beginnings(folder, prepared)
        prepared.tokenizer.save(folder, model_max_length=prepared.config.max_len)
    trainer = runs.make_trainer(
        prepared,
        folder,
        device=choose_device(device),
        save=lambda model: _save(model, folder, prepared),
        score=_scorer(prepared, display),
        listener=display,
    )
    if resume:
        trainer.resume()
    try:
        state = trainer.fit()
    except Interrupted as stop:
        display.close()
        again = f"everyhead train {folder / runs.RECIPE} --run {folder} --resume"
        display.say(f"Stopped at step {stop.step:,}; everything is saved. Go on with: {again}")
        return 128 + stop.signal_number
    finally:
        display.close()
    _draw_curve(folder)
    display.say(
        f"Trained {state.step:,} steps on {state.n_tokens:,} target tokens; best at step "
        f"{state.best_step:,}. The model lies in {folder}"
    )
    return 0


def _recipe(
    name: str | None, files: dict[str, Path | None], folder: Path, changes: list[str], resume: bool
) -> Any:
    """The recipe named; on resume the run's own, so that what was overridden stays so."""
    from everyhead.training.choice import choose_recipe
    from everyhead.training.recipe import load_recipe, parse_recipe, recipe_text
    from everyhead.training.run import RECIPE

    if resume and (folder / RECIPE).is_file():
        return load_recipe(str(folder / RECIPE), changes)
    if name is not None:
        return load_recipe(name, changes)
    from everyhead.data.translation import PairSource

    pairs, _ = PairSource(
        pairs=files["pairs"], source=files["source"], target=files["target"]
    ).read()
    data = {key: str(path.resolve()) for key, path in files.items() if path is not None}
    chosen = choose_recipe(folder.name, pairs, data)
    if not changes:
        return chosen
    import tomllib

    from everyhead.training.recipe import override

    values = tomllib.loads(recipe_text(chosen))
    for change in changes:
        override(values, change)
    return parse_recipe(values, "the chosen recipe")


def _refuse(folder: Path, resume: bool, overwrite: bool) -> None:
    from everyhead.training.run import is_run

    if resume and not is_run(folder):
        raise UserError(f"There is no run in {folder} to resume; leave --resume out to begin one.")
    if not resume and not overwrite and is_run(folder):
        raise UserError(
            f"{folder} holds a run already: --resume goes on with it, --overwrite begins anew, "
            "or give another --run."
        )


def _run_tokenizer(folder: Path) -> Any:
    from everyhead.data.pair_tokenizer import PairTokenizer

    return PairTokenizer.load(folder)


def _introduce(display: Any, prepared: Any, folder: Path) -> None:
    from everyhead.training.precision import resolve_precision

    report, config = prepared.report, prepared.config
    origin = report["origin"]
    if origin.get("attribution"):
        display.say(f"Data: {origin['attribution']}")
    counts = ", ".join(
        f"{n:,} {name.replace('_', ' ')}" for name, n in report["filters"].items() if n
    )
    display.say(f"Pairs: {counts}")
    sizes = report["splits"]
    display.say("Split: " + ", ".join(f"{sizes[k]:,} {k}" for k in ("train", "validation", "test")))
    import torch

    precision = resolve_precision(prepared.recipe.train.precision, torch.device("cpu"))
    display.say(
        f"Model: {config.n_encoder_layers}+{config.n_decoder_layers} layers, d_model "
        f"{config.d_model}, {config.n_heads} heads, {config.vocab_size:,} pieces, {precision}; "
        f"run folder {folder}"
    )


def _save(model: Any, folder: Path, prepared: Any) -> None:
    from everyhead.weights.folder import save_model

    save_model(model, folder, tokenizer=prepared.tokenizer)


def _scorer(prepared: Any, display: Any) -> Any:
    """BLEU and chrF of the validation set while training, if sacreBLEU is there."""
    import importlib.util

    if importlib.util.find_spec("sacrebleu") is None:
        display.say("sacreBLEU is not installed: the loss alone chooses the best weights.")
        return None
    from everyhead.generation.translate import translate as translate_lines
    from everyhead.training.scoring import score_translations

    recipe = prepared.recipe.evaluate
    held_out = prepared.splits.validation
    lines = held_out.source[: recipe.max_sentences]
    references = held_out.target[: recipe.max_sentences]

    def score(model: Any) -> dict[str, Any]:
        found = translate_lines(model, prepared.tokenizer, lines)
        scores = score_translations(found, references, tokenize=recipe.tokenize)
        return {key: scores[key] for key in ("bleu", "chrf")}

    return score


def _draw_curve(folder: Path) -> None:
    import importlib.util

    from everyhead.training.metrics import read_rows

    if importlib.util.find_spec("matplotlib") is None:
        return
    from everyhead.training.curves import learning_curve

    learning_curve(read_rows(folder), folder / "learning-curve.png")
