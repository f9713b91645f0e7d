"""Folders of any family: dispatch, heads that are new or not needed, other fields, old layouts."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import everyhead
from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.models import MODELS
from everyhead.models.bert import Bert, BertConfig
from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.tensors import read_safetensors, write_tensors
from everyhead.weights import load, load_model, save, save_model
from everyhead.weights.config_table import ACTIVATIONS, ConfigTable, Field, validated
from everyhead.weights.kinds import KINDS
from everyhead.weights.opening import kind_for
from everyhead.weights.state import own_slots
from everyhead.weights.tidying import GAMMA_BETA, tidied

from .small import LINES

TINY = {"vocab_size": 300, "d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 12}


def tokenizer() -> TextTokenizer:
    return TextTokenizer.train(LINES, kind="byte-level", vocab_size=300)


def bert(**fields: Any) -> Bert:
    torch.manual_seed(0)
    return Bert(BertConfig(**TINY, d_ff=24, **fields)).eval()


def tiny(family: str) -> nn.Module:
    each = MODELS[family]
    more = {"vocab_size": 60} if "vocab_size" in each.config.model_fields else {}
    more |= {"bos_id": 1, "eos_id": 2} if family == "clip" else {}
    torch.manual_seed(0)
    return each.model(each.config(**{**each.presets["tiny"], **more}))


def opened(folder: Path, **changes: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load_model(folder, changes=changes or None)
    return model, [str(each.message) for each in caught]


def change_config(folder: Path, **changes: object) -> None:
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(values | changes), encoding="utf-8")


@pytest.mark.parametrize("family", [name for name, each in MODELS.items() if each.presets])
def test_law_7_for_every_family_with_presets(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    save_model(model, tmp_path)
    again, said = opened(tmp_path)
    assert said == []
    unnamed = {"labels"}  # a file gives names to labels that had none
    assert again.config.model_dump(exclude=unnamed) == model.config.model_dump(exclude=unnamed)
    state, found = model.state_dict(), again.state_dict()
    assert state.keys() == found.keys()
    assert all(torch.equal(state[name], found[name]) for name in state)
    groups = [slot.ours for slot in own_slots(model)]
    assert [slot.ours for slot in own_slots(again)] == groups  # what was tied is tied


@pytest.mark.parametrize("family", [name for name, each in MODELS.items() if each.presets])
def test_half_precision_opens_as_float32(family: str, tmp_path: Path) -> None:
    save_model(tiny(family), tmp_path)
    path = tmp_path / "model.safetensors"
    for dtype in (torch.bfloat16, torch.float16):
        half = {name: t.to(dtype) for name, t in read_safetensors(path).items()}
        write_tensors(path, half)
        model, _ = opened(tmp_path)
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        for name, p in model.named_parameters():
            assert torch.equal(p.to(dtype).float(), p), name


def test_every_kind_is_of_a_family_and_no_model_type_is_ambiguous() -> None:
    places: dict[tuple[str, str], str] = {}
    for kind in KINDS:
        assert kind.family in MODELS
        for model_type in kind.model_types:
            for architecture in kind.architectures or ("",):
                assert (model_type, architecture) not in places
                places[model_type, architecture] = kind.family
            chosen = {"model_type": model_type, "architectures": list(kind.architectures[:1])}
            assert kind_for(chosen, "x").family == kind.family


def test_a_text_model_comes_back_with_its_tokenizer(tmp_path: Path) -> None:
    model = GPT2(GPT2Config(**TINY)).eval()
    assert save(model, tokenizer(), tmp_path) == []
    again, same = everyhead.load(tmp_path)
    assert isinstance(same, TextTokenizer)
    assert same.encode("the cat") == tokenizer().encode("the cat")
    ids = torch.tensor([same.encode("the cat")])
    assert torch.equal(again(ids), model(ids))
    pair = PairTokenizer.train(LINES, LINES, vocab_size=300, min_count=1)
    with pytest.raises(UserError, match="do not belong together"):
        save(GPT2(GPT2Config(**TINY | {"vocab_size": 200})), tokenizer(), tmp_path / "no")
    assert not (tmp_path / "no").exists()
    assert pair.shared  # and a folder that turns to another tokenizer is told
    (tmp_path / "tokenizer.json").write_text(
        TextTokenizer.train(["other words"], vocab_size=270).inner.to_str(), encoding="utf-8"
    )
    with pytest.raises(UserError, match="not the one the model was saved with"):
        load(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="There is no tokenizer in"):
        load(tmp_path)


def test_a_head_that_the_file_lacks_starts_and_is_announced(tmp_path: Path) -> None:
    body = bert(gap_head=False, next_sentence_head=False)
    save_model(body, tmp_path)
    change_config(tmp_path, architectures=["BertForPreTraining"])
    torch.manual_seed(1)
    model, (said,) = opened(tmp_path)
    assert "gap_head.transform.weight" in said and "starts at random" in said
    assert torch.equal(model.encoder.blocks[0].self_attn.q_proj.weight,
                       body.encoder.blocks[0].self_attn.q_proj.weight)  # fmt: skip
    drawn = model.gap_head.transform.weight.detach()
    assert 0.01 < float(drawn.std()) < 0.03  # the paper's start, not what memory held
    assert model.gap_head.weight is model.token_embed.weight


def test_a_body_part_that_the_file_lacks_is_an_error(tmp_path: Path) -> None:
    save_model(bert(), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = read_safetensors(path)
    del tensors["bert.encoder.layer.0.intermediate.dense.weight"]
    write_tensors(path, tensors)
    with pytest.raises(UserError, match=r"missing: bert\.encoder\.layer\.0\.intermediate"):
        load_model(tmp_path)


def test_a_head_that_is_not_needed_is_named(tmp_path: Path) -> None:
    save_model(bert(), tmp_path)
    change_config(tmp_path, architectures=["BertModel"])
    model, (said,) = opened(tmp_path)
    assert model.gap_head is None
    assert "cls.predictions" in said and "no use for" in said


def test_fields_can_be_changed_on_opening(tmp_path: Path) -> None:
    save_model(bert(), tmp_path)
    model, said = opened(tmp_path, dropout=0.3)
    assert (model.config.dropout, said) == (0.3, [])
    with pytest.raises(UserError, match="wings: Extra inputs"):
        load_model(tmp_path, changes={"wings": 2})
    with pytest.raises(UserError, match="wrong shape"):
        load_model(tmp_path, changes={"d_ff": 28})


def test_shards_and_bin_files_of_any_family(tmp_path: Path) -> None:
    model = bert()
    save_model(model, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = read_safetensors(path)
    path.unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    assert torch.equal(load_model(tmp_path).token_embed.weight, model.token_embed.weight)
    (tmp_path / "pytorch_model.bin").unlink()
    places = {}
    for i, name in enumerate(sorted(tensors)):
        file = f"model-0000{i % 2 + 1}-of-00002.safetensors"
        places[name] = file
    for file in set(places.values()):
        write_tensors(tmp_path / file, {n: tensors[n] for n in tensors if places[n] == file})
    index = {"weight_map": places}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert torch.equal(load_model(tmp_path).token_embed.weight, model.token_embed.weight)


def test_what_is_no_model_of_ours_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"gpt2.*not a Linear"):
        save_model(nn.Linear(2, 2), tmp_path)


def test_an_unfetched_short_name_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("everyhead.weights.named.fetched", lambda name: None)
    with pytest.raises(UserError, match="everyhead fetch minilm"):
        load_model("minilm")
    with pytest.raises(UserError, match="no model folder"):
        load_model("runs/none")


# ---------------------------------------------------------------- tables of configs and of names

TABLE = ConfigTable(
    "GPT2",
    (
        Field("d_model", "n_embd"),
        Field("dropout", ("resid_pdrop", "embd_pdrop"), 0.1),
        Field("activation", "activation_function", "gelu_new", ACTIVATIONS),
    ),
    fixed={"scale_attn_weights": True},
    training_only=("layerdrop",),
)


def test_a_table_reads_and_writes_a_config() -> None:
    found = TABLE.read({"n_embd": 8, "resid_pdrop": 0.2, "activation_function": None}, "x")
    assert found == {"d_model": 8, "dropout": 0.2, "activation": "gelu_tanh"}
    values = TABLE.write(GPT2Config(d_model=8, activation="relu", dropout=0.0))
    assert values["activation_function"] == "relu"
    assert values["resid_pdrop"] == values["embd_pdrop"] == 0.0
    assert values["scale_attn_weights"] is True


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "x lacks n_embd"),
        ({"n_embd": 8, "resid_pdrop": 0.1, "embd_pdrop": 0.2}, "needs them equal"),
        ({"n_embd": 8, "activation_function": "sine"}, "activation_function 'sine'"),
        ({"n_embd": 8, "scale_attn_weights": False}, "scale_attn_weights false"),
    ],
)
def test_what_a_table_cannot_express_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        TABLE.read(values, "x")


def test_what_matters_in_training_only_is_told() -> None:
    with pytest.warns(UserWarning, match="layerdrop 0.1 matters in training only"):
        TABLE.read({"n_embd": 8, "layerdrop": 0.1}, "x")
    with pytest.raises(UserError, match="x describes no GPT2: d_model: "):
        validated(GPT2Config, {"d_model": "wide"}, "x")


def test_names_are_tidied_by_name_alone() -> None:
    one = torch.zeros(1)
    choices: dict[str, Any] = {
        "prefix": "bert.",
        "outside": ("cls.",),
        "buffers": (r".*position_ids",),
        "renames": GAMMA_BETA,
    }
    given = ("norm.gamma", "bert.norm.beta", "embeddings.position_ids", "cls.weight", "mygamma")
    found = tidied(dict.fromkeys(given, one), **choices).tensors
    assert set(found) == {"bert.norm.weight", "bert.norm.bias", "cls.weight", "bert.mygamma"}
    with pytest.raises(UserError, match=r"norm\.gamma and norm\.weight, which are two names"):
        tidied(dict.fromkeys(("norm.gamma", "norm.weight"), one), **choices)
