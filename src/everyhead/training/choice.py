"""The recipe for a file of one's own, chosen from how many pairs there are and what they look like.

The numbers grow with the data: more pairs carry more pieces, more layers and more steps. What was
chosen is written into the run, where it can be read and changed.
"""

from collections.abc import Sequence
from typing import Any

from everyhead.data.pairs import Pairs
from everyhead.training.recipe import Recipe, parse_recipe

# fmt: off
SIZES: list[tuple[int, dict[str, dict[str, Any]]]] = [
    (1_000, {"tokenizer": {"vocab_size": 1000},  "model": {"preset": "tiny",  "n_layers": 2, "dropout": 0.2},
             "train": {"batch_sentences": 32, "max_steps": 1500, "warmup": 100, "evaluate_every": 300}}),
    (8_000, {"tokenizer": {"vocab_size": 3000},  "model": {"preset": "small", "n_layers": 2, "dropout": 0.2},
             "train": {"batch_sentences": 48, "max_steps": 3000, "warmup": 200, "evaluate_every": 500}}),
    (200_000, {"tokenizer": {"vocab_size": 8000}, "model": {"preset": "small", "dropout": 0.1},
               "train": {"batch_tokens": 2048, "max_steps": 10_000, "warmup": 500, "evaluate_every": 1000}}),
    (10**18, {"tokenizer": {"vocab_size": 16_000}, "model": {"preset": "base", "dropout": 0.1},
              "train": {"batch_tokens": 4096, "max_steps": 60_000, "warmup": 4000, "evaluate_every": 2000,
                        "peak": 7e-4}}),
]
# fmt: on


def choose_recipe(name: str, pairs: Pairs, data: dict[str, Any]) -> Recipe:
    """A recipe for these pairs; `data` is its [data] section."""
    chosen = next(values for limit, values in SIZES if pairs.size < limit)
    train = {"optimizer": "adamw", **chosen["train"]}
    train["save_every"] = train["evaluate_every"]
    about = f"chosen for {pairs.size:,} pairs"
    values = {"name": name, "about": about, "data": data, **chosen, "train": train}
    values["evaluate"] = {"tokenize": bleu_tokenizer(pairs.target)}
    return parse_recipe(values, "the chosen recipe")


def bleu_tokenizer(lines: Sequence[str]) -> str:
    """sacreBLEU's tokenizer for these target lines: zh or char where words are not spaced."""
    text = "".join(lines[:1000])
    if not text:
        return "13a"
    kana_or_thai = sum("\u3040" <= c <= "\u30ff" or "\u0e00" <= c <= "\u0e7f" for c in text)
    han = sum("\u4e00" <= c <= "\u9fff" for c in text)
    if kana_or_thai > 0.05 * len(text):
        return "char"
    return "zh" if han > 0.2 * len(text) else "13a"
