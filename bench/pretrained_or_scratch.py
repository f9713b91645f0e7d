"""Published weights against none: test accuracy by the number of training questions.

    accuracy(MiniLM tuned on n TREC questions) beside accuracy(the same network from a random start)

One recipe (classify-questions) and one schedule for both, the same questions for both, every seed a
new head, order and dropout; the random start is the family's own, drawn by the seed. From scratch
nothing is frozen, the head learns at the rate of the rest, and that rate is higher (SCRATCH).

    python bench/pretrained_or_scratch.py --out scratch.json
    python bench/pretrained_or_scratch.py --sizes 50 500 --seeds 1 --set train.max_steps=100
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from everyhead.cli.train import tools
from everyhead.training.recipe import load_recipe
from everyhead.training.run import make_trainer, prepare

SIZES = (50, 150, 500, 1500, 5000)
SCRATCH = ("train.freeze_embeddings=false", "train.head_rate=1.0", "train.peak=5e-4")


def scratch(start: str, folder: Path, seed: int) -> str:
    """A folder with the same network and tokenizer, its weights drawn anew."""
    model, tokenizer = tools().open(start)
    torch.manual_seed(seed)
    tools().save(type(model)(model.config), tokenizer, folder)
    return str(folder)


def accuracy(start: str, n: int, seed: int, changes: list[str]) -> dict[str, Any]:
    """Of the best weights by validation, on the test questions."""
    own = [f"data.most={n}", f"train.seed={seed}", f"model.start={json.dumps(start)}"]
    recipe = load_recipe("classify-questions", [*own, *changes])
    prepared = prepare(recipe, None, tools())
    best: dict[str, Any] = {}

    def keep(model: torch.nn.Module) -> None:
        best.update({name: p.detach().clone() for name, p in model.state_dict().items()})

    with tempfile.TemporaryDirectory() as run:
        trainer = make_trainer(prepared, Path(run), save=keep)
        trainer.fit()
    trainer.model.load_state_dict(best)
    return prepared.evaluate(trainer.model.eval(), "test")


def row(n: int, seeds: list[int], start: str, changes: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"questions": n, "seeds": seeds}
    for name in ("pretrained", "scratch"):
        scores = []
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                place = scratch(start, Path(folder), seed) if name == "scratch" else start
                own = SCRATCH if name == "scratch" else ()
                scores.append(accuracy(place, n, seed, [*own, *changes]))
        found[name] = [score["accuracy"] for score in scores]
        found["majority"] = scores[0]["majority"]
    return found


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'questions':>9}  {'pretrained':>16}  {'from scratch':>16}  majority"]
    for each in rows:
        means = (
            f"{statistics.mean(each[k]):.1%} ± {statistics.pstdev(each[k]):.1%}"
            for k in ("pretrained", "scratch")
        )
        shown = "  ".join(f"{mean:>16}" for mean in means)
        lines.append(f"{each['questions']:>9,}  {shown}  {each['majority']:.1%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--start", default="minilm")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    rows = []
    for n in args.sizes:
        rows.append(row(n, args.seeds, args.start, args.set))
        print(table(rows[-1:]), flush=True)
        if args.out:  # after each size, so that a long run that is stopped leaves what it has
            text = json.dumps(rows, indent=2) + "\n"
            args.out.write_text(text, encoding="utf-8", newline="\n")
    print(table(rows))


if __name__ == "__main__":
    main()
