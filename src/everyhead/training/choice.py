"""The recipe for a file of one's own, chosen from how many pairs there are and what they look like.

The numbers grow with the data: more pairs carry more pieces, more layers and more steps. What was
chosen is written into the run, where it can be read and changed.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from everyhead.data.pairs import Pairs
from everyhead.training.recipe import override, parse_recipe
from everyhead.training.sections import Recipe

# fmt: off
SIZES: list[tuple[int, int, dict[str, Any], dict[str, Any]]] = [
    # fewer pairs than, pieces, [model], [train]
    (1_000, 1000, {"preset": "tiny", "dropout": 0.2},
     {"batch_sentences": 32, "max_steps": 1500, "warmup": 100, "evaluate_every": 300}),
    (8_000, 3000, {"preset": "small", "n_layers": 2, "dropout": 0.2},
     {"batch_sentences": 48, "max_steps": 3000, "warmup": 200, "evaluate_every": 500}),
    (200_000, 8000, {"preset": "small", "dropout": 0.1},
     {"batch_tokens": 2048, "max_steps": 10_000, "warmup": 500, "evaluate_every": 1000}),
    (10**18, 16_000, {"preset": "base", "dropout": 0.1},
     {"batch_tokens": 4096, "max_steps": 60_000, "warmup": 4000, "evaluate_every": 2000,
      "peak": 7e-4}),
]
# fmt: on
# Japanese kana, Thai and Lao, Burmese, Khmer.
UNSPACED = (
    ("\u3040", "\u30ff"),
    ("\u0e00", "\u0eff"),
    ("\u1000", "\u109f"),
    ("\u1780", "\u17ff"),
)


def choose_recipe(
    name: str, pairs: Pairs, data: dict[str, Any], changes: Iterable[str] = ()
) -> Recipe:
    """A recipe for these pairs; `data` is its [data] section, `changes` are section.key=value.

    Raises:
        UserError: a change of a key that is not there, or to a value out of range.
    """
    size = next(row for row in SIZES if pairs.size < row[0])
    _, n_pieces, model, train = size
    train = {"optimizer": "adamw", **train, "save_every": train["evaluate_every"]}
    values: dict[str, Any] = {"name": name, "about": f"chosen for {pairs.size:,} pairs"}
    values |= {"data": dict(data), "tokenizer": {"vocab_size": n_pieces}, "model": dict(model)}
    values |= {"train": train, "evaluate": {"tokenize": bleu_tokenizer(pairs.target)}}
    for change in changes:
        override(values, change)
    return parse_recipe(values, "the chosen recipe")


def bleu_tokenizer(lines: Sequence[str]) -> str:
    """sacreBLEU's tokenizer for these target lines: zh or char where words are not spaced."""
    text = "".join("".join(lines[:1000]).split())
    if not text:
        return "13a"
    unspaced = sum(any(low <= c <= high for low, high in UNSPACED) for c in text)
    han = sum("\u4e00" <= c <= "\u9fff" for c in text)
    if unspaced > 0.05 * len(text):
        return "char"
    return "zh" if han > 0.2 * len(text) else "13a"
