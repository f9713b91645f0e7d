"""make bench: one table, and bench/results.json.

    python -m bench [--corpora DIR] [--run RUN] [--rounds N] [--jobs training,generation,…]

Pairs come from the built-in corpus, or from DIR/en-de.libreoffice-help.tsv.xz when given. The
translation job takes a trained run (--run); without one it trains a short one first.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

from bench.generation import generation_rows
from bench.timing import Row
from bench.training import training_rows
from bench.translation import translation_rows
from everyhead.data.batching import encode_pairs
from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.training.allocation import keep_large_blocks
from everyhead.training.jobs.translate import read_splits
from everyhead.training.recipe import parse_recipe
from everyhead.training.sections import Recipe

HERE = Path(__file__).parent
PAIRS = "en-de.libreoffice-help.tsv.xz"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--corpora", type=Path, help="folder of larger corpora")
    parser.add_argument("--run", type=Path, help="a trained run for the translation job")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", default="training,translation,generation")
    parser.add_argument("--sizes", default="small,base")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    args = parser.parse_args()
    keep_large_blocks()
    rows: list[Row] = []
    if "training" in args.jobs:
        rows += bench_training(args)
    if "translation" in args.jobs:
        rows += bench_translation(args)
    if "generation" in args.jobs:
        rows += generation_rows(n_rounds=max(3, args.rounds // 2))
    show(rows)
    args.out.write_text(
        json.dumps([row._asdict() for row in rows], indent=1, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )
    print(f"{torch.get_num_threads()} threads; written to {args.out.name}")


def recipe(args: argparse.Namespace) -> Recipe:
    """Where pairs come from."""
    data = {"corpus": "hsk-en-zh"} if args.corpora is None else {"pairs": str(args.corpora / PAIRS)}
    return parse_recipe({"name": "bench", "data": data}, "the bench's recipe")


def bench_training(args: argparse.Namespace) -> list[Row]:
    splits, _ = read_splits(recipe(args).data)
    tokenizer = PairTokenizer.train(splits.train.source, splits.train.target, vocab_size=8000)
    ids, _ = encode_pairs(splits.train, tokenizer).within(512)
    rows: list[Row] = []
    for size in args.sizes.split(","):
        n_rounds = args.rounds if size == "small" else max(3, args.rounds // 2)
        rows += training_rows(
            ids,
            tokenizer.target.vocab_size,
            size,
            batch_tokens=args.batch_tokens,
            n_rounds=n_rounds,
        )
    return rows


def bench_translation(args: argparse.Namespace) -> list[Row]:
    run = args.run
    if run is None:
        run = Path("runs/bench")
        command = ["train", "translate-en-zh", "--run", str(run), "--overwrite"]
        command += ["--set", "train.max_steps=600", "--set", "train.evaluate_every=600"]
        subprocess.run([sys.executable, "-m", "everyhead", *command], check=True)
    from everyhead.training.run import run_recipe

    splits, _ = read_splits(run_recipe(run).data)
    return translation_rows(run, splits.test.source, n_rounds=args.rounds)


def show(rows: list[Row]) -> None:
    """The table."""
    for row in rows:
        over = (
            ""
            if row.speed_over_best_peer is None
            else f"  {row.speed_over_best_peer:.2f}× best peer"
        )
        print(
            f"{row.job:<12} {row.setting:<34} {row.system:<28} {row.value:>10,.1f} {row.unit}{over}"
        )


if __name__ == "__main__":
    main()
