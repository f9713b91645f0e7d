"""A published body against the same body from nothing, by the number of examples (claim B736).

    python -m bench.pretrained [--sizes 50,150,500,1500,4267] [--seeds 1,2,3] [--steps 150]

TREC's questions in six classes, minilm, the recipe classify-questions with one number of steps for
all; accuracy on the 557 test questions, beside that of the commonest class.
"""

import argparse
import json
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from everyhead.cli.train import tools
from everyhead.training.recipe import load_recipe
from everyhead.training.run import make_trainer, prepare


def run(size: int, seed: int, steps: int, scratch: bool) -> dict[str, Any]:
    """One training; accuracy and macro F1 on the test questions."""
    changes = [f"data.most={size}", f"train.seed={seed}", f"train.max_steps={steps}"]
    changes += [f"train.evaluate_every={steps}", f"train.save_every={steps}"]
    if scratch:
        changes += ["model.scratch=true", "train.freeze_embeddings=false", "train.head_rate=1.0"]
    recipe = load_recipe("classify-questions", changes)
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare(recipe, None, tools())
        trainer = make_trainer(prepared, Path(folder))
        trainer.fit()
        trainer.model.eval()
        scores = prepared.evaluate(trainer.model, "test")
    kept = {name: scores[name] for name in ("accuracy", "macro_f1", "majority")}
    return kept | {
        "size": size,
        "seed": seed,
        "scratch": scratch,
        "cpu": time.process_time() - start,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pretrained", description=__doc__)
    parser.add_argument("--sizes", default="50,150,500,1500,4267")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "pretrained.json")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    rows: list[dict[str, Any]] = []
    for size in map(int, args.sizes.split(",")):
        for scratch in (False, True):
            some = [run(size, int(seed), args.steps, scratch) for seed in args.seeds.split(",")]
            rows += some
            found = [row["accuracy"] for row in some]
            spread = statistics.stdev(found) if len(found) > 1 else 0.0
            name = "from nothing" if scratch else "pretrained"
            print(
                f"{size:>6,} questions  {name:<12}  {statistics.mean(found):6.1%} ± {spread:.1%}  "
                f"(majority {some[0]['majority']:.1%})",
                flush=True,
            )
            text = json.dumps({"steps": args.steps, "runs": rows}, indent=1)
            args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
