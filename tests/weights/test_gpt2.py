"""GPT-2 in Hugging Face's folders, both ways, and under the names of files as published."""

import json
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from everyhead.errors import UserError
from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.weights.folder import load_model, save_model
from tests.models.decoders import stirred

SMALL = {"vocab_size": 60, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 24}
CHOICES = {
    "plain": {},
    "untied": {"tie_word_embeddings": False, "activation_function": "relu", "n_inner": 40},
    "scaled": {"scale_attn_by_inverse_layer_idx": True, "layer_norm_epsilon": 1e-3},
}
# config.json of openai-community/gpt2 as it is published, narrower; its file has no lm_head.
PUBLISHED = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 24,
    "n_embd": 24,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 24,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 60,
}
IDS = torch.tensor([[2, 9, 33, 7, 3], [59, 40, 3, 0, 0]])


def theirs(**choices: object) -> transformers.GPT2LMHeadModel:
    torch.manual_seed(3)
    config = transformers.GPT2Config(**SMALL, **choices)
    return stirred(transformers.GPT2LMHeadModel(config), 3.0)


@pytest.mark.parametrize("name", CHOICES)
@torch.no_grad()
def test_theirs_opens_here_and_ours_there(name: str, tmp_path: Path) -> None:
    model = theirs(**CHOICES[name])
    model.save_pretrained(tmp_path / "theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = load_model(tmp_path / "theirs")
    told = model(IDS).logits
    torch.testing.assert_close(ours(IDS), told, rtol=1e-5, atol=1e-5)
    assert save_model(ours, tmp_path / "ours") == []
    kind = transformers.GPT2LMHeadModel
    again, report = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert torch.equal(again.eval()(IDS).logits, told)
    files = [load_file(tmp_path / side / "model.safetensors") for side in ("ours", "theirs")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(tensor, files[1][key]) for key, tensor in files[0].items())
    assert load_model(tmp_path / "ours").config == ours.config


@torch.no_grad()
def test_every_config_comes_back_as_it_was(tmp_path: Path) -> None:
    config = GPT2Config(
        vocab_size=31, d_model=24, n_heads=3, n_layers=1, d_ff=40, max_len=9, dropout=0.2,
        embed_dropout=0.3, attention_dropout=0.4, activation="gelu", norm_eps=1e-4,
        scale_by_layer=True, tie_output=False, bos_id=1, eos_id=2, pad_id=3,
    )  # fmt: skip
    model = stirred(GPT2(config))
    save_model(model, tmp_path)
    found = load_model(tmp_path)
    assert found.config == config and torch.equal(found(IDS % 31), model(IDS % 31))
    told = json.loads((tmp_path / "generation_config.json").read_text(encoding="utf-8"))
    assert (told["bos_token_id"], told["eos_token_id"], told["pad_token_id"]) == (1, 2, 3)


def published(
    folder: Path, *, prefix: bool, head: bool, buffers: bool, half: bool = False
) -> dict[str, Tensor]:
    """A folder with the names of a published file, and the random tensors in it."""
    torch.manual_seed(0)
    width, tensors = 24, {}
    for n in range(12):
        for name, shape in {
            "attn.c_attn.bias": (3 * width,), "attn.c_attn.weight": (width, 3 * width),
            "attn.c_proj.bias": (width,), "attn.c_proj.weight": (width, width),
            "ln_1.bias": (width,), "ln_1.weight": (width,), "ln_2.bias": (width,),
            "ln_2.weight": (width,), "mlp.c_fc.bias": (4 * width,),
            "mlp.c_fc.weight": (width, 4 * width), "mlp.c_proj.bias": (width,),
            "mlp.c_proj.weight": (4 * width, width),
        }.items():  # fmt: skip
            tensors[f"h.{n}.{name}"] = 0.3 * torch.randn(shape)
        if buffers:
            tensors[f"h.{n}.attn.bias"] = torch.ones(1, 1, 24, 24).tril()
            tensors[f"h.{n}.attn.masked_bias"] = torch.tensor(-1e4)
    for name, shape in {
        "ln_f.bias": (width,), "ln_f.weight": (width,), "wpe.weight": (24, width),
        "wte.weight": (60, width),
    }.items():  # fmt: skip
        tensors[name] = torch.randn(shape)
    if prefix:
        tensors = {f"transformer.{name}": tensor for name, tensor in tensors.items()}
    if head:
        table = tensors["transformer.wte.weight" if prefix else "wte.weight"]
        tensors["lm_head.weight"] = table.clone()
    if half:
        tensors = {name: tensor.half() for name, tensor in tensors.items()}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PUBLISHED), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


@pytest.mark.parametrize(
    ("prefix", "head", "buffers", "half"),
    [(False, False, True, False), (True, True, True, False), (True, False, False, True)],
)
@torch.no_grad()
def test_files_as_they_were_published(
    prefix: bool, head: bool, buffers: bool, half: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "gpt2"
    published(folder, prefix=prefix, head=head, buffers=buffers, half=half)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = load_model(folder)
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
    torch.testing.assert_close(ours(IDS), model(IDS).logits, rtol=1e-5, atol=1e-4)
    assert (ours.config.eos_id, ours.config.n_layers) == (50256, 12)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"add_cross_attention": True}, "add_cross_attention true"),
        ({"scale_attn_weights": False}, "scale_attn_weights false"),
        ({"activation_function": "mish"}, "activation_function 'mish'"),
        ({"n_head": 5}, "does not divide into 5 heads"),
        ({"resid_pdrop": 1.5}, "dropout"),
    ],
)
def test_what_it_cannot_be_is_named(
    change: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    published(tmp_path / "gpt2", prefix=False, head=False, buffers=False)
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps(PUBLISHED | change), encoding="utf-8")
    with pytest.raises(UserError, match=sentence):
        load_model(tmp_path / "gpt2")


def test_tensors_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "gpt2"
    tensors = published(folder, prefix=False, head=False, buffers=False)
    tensors["h.3.attn.rotary"] = torch.ones(2)
    tensors["h.4.attn.c_attn.weight"] = torch.ones(24, 24)
    del tensors["h.11.mlp.c_fc.bias"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError) as caught:
        load_model(folder)
    for part in (
        "unexpected: transformer.h.3.attn.rotary",
        "missing: transformer.h.11.mlp.c_fc.bias",
        "transformer.h.4.attn.c_attn.weight is (24, 24), not (24, 72)",
    ):
        assert part in str(caught.value)
