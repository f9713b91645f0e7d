"""A Vision Transformer beside a convolution with as many parameters, by number of pictures.

    python -m bench.vit_against_convolution [--corpora digits,shapes] [--sizes 100,300,1000,all]
                                            [--seeds 3] [--steps 600] [--out FILE.json]

Both are trained by the product's own loop: the same pictures, batches, steps, rate and smoothing,
no moved pictures; measured is the accuracy of the last weights on the test pictures. Claims 29 and
34: little is built into a Transformer, so it needs more data (B671, B713).
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch

from everyhead.training.allocation import keep_large_blocks
from everyhead.training.recipe import parse_recipe
from everyhead.training.run import make_trainer, prepare

FAMILIES = {"ViT": "vision-transformer", "convolution": "picture-convolution"}
CORPORA = {
    "digits": {"corpus": "digits", "preset": "tiny", "batch": 64, "peak": 2e-3},
    "shapes": {"corpus": "easy-vqa-shapes", "preset": "small", "batch": 32, "peak": 1e-3},
}


class Trained(NamedTuple):
    accuracy: float
    parameters: int
    pictures: int
    cpu_seconds: float


def trained(corpus: str, family: str, most: int | None, *, seed: int, steps: int) -> Trained:
    """One model, trained from its start and tested."""
    about = CORPORA[corpus]
    data = {"corpus": about["corpus"]} | ({} if most is None else {"most": most})
    train = {
        "max_steps": steps,
        "batch_sentences": about["batch"],
        "optimizer": "adamw",
        "weight_decay": 0.05,
        "betas": (0.9, 0.99),
        "peak": about["peak"],
        "warmup": steps // 10,
        "label_smoothing": 0.05,
        "evaluate_every": steps,
        "save_every": steps,
        "seed": seed,
    }
    model = {"family": family, "preset": about["preset"]}
    values = {"name": "bench", "job": "image", "data": data, "model": model, "train": train}
    prepared = prepare(parse_recipe(values, "bench"))
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(prepared, Path(folder), save=lambda model: None)
        trainer.fit()
    net = trainer.model.eval()
    accuracy = prepared.evaluate(net, "test")["accuracy"]
    n = sum(p.numel() for p in net.parameters())
    return Trained(accuracy, n, prepared.report["splits"]["train"], time.process_time() - started)


def row(corpus: str, size: str, args: argparse.Namespace) -> dict[str, object]:
    """Both families on so many pictures, every seed."""
    most = None if size == "all" else int(size)
    found = {
        name: [
            trained(corpus, family, most, seed=1 + seed, steps=args.steps)
            for seed in range(args.seeds)
        ]
        for name, family in FAMILIES.items()
    }
    first = found["ViT"][0]
    return {
        "corpus": corpus,
        "pictures": first.pictures,
        "steps": args.steps,
        "cpu_seconds": round(sum(each.cpu_seconds for many in found.values() for each in many)),
        **{f"{name}_parameters": many[0].parameters for name, many in found.items()},
        **{name: [round(each.accuracy, 4) for each in many] for name, many in found.items()},
    }


def line(values: dict[str, object]) -> str:
    """corpus, pictures, and for each family mean and spread (largest − smallest)."""
    cells = [f"{values['corpus']:<8}{values['pictures']:>8,}"]
    for name in FAMILIES:
        many = values[name]
        assert isinstance(many, list)
        spread = max(many) - min(many)
        cells.append(f"{statistics.mean(many):>14.1%} ±{spread / 2:5.1%}")
    return "".join(cells) + f"{values['cpu_seconds']:>10} s"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.vit_against_convolution")
    parser.add_argument("--corpora", default="digits,shapes")
    parser.add_argument("--sizes", default="100,300,1000,all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    keep_large_blocks()
    print(f"{'corpus':<8}{'pictures':>8}" + "".join(f"{name:>21}" for name in FAMILIES))
    rows = []
    for corpus in args.corpora.split(","):
        for size in args.sizes.split(","):
            rows.append(row(corpus, size, args))
            print(line(rows[-1]), flush=True)
    print(
        f"± half of largest − smallest over {args.seeds} seeds; {torch.get_num_threads()} threads"
    )
    if args.out is not None:
        text = json.dumps(rows, indent=1) + "\n"
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
