"""everyhead demo: train on the built-in sentences, score, translate, look, and write one page."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

RECIPE = "translate-en-zh"
N_EXAMPLES, N_PICTURES = 8, 3


def demo(
    run: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/demo"),
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change the recipe: section.key=value.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Processor threads.")] = None,
) -> int:
    """The whole tour in minutes: a page with scores, translations and attention."""
    from everyhead.cli.opened import open_run
    from everyhead.cli.train import train_run
    from everyhead.training.recipe import load_recipe
    from everyhead.training.run import is_run, run_recipe

    if is_run(run):
        recipe = run_recipe(run)
        code = (
            0
            if _complete(run, recipe)
            else train_run(recipe, run, resume=_resumable(run), overwrite=True, threads=threads)
        )
    else:
        recipe = load_recipe(RECIPE, set_ or [])
        code = train_run(recipe, run, threads=threads)
    if code:
        return code
    print("Scoring and drawing …", file=sys.stderr)
    print(write_page(open_run(run, threads=threads), run).resolve())
    return 0


def write_page(opened: Any, run: Path) -> Path:
    """Score the test set, translate the examples, draw, and write index.html."""
    from everyhead.cli.evaluate import held_out, scored
    from everyhead.cli.report import write_report
    from everyhead.files import atomic_write_json

    source, references = held_out(opened, "test")
    scores, found = scored(opened, source, references)
    atomic_write_json(run / "scores.json", scores)
    chosen = by_hash(source)[:N_EXAMPLES]
    examples = [(source[i], references[i], found[i]) for i in chosen]
    recipe = opened.recipe
    data = json.loads((run / "data.json").read_text(encoding="utf-8"))
    return write_report(
        run / "index.html",
        title=f"A Transformer trained here: {recipe.name}",
        facts=_facts(opened, data),
        scores={**scores, "signature": scores["bleu_signature"]},
        examples=examples,
        pictures=_pictures(opened, run, examples),
        curve=run / "learning-curve.png",
        attribution=data["origin"].get("attribution", ""),
        commands=[
            f'everyhead translate {run} "{source[chosen[0]]}"',
            f'everyhead look {run} "{source[chosen[0]]}" --png look.png',
            f"everyhead evaluate {run} --split test --json",
            "everyhead train --pairs my.tsv --run runs/mine",
        ],
        languages=(recipe.source_language or "", recipe.target_language or ""),
    )


def by_hash(lines: list[str]) -> list[int]:
    """Indices in the order of their texts' SHA-256: a choice that nobody made."""
    return sorted(
        range(len(lines)), key=lambda i: hashlib.sha256(lines[i].encode("utf-8")).digest()
    )


def _pictures(
    opened: Any, run: Path, examples: list[tuple[str, str, str]]
) -> list[tuple[str, Path]]:
    from everyhead.cli.look import cross_attention_figure
    from everyhead.inspection.figures import save_figure

    pictures = []
    for i, (sentence, _, translation) in enumerate(examples[:N_PICTURES]):
        figure = cross_attention_figure(opened, sentence, translation)
        path = save_figure(figure, run / "pictures" / f"cross-attention-{i}.png")
        pictures.append((f"{sentence} → {translation}", path))
    return pictures


def _facts(opened: Any, data: dict[str, Any]) -> dict[str, Any]:
    from everyhead.training.metrics import read_rows

    config, recipe = opened.model.config, opened.recipe
    rows = [row for row in read_rows(opened.folder) if row["kind"] == "train"]
    return {
        "model": f"{config.n_encoder_layers}+{config.n_decoder_layers} layers, d_model "
        f"{config.d_model}, {config.n_heads} heads",
        "parameters": sum(p.numel() for p in opened.model.parameters()),
        "pieces": config.vocab_size,
        "training pairs": data["splits"]["train"],
        "test pairs": data["splits"]["test"],
        "steps": recipe.train.max_steps,
        "target tokens seen": rows[-1]["tokens"] if rows else None,
    }


def _complete(run: Path, recipe: Any) -> bool:
    from everyhead.training.metrics import read_rows

    steps = [row["step"] for row in read_rows(run) if row["kind"] == "validation"]
    return bool(steps) and max(steps) >= recipe.train.max_steps


def _resumable(run: Path) -> bool:
    from everyhead.training.checkpoints import complete_checkpoints

    return bool(complete_checkpoints(run))
