"""CONTRIBUTING's "add a family in 60 lines": done once, with one that is not in the list.

added_family.py is what a contributor writes; MODELS gets one line. Everything else (laws, folders,
generation, `models`, `check`) must work from that alone.
"""

import inspect
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import everyhead
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.models import MODELS
from everyhead.models.family import Family
from everyhead.weights import load, load_model, save
from tests.cli.conftest import everyhead as program
from tests.laws import test_text_decoders as laws
from tests.laws.test_padding_never_changes_an_answer import way
from tests.laws.text_decoders import SMALL, TEXT_DECODERS
from tests.models import added_family
from tests.models.added_family import Pythia, PythiaConfig

__all__ = ["way"]
NAME = "pythia"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NAME not in MODELS
    monkeypatch.setitem(MODELS, NAME, Family(Pythia, PythiaConfig, added_family.PRESETS))
    monkeypatch.setattr(laws, "WITH_ATTENTION", [*laws.WITH_ATTENTION, NAME])
    monkeypatch.setitem(TEXT_DECODERS, NAME, lambda: Pythia(PythiaConfig(**SMALL)))


def test_it_takes_no_more_than_60_lines() -> None:
    lines = Path(inspect.getfile(added_family)).read_text(encoding="utf-8").splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 60


def law_cases() -> Iterator[Any]:
    """Each law of text decoders with each of its cases, but for the family."""
    for name, law in vars(laws).items():
        marks = getattr(law, "pytestmark", [])
        if not name.startswith("test_") or any(mark.name == "slow" for mark in marks):
            continue
        axes = [
            [{mark.args[0]: value} for value in mark.args[1]]
            for mark in marks
            if mark.name == "parametrize" and mark.args[0] != "family"
        ]
        for chosen in itertools.product(*axes):
            given = {key: value for each in chosen for key, value in each.items()}
            yield pytest.param(law, given, id=f"{name}-{list(given.values())}")


@pytest.mark.slow
@pytest.mark.parametrize(("law", "given"), law_cases())
def test_the_laws_hold(law: Callable[..., None], given: dict[str, Any], way: str) -> None:
    takes = inspect.signature(law).parameters
    if "way" not in takes and way == "traced":
        return  # this law has one way alone
    law(NAME, **given, **({"way": way} if "way" in takes else {}))


def test_it_is_saved_and_loaded_with_its_tokenizer_and_writes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Pythia(PythiaConfig(**added_family.PRESETS["tiny"])).eval()
    tokenizer = TextTokenizer.train(["the cat sat on the mat"] * 3, vocab_size=300)
    (note,) = save(model, tokenizer, tmp_path)
    assert "Only everyhead can open" in note
    again, same = load(tmp_path)
    ids = torch.tensor([tokenizer.encode("the cat")])
    assert torch.equal(again(ids), model(ids))
    assert same.inner.to_str() == tokenizer.inner.to_str()
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == "everyhead-pythia"
    written = [
        everyhead.generate(m, t, "the cat", max_new_tokens=5, temperature=0)
        for m, t in ((model, tokenizer), (again, same))
    ]
    assert written[0] == written[1]


def test_models_and_check_know_it() -> None:
    assert "pythia/tiny" in program("models", "pythia/tiny").out
    # 70,426,624 with Hugging Face's count: https://arxiv.org/abs/2304.01373 table 1
    assert "70,426,624 parameters" in program("models", "70m").out
    model = TEXT_DECODERS[NAME]().eval()
    verdicts = {finding.law: finding.verdict for finding in everyhead.check(model)}
    assert "fail" not in verdicts.values()
    held = {"padding-left", "padding-right", "future", "cache", "reorder", "save-load"}
    assert held <= {law for law, verdict in verdicts.items() if verdict == "pass"}


@torch.no_grad()
def test_it_is_gpt_neox_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            vocab_size=512,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=256,
            max_position_embeddings=64,
        )
    ).eval()
    ours = Pythia(PythiaConfig(**added_family.PRESETS["tiny"])).eval()
    state = {}
    turned = [0, 1, 4, 5, 6, 7, 8, 9, 2, 3, 10, 11, 12, 13, 14, 15]  # of 16 channels, 4 are
    for name, tensor in theirs.state_dict().items():
        tensor = tensor * (1 + 0.3 * torch.randn_like(tensor))
        theirs.state_dict()[name].copy_(tensor)
        name = name.replace("gpt_neox.layers", "decoder.blocks")
        for old, new in (
            ("gpt_neox.embed_in", "token_embed"),
            ("gpt_neox.final_layer_norm", "decoder.norm"),
            ("embed_out", "output_head"),
            ("lm_head", "output_head"),
            ("input_layernorm", "self_attn_norm"),
            ("post_attention_layernorm", "feed_forward_norm"),
            ("mlp.dense_h_to_4h", "feed_forward.up_proj"),
            ("mlp.dense_4h_to_h", "feed_forward.down_proj"),
            ("attention.dense", "self_attn.o_proj"),
        ):
            name = name.replace(old, new)
        if "query_key_value" in name:
            heads = tensor.unflatten(0, (4, 3, 16))  # head by head: q, k, v
            for i, kind in enumerate("qkv"):
                part = heads[:, i] if kind == "v" else heads[:, i][:, turned]
                own = name.replace("attention.query_key_value", f"self_attn.{kind}_proj")
                state[own] = part.flatten(0, 1)
        else:
            state[name] = tensor
    state["output_head.bias"] = torch.zeros(512)
    ours.load_state_dict(state)
    ids = torch.randint(0, 512, (3, 20))
    torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-5, atol=1e-5)


def test_a_folder_of_a_family_that_is_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(Pythia(PythiaConfig(**added_family.PRESETS["tiny"])), None, tmp_path)
    monkeypatch.delitem(MODELS, NAME)
    with pytest.raises(everyhead.UserError, match="'everyhead-pythia'; everyhead opens marian"):
        load_model(tmp_path)
