"""The *bank* study: does a head tell a river's bank from a bank for money? Do the vectors?

    python docs/bank.py             compute, print, compare with docs/bank.json
    python docs/bank.py --write     compute, and write docs/bank.json and docs/bank.png

docs/bank.md says what the numbers mean. The model is all-MiniLM-L6-v2, on its own attention.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from everyhead.inspection.changes import HeadOff, TokenHidden
from everyhead.inspection.similarity import (
    cosines,
    sense_agreement,
    sense_gap,
    word_pieces,
    word_vectors,
)
from everyhead.inspection.trace import Trace, record
from everyhead.weights.foreign import Foreign, open_foreign

HERE = Path(__file__).resolve().parent
RIVER_HEAD, MONEY_HEAD = (0, 4), (2, 4)
RIVER = "The bank of the river was muddy."
MONEY = "The money was deposited in the bank."
CROSSED = "The bank lent money to the man who fished in the river."
# What stands in the place of a word of the two sentences. Chosen before looking: words of the same
# sense, of the other sense, of neither.
KEYS_RIVER = ("river", "lake", "sea", "canal", "stream", "account", "loan", "money")
KEYS_RIVER += ("king", "city", "spoon", "piano")
KEYS_MONEY = ("money", "cash", "gold", "loan", "cheque", "fish", "river", "book", "piano")
QUERIES_RIVER = (
    "bank",
    "side",
    "edge",
    "shore",
    "mouth",
    "boat",
    "bridge",
    "name",
    "king",
    "piano",
)
QUERIES_MONEY = ("bank", "account", "safe", "box", "river", "lake", "garden", "piano")
SENTENCES = {
    "river": (
        RIVER,
        "We sat on the bank and watched the water flow.",
        "Wild flowers grew along the bank of the stream.",
        "The boat drifted slowly toward the far bank.",
        "He fished from the bank until the sun went down.",
        "Heavy rain washed away the grassy bank.",
        "Otters had dug a hole in the bank.",
        "The children slid down the steep bank into the water.",
    ),
    "money": (
        MONEY,
        "The bank raised its interest rates again.",
        "She opened an account at the bank on Monday.",
        "He asked the bank for a loan to buy a house.",
        "The bank was robbed by three masked men.",
        "My salary goes straight to the bank.",
        "A clerk at the bank counted the notes.",
        "The bank charged me a fee for the transfer.",
    ),
}
# Words of the other sense stand beside: is it the word that is told apart, or the topic?
MIXED = {
    CROSSED: "money",
    "The fisherman counted his money on the bank of the river.": "river",
    "The bank by the river gave her a loan.": "money",
    "He dropped his wallet in the mud of the bank.": "river",
    "The bank was flooded when the river rose, and its cash was ruined.": "money",
    "She buried the gold coins in the bank above the stream.": "river",
    "The boat company owes the bank a large debt.": "money",
    "The banker walked along the bank to watch the ducks.": "river",
}
SENSES = [sense for sense, sentences in SENTENCES.items() for _ in sentences]
ALL = [sentence for sentences in SENTENCES.values() for sentence in sentences]


@cache
def minilm() -> Foreign:
    return open_foreign("sentence-transformers/all-MiniLM-L6-v2")


def passed(text: str, changes: Sequence[Any] = ()) -> tuple[Trace, list[tuple[int, int]]]:
    """One sentence through the model; where each piece stands in it."""
    foreign = minilm()
    encoded = foreign.tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    spans = encoded.pop("offset_mapping")[0].tolist()
    with torch.no_grad(), record(foreign.model, changes) as trace:
        foreign.model(**encoded)
    return trace, spans


def looks(text: str, query: str, key: str) -> Tensor:
    """(layers, heads): what the query word takes from the key word; pieces of the key added up."""
    trace, spans = passed(text)
    (i, *_), j = word_pieces(text, query, spans), word_pieces(text, key, spans)
    rows = [place.weights(rows=slice(i, i + 1))[0, :, 0] for place in trace.stack("encoder")]
    return torch.stack([row[:, j].sum(-1) for row in rows])


def vectors(word: str, sentences: Sequence[str], changes: Sequence[Any] = ()) -> Tensor:
    """(layers + 1, sentences, C)."""
    found = []
    for sentence in sentences:
        trace, spans = passed(sentence, changes)
        found.append(word_vectors(trace, word_pieces(sentence, word, spans)))
    return torch.stack(found, 1)


def heads() -> dict[str, Any]:
    """What bank looks at, and what else looks so."""

    def one(text: str, query: str, key: str, head: tuple[int, int]) -> float:
        return float(looks(text, query, key)[head])

    def swapped(text: str, old: str, new: str) -> str:
        return text.replace(f" {old} ", f" {new} ").replace(f" {old}.", f" {new}.")

    return {
        "bank → river": one(RIVER, "bank", "river", RIVER_HEAD),
        "bank → money": one(MONEY, "bank", "money", MONEY_HEAD),
        "bank → piano for river": one(
            swapped(RIVER, "river", "piano"), "bank", "piano", RIVER_HEAD
        ),
        "bank → river, financial": one(CROSSED, "bank", "river", RIVER_HEAD),
        "bank → money, financial": one(CROSSED, "bank", "money", MONEY_HEAD),
        "keys for river": {
            key: one(swapped(RIVER, "river", key), "bank", key, RIVER_HEAD) for key in KEYS_RIVER
        },
        "keys for money": {
            key: one(swapped(MONEY, "money", key), "bank", key, MONEY_HEAD) for key in KEYS_MONEY
        },
        "queries for river": {
            query: one(swapped(RIVER, "bank", query), query, "river", RIVER_HEAD)
            for query in QUERIES_RIVER
        },
        "queries for money": {
            query: one(swapped(MONEY, "bank", query), query, "money", MONEY_HEAD)
            for query in QUERIES_MONEY
        },
        "largest of 72 heads": {
            key: float(looks(swapped(RIVER, "river", key), "bank", key).max()) for key in KEYS_RIVER
        },
    }


def senses() -> dict[str, Any]:
    """Nearest neighbours by sense, layer by layer, and the controls."""
    bank = vectors("bank", ALL)
    with_the = [i for i, sentence in enumerate(ALL) if "the " in f"{sentence} ".lower()]
    the = vectors("the", [ALL[i] for i in with_the])
    torch.manual_seed(0)
    orders = [torch.randperm(len(SENSES)).tolist() for _ in range(1000)]
    shuffled = torch.tensor([sense_agreement(bank, [SENSES[i] for i in o]) for o in orders])
    near = cosines(torch.cat([vectors("bank", list(MIXED)), bank], 1))
    nearest = near[:, : len(MIXED), len(MIXED) :].argmax(-1)  # (layers + 1, mixed)
    wanted = list(MIXED.values())
    right = [[SENSES[i] == sense for i, sense in zip(row, wanted, strict=True)] for row in nearest]
    return {
        "bank": sense_agreement(bank, SENSES),
        "the": sense_agreement(the, [SENSES[i] for i in with_the]),
        "shuffled, 95 %": shuffled.quantile(0.95, 0).tolist(),
        "cosine within and between": sense_gap(bank, SENSES),
        "mixed": [sum(row) / len(row) for row in right],
        "mixed, last layer": dict(zip(MIXED, right[-1], strict=True)),
    }


def margin(text: str, bank: Tensor, changes: Sequence[Any] = ()) -> float:
    """Mean cosine of bank's last vector with the others' of its sense, less of the other sense."""
    own = vectors("bank", [text], changes)[-1]
    near = cosines(torch.cat([own, bank[-1]]))[0, 1:]
    others = [i for i, sentence in enumerate(ALL) if sentence != text]
    sense = SENSES[ALL.index(text)]
    same = [near[i] for i in others if SENSES[i] == sense]
    different = [near[i] for i in others if SENSES[i] != sense]
    return float(torch.stack(same).mean() - torch.stack(different).mean())


def effects() -> dict[str, Any]:
    """What is left of the difference when a head is off, or a word hidden."""
    bank = vectors("bank", ALL)
    found: dict[str, Any] = {}
    for name, text, head, words in (
        ("river", RIVER, RIVER_HEAD, ("river", "muddy", "of")),
        ("money", MONEY, MONEY_HEAD, ("money", "deposited", "in")),
    ):
        _, spans = passed(text)
        place = f"encoder.{head[0]}.self_attn"
        each = {
            (layer, h): margin(text, bank, [HeadOff(f"encoder.{layer}.self_attn", [h])])
            for layer in range(6)
            for h in range(12)
        }
        whole = margin(text, bank)
        order = sorted(each, key=lambda key: each[key])
        found[name] = {
            "whole": whole,
            "head off": margin(text, bank, [HeadOff(place, [head[1]])]),
            "rank of the head": 1 + order.index(head),
            "worst head": list(order[0]),
            "worst head off": each[order[0]],
            "hidden": {
                word: margin(text, bank, [TokenHidden(None, word_pieces(text, word, spans))])
                for word in words
            },
        }
    off = [HeadOff(f"encoder.{layer}.self_attn", [h]) for layer, h in (RIVER_HEAD, MONEY_HEAD)]
    found["agreement, both heads off"] = sense_agreement(vectors("bank", ALL, off), SENSES)
    return found


def study() -> dict[str, Any]:
    return {"heads": heads(), "senses": senses(), "effects": effects()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace bank.json and bank.png")
    write = parser.parse_args().write
    found = study()
    text = json.dumps(rounded(found), indent=2, ensure_ascii=False) + "\n"
    print(text)
    if write:
        (HERE / "bank.json").write_text(text, encoding="utf-8", newline="\n")
        sys.path.insert(0, str(HERE))
        from bank_figure import draw

        draw(json.loads(text), HERE / "bank.png")
        return 0
    stored = json.loads((HERE / "bank.json").read_text(encoding="utf-8"))
    different = differences(stored, json.loads(text))
    print("as in bank.json" if not different else "\n".join(different))
    return 1 if different else 0


def rounded(value: Any) -> Any:
    """Numbers to four decimals, so that the file is the same on every machine."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def differences(stored: Any, found: Any, where: str = "") -> list[str]:
    """Where two studies differ by more than 0.001."""
    if isinstance(stored, dict) and isinstance(found, dict) and stored.keys() == found.keys():
        return [d for key in stored for d in differences(stored[key], found[key], f"{where}/{key}")]
    if isinstance(stored, list) and isinstance(found, list) and len(stored) == len(found):
        pairs = enumerate(zip(stored, found, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{where}/{i}")]
    if isinstance(stored, int | float) and isinstance(found, int | float):
        return [] if abs(stored - found) <= 1e-3 else [f"{where}: {stored} is now {found}"]
    return [] if stored == found else [f"{where}: {stored!r} is now {found!r}"]


if __name__ == "__main__":
    raise SystemExit(main())
