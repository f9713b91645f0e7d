"""Law 7, a file comes back as it was, and what is said of a folder that does not."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from everyhead.errors import UserError
from everyhead.models.transformer import Transformer
from everyhead.weights import load, load_model, save, save_model

from ..laws.families import FAMILIES, build
from .small import (
    config,
    files_of,
    logits,
    random_model,
    separate_config,
    separate_tokenizer,
    shared_tokenizer,
)

WEIGHTS = "model.safetensors"
CONFIGS = {
    "post": config(),
    "pre": config(norm="pre"),
    "untied": config(tie_output=False),
    "separate": separate_config(),
    "separate untied": separate_config(tie_output=False, norm="pre"),
    "learned positions": config(positions="learned", activation="gelu"),
    "padding first": config(pad_id=0, source_pad_id=0, eos_id=1),
}
SHARED = "model.shared.weight"
UP = "model.encoder.layers.1.fc1.weight"


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def edit_config(folder: Path, **changes: object) -> None:
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(values | changes), encoding="utf-8")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_model(random_model(config()), tmp_path, tokenizer=shared_tokenizer())
    return tmp_path


@pytest.mark.parametrize("name", CONFIGS)
def test_law_7_save_and_load_give_equal_logits(name: str, tmp_path: Path) -> None:
    model = random_model(CONFIGS[name])
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    assert again.config == model.config
    assert not again.training
    assert torch.equal(logits(again), logits(model))
    assert all(parameter.requires_grad for parameter in again.parameters())


@pytest.mark.parametrize("name", FAMILIES)
def test_law_7_for_every_family(name: str, tmp_path: Path) -> None:
    model = build(name)
    save_model(model, tmp_path)
    state, again = model.state_dict(), load_model(tmp_path).state_dict()
    assert state.keys() == again.keys()
    assert all(torch.equal(state[key], again[key]) for key in state)


@pytest.mark.parametrize("name", CONFIGS)
def test_law_7_what_was_tied_is_tied(name: str, tmp_path: Path) -> None:
    save_model(random_model(CONFIGS[name]), tmp_path)
    model, c = load_model(tmp_path), CONFIGS[name]
    assert isinstance(model.output_head.weight, nn.Parameter)
    assert (model.output_head.weight is model.target_embed.weight) == c.tie_output
    assert (model.source_embed.weight is model.target_embed.weight) == (c.source_vocab_size is None)
    fresh = Transformer(c)
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in fresh.named_parameters()]


def test_tied_names_are_stored_once_and_documented(saved: Path) -> None:
    names = load_file(saved / WEIGHTS).keys()
    tied = json.loads((saved / "config.json").read_text(encoding="utf-8"))["tied_weights"]
    assert tied["lm_head.weight"] == SHARED in names
    assert not names & tied.keys()


@pytest.mark.parametrize("name", ["lm_head.weight", "model.encoder.embed_tokens.weight", SHARED])
def test_either_name_of_a_tied_tensor_fills_all(name: str, saved: Path) -> None:
    before = logits(load_model(saved))
    edit_weights(saved, lambda tensors: tensors.update({name: tensors.pop(SHARED)}))
    assert torch.equal(logits(load_model(saved)), before)


def test_tied_names_that_differ_in_the_file_are_an_error(saved: Path) -> None:
    edit_weights(saved, lambda t: t.update({"lm_head.weight": t[SHARED] + 1}))
    with pytest.raises(UserError, match=r"different.*model\.shared\.weight and lm_head\.weight"):
        load_model(saved)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_saving_in_training_changes_nothing_and_draws_nothing(
    positions: str, tmp_path: Path
) -> None:
    model = random_model(config(dropout=0.5, positions=positions)).train()
    model(torch.tensor([[3, 0]]), torch.tensor([[5]])).logsumexp(-1).sum().backward()
    drawn = torch.get_rng_state()
    save_model(model, tmp_path, tokenizer=shared_tokenizer())
    load_model(tmp_path)
    assert model.training
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_saving_twice_gives_the_same_bytes(saved: Path) -> None:
    first = files_of(saved)
    save(*load(saved), saved / "again")
    assert files_of(saved / "again") == first
    assert len(first) == 5


def test_a_half_precision_model_is_saved_in_float32(tmp_path: Path) -> None:
    save_model(random_model(config()).bfloat16(), tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


@pytest.mark.slow
def test_a_compiled_model_is_saved_under_plain_names(tmp_path: Path) -> None:
    model = random_model(config())
    save_model(torch.compile(model), tmp_path)
    assert torch.equal(logits(load_model(tmp_path)), logits(model))


def test_saving_keeps_what_else_lies_in_the_run(saved: Path) -> None:
    (saved / "metrics.jsonl").write_bytes(b"{}\n")
    (saved / "checkpoints").mkdir()
    save_model(random_model(config(), seed=3), saved)
    assert {"metrics.jsonl", "checkpoints", "tokenizer.json"} <= {p.name for p in saved.iterdir()}
    assert torch.equal(logits(load(saved)[0]), logits(random_model(config(), seed=3)))


def test_a_failing_save_leaves_the_old_folder(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = files_of(saved)
    monkeypatch.setattr("everyhead.weights.folder.write_tensors", full)
    with pytest.raises(UserError, match="No space left"):
        save_model(random_model(config(), seed=3), saved, tokenizer=shared_tokenizer())
    assert files_of(saved) == before


def test_separate_vocabularies_come_back_and_say_who_cannot_open_them(tmp_path: Path) -> None:
    model = random_model(separate_config())
    (note,) = save_model(model, tmp_path, tokenizer=separate_tokenizer())
    assert all(tool in note for tool in ("Marian", "Pegasus", "CTranslate2", "vocabularies"))
    again, tokenizer = load(tmp_path)
    assert torch.equal(logits(again), logits(model))
    assert tokenizer.source.vocab_size != tokenizer.target.vocab_size
    values = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert values["model_type"] == "everyhead-transformer"
    assert "source_embed.weight" in load_file(tmp_path / WEIGHTS)


def test_padding_that_ctranslate2_would_mistake_is_said(tmp_path: Path) -> None:
    (note,) = save_model(random_model(CONFIGS["padding first"]), tmp_path)
    assert "CTranslate2" in note
    model = random_model(config())
    with torch.no_grad():
        model.target_embed.weight[-1] = 1.0
    assert save_model(model, tmp_path)


def test_a_folder_that_turns_joint_keeps_no_tokenizer_of_a_side(tmp_path: Path) -> None:
    save_model(random_model(separate_config()), tmp_path, tokenizer=separate_tokenizer())
    save_model(random_model(config()), tmp_path, tokenizer=shared_tokenizer())
    assert load(tmp_path)[1].shared
    save_model(random_model(separate_config()), tmp_path, tokenizer=separate_tokenizer())
    assert not load(tmp_path)[1].shared


def test_generation_config_holds_what_the_caller_says(tmp_path: Path) -> None:
    save_model(random_model(config()), tmp_path, generation={"num_beams": 4})
    values = json.loads((tmp_path / "generation_config.json").read_text(encoding="utf-8"))
    assert values["num_beams"] == 4
    assert values["forced_eos_token_id"] is None


def test_missing_unexpected_and_misshapen_tensors_are_listed(saved: Path) -> None:
    def break_it(tensors: dict[str, Tensor]) -> None:
        del tensors["model.decoder.layers.0.fc2.bias"]
        tensors["model.decoder.layers.9.fc2.bias"] = torch.zeros(2)
        tensors[UP] = tensors[UP].T.contiguous()
        tensors["final_logits_bias"] = tensors["final_logits_bias"].long()

    edit_weights(saved, break_it)
    with pytest.raises(UserError) as caught:
        load_model(saved)
    text = str(caught.value)
    assert str(saved) in text
    for part in (
        "missing: model.decoder.layers.0.fc2.bias;",
        f"wrong shape: {UP} is (32, 48), not (48, 32)",
        "unexpected: model.decoder.layers.9.fc2.bias.",
        "final_logits_bias (torch.int64)",
    ):
        assert part in text


def test_a_config_of_another_vocabulary_is_an_error_with_both_sizes(saved: Path) -> None:
    edit_config(saved, vocab_size=500)
    with pytest.raises(UserError, match=r"is \(330, 32\), not \(500, 32\)"):
        load_model(saved)


def test_a_config_of_impossible_size_is_an_error(saved: Path) -> None:
    edit_config(saved, vocab_size=10**14)
    with pytest.raises(UserError, match="fits here"):
        load_model(saved)


def test_a_position_table_that_is_not_the_sinusoid_is_an_error(saved: Path) -> None:
    name = "model.encoder.embed_positions.weight"
    edit_weights(saved, lambda tensors: tensors.update({name: torch.rand(40, 32)}))
    with pytest.raises(UserError, match="sinusoid"):
        load_model(saved)


def test_a_logit_bias_that_is_left_out_is_zero(saved: Path) -> None:
    before = logits(load_model(saved))
    edit_weights(saved, lambda tensors: tensors.pop("final_logits_bias"))
    assert torch.equal(logits(load_model(saved)), before)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (WEIGHTS, None, "no weights"),
        (WEIGHTS, b"", "broken or cut off"),
        (WEIGHTS, -100, "broken or cut off"),
        (WEIGHTS, 1000, "broken or cut off"),
        ("config.json", None, "no model folder"),
        ("config.json", b"", "broken or cut off"),
        ("config.json", 60, "broken or cut off"),
        ("config.json", b"[1]", "JSON object"),
        ("config.json", b"\xff\xfe", "broken or cut off"),
        ("config.json", b'{"model_type": "rwkv"}', "'rwkv'.*marian"),
        ("config.json", b'{"model_type": "everyhead-transformer"}', "vocab_size"),
        ("tokenizer.json", None, "no tokenizer"),
        ("tokenizer.json", 2000, "not a whole tokenizer"),
    ],
)
def test_a_missing_or_broken_file_is_one_sentence_that_names_it(
    name: str, content: bytes | int | None, said: str, saved: Path
) -> None:
    path = saved / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:content] if isinstance(content, int) else content)
    with pytest.raises(UserError, match=said) as caught:
        load(saved)
    assert str(saved) in str(caught.value)


def test_a_path_that_is_no_folder_is_named(saved: Path) -> None:
    for path in (saved / "nowhere", saved / WEIGHTS):
        with pytest.raises(UserError, match="no model folder"):
            load(path)


def test_a_tokenizer_of_another_size_is_refused_at_save_and_load(saved: Path) -> None:
    other = separate_tokenizer().source
    with pytest.raises(UserError, match="do not belong together"):
        save_model(random_model(config(vocab_size=400)), saved / "x", tokenizer=shared_tokenizer())
    assert not (saved / "x").exists()
    other.save(saved / "tokenizer.json")
    with pytest.raises(UserError, match=rf"{other.vocab_size} entries.*330"):
        load(saved)


def test_a_tokenizer_of_the_same_size_with_other_pieces_is_refused(saved: Path) -> None:
    path = saved / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("下", "上"), encoding="utf-8")
    with pytest.raises(UserError, match="not the one the model was saved with"):
        load(saved)


def test_loading_warns_of_nothing(saved: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(saved)
