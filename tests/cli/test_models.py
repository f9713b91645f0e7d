"""everyhead models NAME: flow, parameters and costs of a preset or a folder."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from everyhead.cli import described
from everyhead.cli.described import Described, Named
from everyhead.models import MODELS
from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.weights import save_model

from .conftest import everyhead, refused


def test_a_preset_shows_steps_parameters_and_costs() -> None:
    code, out, err = everyhead("models", "gpt3-175b")
    assert (code, err) == (0, "")
    for line in (
        "gpt2/gpt3-175b: 174,604,259,328 parameters",
        "  decoder, 96 alike",
        "MultiHeadAttention, 96 heads of 128",
        "(B, T, 50257)",
        "together                  174,604,259,328",
        "rows of 2,048 tokens",
        "9.44 MB a token in float32, 4.72 MB in bf16",  # 2 · 96 · 12288 numbers
    ):
        assert line in out


def once(describe: Callable[..., Described]) -> Callable[..., Described]:
    """What is described stays, by its title: to be shown in two ways it is counted once."""
    found: dict[str, Described] = {}

    def remembered(what: Named, length: int | None) -> Described:
        assert length is None
        if what.title not in found:
            found[what.title] = describe(what, length)
        return found[what.title]

    return remembered


def test_json_says_the_same_and_every_tiny_preset_can_be_shown(monkeypatch) -> None:
    monkeypatch.setattr(described, "described", once(described.described))
    for family, each in MODELS.items():
        if "tiny" not in each.presets:
            continue
        values = json.loads(everyhead("models", f"{family}/tiny", "--json").out)
        assert values["family"] == family
        assert sum(values["parts"].values()) == values["parameters"]
        assert values["steps"] and values["costs"]["forward"] > 0
        assert (values["costs"]["decoding"] is not None) == hasattr(each.model, "cache")
        title = f"{family}/tiny: {values['parameters']:,} parameters"
        assert title in everyhead("models", f"{family}/tiny").out
    table = json.loads(everyhead("models", "--json").out)
    assert table["bert"]["base"] == 110_106_428
    assert table.keys() == MODELS.keys()


def test_a_model_folder_is_shown_without_its_weights(tmp_path: Path) -> None:
    numbers = {"d_model": 32, "n_heads": 2, "n_layers": 3, "max_len": 40}
    save_model(GPT2(GPT2Config(vocab_size=60, **numbers)), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    out = everyhead("models", tmp_path).out
    assert "decoder, 3 alike" in out
    assert "rows of 40 tokens" in out
    assert "beyond the longest text" in refused("models", tmp_path, "--length", 41)
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}', encoding="utf-8")
    assert "'unheard-of'" in refused("models", tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("base", "say transformer/base, bert/base"),
        ("bert/huge", "There is no family, preset or folder 'bert/huge'"),
        ("gpt4", "There is no family, preset or folder 'gpt4'"),
        ("minilm-l7", "everyhead models"),
    ],
)
def test_a_name_that_is_none_or_several_is_told(name: str, said: str) -> None:
    assert said in refused("models", name)


def test_another_vocabulary_is_counted() -> None:
    small, large = (
        json.loads(everyhead("models", "gpt2/tiny", "--json", "--vocab-size", n).out)["parameters"]
        for n in (100, 200)
    )
    assert large - small == 100 * 64
