"""everyhead demo: train on the built-in sentences, score, translate, look, and write one page."""

import hashlib
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everyhead.cli.options import Changes, Threads
from everyhead.errors import UserError

if TYPE_CHECKING:
    from everyhead.cli.opened import Opened
    from everyhead.training.sections import Recipe

DEMO, PAGE = "translate-en-zh", "index.html"
N_EXAMPLES, N_PICTURES = 8, 3


def demo(
    run: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the run lies.")] = Path(
        "runs/demo"
    ),
    changes: Changes = None,
    threads: Threads = None,
) -> int:
    """Look into a published model, then train one on 4,352 everyday English-Chinese sentences.

    The first page is there within a minute; one page then holds it, scores, translations and
    attention. It takes minutes; stopped, it goes on when called again; done, it only prints the
    page's path.
    """
    from everyhead.cli.first_look import first_look
    from everyhead.cli.opened import open_run
    from everyhead.cli.train import train_run
    from everyhead.training.recipe import load_recipe
    from everyhead.training.run import is_run, run_recipe

    begun = is_run(run)
    if begun and changes:
        raise UserError(
            f"{run} has begun with a recipe of its own, which --set cannot change: give another "
            "--run."
        )
    _check_tools()
    recipe = run_recipe(run) if begun else load_recipe(DEMO, changes or [])
    if not _page_is_current(run):
        first_look(run)
    if not (begun and _complete(run, recipe)):
        code = train_run(recipe, run, resume=begun, threads=threads)
        if code:
            return code
    if not _page_is_current(run):
        print("Scoring and drawing …", file=sys.stderr)
        write_page(open_run(run, threads=threads), run, recipe)
    print((run / PAGE).resolve())
    return 0


def write_page(opened: "Opened", run: Path, recipe: "Recipe") -> Path:
    """Score the test set, translate the examples, draw, and write index.html."""
    from everyhead.cli.evaluate import scored
    from everyhead.cli.first_look import CAPTION, first_look, translations_page
    from everyhead.cli.framed import Frame
    from everyhead.cli.held_out import held_out
    from everyhead.cli.report import write_report
    from everyhead.cli.train import draw_curve
    from everyhead.files import atomic_write_json, read_json

    source, references = held_out(opened, "test")
    scores, found = scored(opened, source, references)
    atomic_write_json(run / "scores.json", scores)
    chosen = by_hash(source)[:N_EXAMPLES]
    shown = [source[i] for i in chosen[:N_PICTURES]]
    first, caption = first_look(run), "The model trained here, while it translates: hover, compare."
    frames = [Frame("Look inside a published model", CAPTION, first)] if first else []
    frames.append(Frame("Look inside this model", caption, translations_page(run, shown)))
    draw_curve(run, recipe.train.best)  # training that was stopped at its end has drawn none
    data = read_json(run / "data.json")
    origin = data["origin"]
    return write_report(
        run / PAGE,
        title=f"A Transformer trained here: {recipe.name}",
        facts=_facts(opened, recipe, data),
        scores={**scores, "signature": scores["bleu_signature"]},
        examples=[(source[i], references[i], found[i]) for i in chosen],
        pictures=_pictures(opened, run, shown),
        frames=frames,
        curve=run / "learning-curve.png",
        attribution=origin.get("attribution", ""),
        commands=_commands(run, source[chosen[0]]),
        languages=(origin.get("source_language", ""), origin.get("target_language", "")),
    )


def by_hash(lines: list[str]) -> list[int]:
    """Indices in the order of their texts' SHA-256: a choice that nobody made."""
    digests = [hashlib.sha256(line.encode("utf-8")).digest() for line in lines]
    return sorted(range(len(lines)), key=digests.__getitem__)


def _pictures(opened: "Opened", run: Path, sentences: list[str]) -> list[tuple[str, Path]]:
    from everyhead.cli.look import cross_attention_figure, cross_attention_of, translated
    from everyhead.inspection.figures import save_figure

    pictures = []
    for i, sentence in enumerate(sentences):
        found = translated(opened, sentence)
        figure = cross_attention_figure(cross_attention_of(opened, sentence, found))
        path = save_figure(figure, run / "pictures" / f"cross-attention-{i}.png")
        pictures.append((f"{sentence} → {found.text}", path))
    return pictures


def _facts(opened: "Opened", recipe: "Recipe", data: dict[str, Any]) -> dict[str, Any]:
    from everyhead.training.metrics import read_rows

    config = opened.model.config
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


def _commands(run: Path, sentence: str) -> list[str]:
    folder = shlex.quote(str(run))
    # Double quotes serve every shell, as long as nothing in them means something to one.
    quoted = shlex.quote(sentence) if set('"$`\\!%') & set(sentence) else f'"{sentence}"'
    return [
        f"everyhead translate {folder} {quoted}",
        f"everyhead look {folder} {quoted} --png look.png",
        f"everyhead evaluate {folder} --split test --json",
        "everyhead train --pairs my.tsv --run runs/mine",
    ]


def _check_tools() -> None:
    """Better now than after minutes of training."""
    missing = [name for name in ("sacrebleu", "matplotlib") if find_spec(name) is None]
    if missing:
        raise UserError(
            f'The demo needs {" and ".join(missing)}: pip install "everyhead[demo,train]"'
        )


def _complete(run: Path, recipe: "Recipe") -> bool:
    from everyhead.training.metrics import read_rows

    steps = [row["step"] for row in read_rows(run) if row["kind"] == "validation"]
    return bool(steps) and max(steps) >= recipe.train.max_steps


def _page_is_current(run: Path) -> bool:
    page, weights = run / PAGE, run / "model.safetensors"
    return page.is_file() and weights.is_file() and page.stat().st_mtime >= weights.stat().st_mtime
