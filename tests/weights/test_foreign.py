"""Any folder that transformers can load: the right class, in eval mode, never code of its own."""

import builtins
import json
import logging
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from transformers import BertConfig, BertTokenizer, GPT2Config, ViTConfig

from everyhead.errors import UserError
from everyhead.weights import foreign
from everyhead.weights.foreign import open_foreign
from tests.inspection.twelve import TWELVE, build

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT = BertConfig(vocab_size=20, intermediate_size=32, **SMALL)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "bank", "river"]


def saved(folder: Path, kind: str = "BertModel", config: Any = BERT) -> torch.nn.Module:
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    model.save_pretrained(folder)
    return model


def edit(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    values = {key: value for key, value in {**values, **changes}.items() if value is not None}
    path.write_text(json.dumps(values), encoding="utf-8")


def message(folder: Path | str) -> str:
    with pytest.raises(UserError) as caught:
        open_foreign(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("BertModel", BERT),
        ("BertForMaskedLM", BERT),
        ("BertForSequenceClassification", BERT),
        ("GPT2LMHeadModel", GPT2Config(vocab_size=20, n_embd=32, n_layer=2, n_head=2)),
    ],
)
def test_the_class_is_the_one_the_config_names(tmp_path: Path, kind: str, config: Any) -> None:
    model, ids = saved(tmp_path, kind, config), torch.tensor([[5, 6, 7]])
    found = open_foreign(tmp_path)
    assert type(found.model) is type(model) and not found.model.training
    assert found.tokenizer is None and found.images is None and found.note is None
    assert (found.name, found.folder) == (str(tmp_path), tmp_path)
    with torch.no_grad():  # the file's alignment may choose another kernel
        torch.testing.assert_close(found.model(ids)[0], model(ids)[0], atol=1e-6, rtol=0)
    assert found.model.config._attn_implementation == "sdpa"  # its own fast kernel


def test_a_tokenizer_comes_along(tmp_path: Path) -> None:
    saved(tmp_path)
    BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)}).save_pretrained(tmp_path)
    tokenizer = open_foreign(str(tmp_path)).tokenizer
    assert tokenizer("the river bank")["input_ids"] == [2, 5, 7, 6, 3]


def test_an_image_processor_comes_along(tmp_path: Path) -> None:
    config = ViTConfig(image_size=32, patch_size=16, intermediate_size=32, **SMALL)
    saved(tmp_path, "ViTForImageClassification", config)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    found = open_foreign(tmp_path)
    assert found.tokenizer is None and found.images is not None


def test_float32_unless_told_otherwise(tmp_path: Path) -> None:
    saved(tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    assert {p.dtype for p in open_foreign(tmp_path).model.parameters()} == {torch.float32}
    kept = open_foreign(tmp_path, dtype=None).model
    assert {p.dtype for p in kept.parameters()} == {torch.bfloat16}


def test_a_bin_is_read_as_tensors_alone(tmp_path: Path) -> None:
    model, ids = saved(tmp_path), torch.tensor([[5, 6, 7]])
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with torch.no_grad():
        torch.testing.assert_close(
            open_foreign(tmp_path).model(ids)[0], model(ids)[0], atol=1e-6, rtol=0
        )
    torch.save({"a": torch.zeros(1), "b": Path("x")}, tmp_path / "pytorch_model.bin")
    assert "runs no code" in message(tmp_path)


def test_code_of_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    saved(tmp_path)
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w').close()\n"
    (tmp_path / "own.py").write_text(code, encoding="utf-8")
    custom = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    edit(tmp_path, auto_map=custom)
    assert isinstance(open_foreign(tmp_path).model, transformers.BertModel)  # a kind it knows
    edit(tmp_path, model_type="own", architectures=["OwnModel"])
    assert "code of its own" in message(tmp_path) and not mark.exists()


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    saved(tmp_path)
    edit(tmp_path, architectures=["BertForSequenceClassification"])
    with pytest.warns(UserWarning, match=r"no weights for classifier\.bias, classifier\.weight"):
        open_foreign(tmp_path)
    edit(tmp_path, architectures=["BertModel"], num_hidden_layers=3)
    assert "not whole: its weights lack encoder.layer.2." in message(tmp_path)
    edit(tmp_path, num_hidden_layers=2, vocab_size=21)
    assert "embeddings.word_embeddings.weight" in message(tmp_path)


def test_without_architectures_it_is_the_bare_model(tmp_path: Path) -> None:
    saved(tmp_path)
    edit(tmp_path, architectures=None)
    assert type(open_foreign(tmp_path).model) is transformers.BertModel


def test_every_other_mistake_is_one_sentence(tmp_path: Path) -> None:
    assert "check the path" in message(tmp_path / "absent")
    assert "no config.json" in message(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    assert "is broken" in message(tmp_path)
    assert "is a file" in message(tmp_path / "config.json")
    (tmp_path / "config.json").write_text('{"model_type": "no_such"}', encoding="utf-8")
    assert "could not load the config" in message(tmp_path)
    folder = tmp_path / "bert"
    saved(folder)
    edit(folder, architectures=["BertForThoughtReading"])
    assert "is a BertForThoughtReading, which transformers" in message(folder)
    edit(folder, architectures=["BertModel"])
    (folder / "model.safetensors").write_bytes(b"cut off")
    assert "could not load the model" in message(folder)
    (folder / "model.safetensors").unlink()
    assert "no weights" in message(folder)


def test_a_broken_tokenizer_does_not_hide_the_model(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.warns(UserWarning, match="tokenizer of .* could not be opened"):
        assert open_foreign(tmp_path).tokenizer is None


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path)
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> ModuleType:
        if name == "transformers":
            raise ModuleNotFoundError("No module named 'transformers'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    assert "pip install 'everyhead[hf]'" in message(tmp_path)


def test_opening_is_quiet_and_leaves_the_settings_as_they_were(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path)
    capfd.readouterr()
    before = transformers.utils.logging.get_verbosity()
    open_foreign(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.get_verbosity() == before != logging.ERROR
    assert transformers.utils.logging.is_progress_bar_enabled()


def test_a_name_on_this_machine_asks_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path)
    local = foreign.Fetched("minilm", tmp_path, "a mirror's copy")
    monkeypatch.setattr(foreign, "fetched", lambda _: local)
    monkeypatch.setattr(foreign, "fetch", lambda _: pytest.fail("fetched"))
    with pytest.warns(UserWarning, match="a mirror's copy"):
        assert open_foreign("minilm").note == "a mirror's copy"
    monkeypatch.setattr(foreign, "fetched", lambda _: None)
    monkeypatch.setattr(foreign, "fetch", lambda _: local)
    with pytest.warns(UserWarning, match="a mirror's copy"):
        assert open_foreign("minilm").folder == tmp_path


@pytest.mark.parametrize("name", TWELVE)
def test_twelve_architectures_come_back_as_they_were_from_several_files(
    tmp_path: Path, name: str
) -> None:
    model = build(name)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is missing, and nothing is said to be
        found = open_foreign(tmp_path).model
    assert type(found) is type(model)
    before, after = model.state_dict(), found.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
