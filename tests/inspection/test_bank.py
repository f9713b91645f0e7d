"""The *bank* study on the real model: its numbers are those on the page, and the issue's."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from everyhead.errors import UserError
from everyhead.weights.fetch import fetch

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "bank.md").read_text(encoding="utf-8")
STORED = json.loads((DOCS / "bank.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def bank() -> ModuleType:
    try:
        fetch("minilm")
    except UserError as error:
        pytest.skip(f"the real model cannot be had here: {error}")
    spec = importlib.util.spec_from_file_location("bank", DOCS / "bank.py")
    assert spec and spec.loader
    sys.modules["bank"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*mirror")
def test_the_numbers_of_the_page_come_out(bank: ModuleType) -> None:
    for name in ("heads", "senses"):
        assert bank.differences(STORED[name], bank.rounded(getattr(bank, name)())) == []
    whole = bank.margin(bank.RIVER, bank.vectors("bank", bank.ALL))
    assert whole == pytest.approx(STORED["effects"]["river"]["whole"], abs=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*mirror")
def test_weights_and_states_are_those_of_eager_attention(bank: ModuleType) -> None:
    from transformers import AutoModel

    foreign = bank.minilm()
    eager = AutoModel.from_pretrained(foreign.folder, attn_implementation="eager")
    for text, query, key, head, wanted in (
        (bank.RIVER, "bank", "river", bank.RIVER_HEAD, 0.523),
        (bank.MONEY, "bank", "money", bank.MONEY_HEAD, 0.340),
    ):
        encoded = foreign.tokenizer(text, return_tensors="pt")
        words = foreign.tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
        i, j = words.index(query), words.index(key)
        with torch.no_grad():
            out = eager(**encoded, output_attentions=True, output_hidden_states=True)
        expected = torch.stack([layer[0, :, i, j] for layer in out.attentions])
        torch.testing.assert_close(bank.looks(text, query, key), expected, atol=1e-5, rtol=0)
        assert float(expected[head]) == pytest.approx(wanted, abs=5e-4)
        states = torch.stack([layer[0, i] for layer in out.hidden_states])
        torch.testing.assert_close(bank.vectors(query, [text])[:, 0], states, atol=1e-5, rtol=1e-4)


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [n for each in value.values() for n in numbers(each)]
    if isinstance(value, list):
        return [n for each in value for n in numbers(each)]
    return [float(value)] if isinstance(value, float | int) else []


def test_every_number_on_the_page_is_one_of_the_studys() -> None:
    known = [*numbers(STORED), 7 / 15]
    written = re.findall(r"\b0\.\d{3}\b", PAGE)
    assert len(written) > 50
    for text in written:
        near = [n for n in known if abs(n - float(text)) <= 0.00056]
        assert near, f"{text} on docs/bank.md is none of docs/bank.json's numbers"


def test_the_pages_counts_are_the_studys() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| *bank*, ")]
    counts = [[int(n) for n in re.findall(r"(\d+) of \d+", row)] for row in rows]
    plain, mixed = STORED["senses"]["bank"], STORED["senses"]["mixed"]
    assert counts == [[round(16 * x) for x in plain[1:]], [round(8 * x) for x in mixed]]
    river, money = STORED["effects"]["river"], STORED["effects"]["money"]
    places = f"| {river['rank of the head']} | {money['rank of the head']} |"
    assert places in PAGE
    heads = [river["worst head"], money["worst head"]]
    assert "; ".join(f"layer {layer} head {head}" for layer, head in heads) in PAGE
    assert STORED["effects"]["agreement, both heads off"][3] == 1.0
