"""Llama in Hugging Face's folders, both ways, and under the names of files as published."""

import json
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from everyhead.errors import UserError
from everyhead.models.llama import Llama, LlamaConfig
from everyhead.weights.folder import load_model, save_model
from everyhead.weights.llama import config as read
from tests.models.decoders import stirred

SMALL = {
    "vocab_size": 60, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
CHOICES = {
    "plain": {},
    "tied": {"tie_word_embeddings": True, "head_dim": 12, "num_key_value_heads": 4},
    "biased": {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
    "llama3": {"rope_parameters": {"rope_theta": 500_000.0, **LLAMA3}},
    "linear": {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}},
    "yarn": {
        "rope_parameters": {
            "rope_theta": 1e4,
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 20.0,
            "attention_factor": 1.25,
        }
    },
}
# config.json of the published checkpoints, narrower; their files have no lm_head.
PUBLISHED = {
    "Llama-3.2-1B": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 16,
        "num_key_value_heads": 2,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": LLAMA3,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 60,
    },
    "SmolLM2-135M": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "silu",
        "hidden_size": 36,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": 48,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 60,
    },
}
IDS = torch.tensor([[2, 9, 33, 7, 3], [59, 40, 3, 0, 0]])


@pytest.mark.parametrize("name", CHOICES)
@torch.no_grad()
def test_theirs_opens_here_and_ours_there(name: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    kind = transformers.LlamaForCausalLM
    model = stirred(kind(transformers.LlamaConfig(**{**SMALL, **CHOICES[name]})), 3.0)
    model.save_pretrained(tmp_path / "theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = load_model(tmp_path / "theirs")
    told = model(IDS).logits
    torch.testing.assert_close(ours(IDS), told, rtol=1e-5, atol=1e-5)
    assert save_model(ours, tmp_path / "ours") == []
    again, report = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert torch.equal(again.eval()(IDS).logits, told)
    files = [load_file(tmp_path / side / "model.safetensors") for side in ("ours", "theirs")]
    assert files[0].keys() == files[1].keys()
    assert load_model(tmp_path / "ours").config == ours.config
    assert again.config.rope_parameters.items() >= model.config.rope_parameters.items()


@torch.no_grad()
def test_ntk_is_written_as_another_base(tmp_path: Path) -> None:
    fields = {"vocab_size": 60, "d_model": 32, "n_heads": 4, "d_ff": 48, "n_layers": 1}
    config = LlamaConfig(**fields, rotary_scaling={"kind": "ntk", "factor": 4.0})
    model = stirred(Llama(config), 8.0)
    save_model(model, tmp_path)
    told = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()(IDS).logits
    torch.testing.assert_close(told, model(IDS), rtol=1e-5, atol=1e-5)
    assert torch.equal(load_model(tmp_path)(IDS), model(IDS))


@torch.no_grad()
def test_every_config_comes_back_as_it_was(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=31, d_model=24, n_heads=3, n_kv_heads=1, d_head=10, d_ff=40, n_layers=1,
        max_len=9, attention_dropout=0.4, activation="gelu", norm_eps=1e-4, rotary_base=99.0,
        rotary_scaling={"kind": "yarn", "factor": 2.0, "original_len": 7, "truncate": False},
        attention_bias=True, mlp_bias=True, tie_output=True, bos_id=1, eos_id=2,
        more_eos_ids=(5, 6), pad_id=3,
    )  # fmt: skip
    model = stirred(Llama(config))
    save_model(model, tmp_path)
    found = load_model(tmp_path)
    assert found.config == config and torch.equal(found(IDS % 31), model(IDS % 31))
    told = json.loads((tmp_path / "generation_config.json").read_text(encoding="utf-8"))
    assert (told["bos_token_id"], told["eos_token_id"], told["pad_token_id"]) == (1, [2, 5, 6], 3)


def test_heads_that_do_not_divide_the_width_are_written_as_everyheads_own(tmp_path: Path) -> None:
    fields = {"vocab_size": 31, "d_model": 32, "n_heads": 3, "d_head": 4, "d_ff": 48, "n_layers": 1}
    model = Llama(LlamaConfig(**fields)).eval()
    (sentence,) = save_model(model, tmp_path)
    assert "3 heads that do not divide its width 32" in sentence
    assert torch.equal(load_model(tmp_path)(IDS % 31), model(IDS % 31))


def published(folder: Path, name: str, *, old: bool, prefix: bool = True) -> None:
    """A folder with the names of a published file and random tensors; old: as Llama 1 was."""
    torch.manual_seed(0)
    config = dict(PUBLISHED[name])
    c, v, f = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    d = c // config["num_attention_heads"]
    kv = d * config["num_key_value_heads"]
    tensors: dict[str, Tensor] = {"embed_tokens.weight": torch.randn(v, c)}
    tensors["norm.weight"] = torch.rand(c)
    for n in range(config["num_hidden_layers"]):
        for module, shape in {
            "input_layernorm": (c,), "mlp.down_proj": (c, f), "mlp.gate_proj": (f, c),
            "mlp.up_proj": (f, c), "post_attention_layernorm": (c,), "self_attn.k_proj": (kv, c),
            "self_attn.o_proj": (c, c), "self_attn.q_proj": (c, c), "self_attn.v_proj": (kv, c),
        }.items():  # fmt: skip
            tensors[f"layers.{n}.{module}.weight"] = 0.3 * torch.randn(shape)
        if old:
            tensors[f"layers.{n}.self_attn.rotary_emb.inv_freq"] = torch.rand(d // 2)
    if prefix:
        tensors = {f"model.{each}": tensor for each, tensor in tensors.items()}
    if old:
        config["tie_word_embeddings"] = False
        tensors["lm_head.weight"] = torch.randn(v, c)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(
        {each: tensor.bfloat16() for each, tensor in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("name", PUBLISHED)
@torch.no_grad()
def test_files_as_they_were_published(name: str, old: bool, tmp_path: Path) -> None:
    published(tmp_path / "llama", name, old=old)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = load_model(tmp_path / "llama")
    kind = transformers.LlamaForCausalLM
    model = kind.from_pretrained(tmp_path / "llama", dtype=torch.float32).eval()
    torch.testing.assert_close(ours(IDS), model(IDS).logits, rtol=1e-4, atol=1e-4)
    assert ours.config.tie_output is not old
    if name == "Llama-3.2-1B":
        assert (ours.config.eos_id, ours.config.more_eos_ids) == (128001, (128008, 128009))


def test_a_body_without_its_prefix_opens_too(tmp_path: Path) -> None:
    published(tmp_path / "a", "SmolLM2-135M", old=False)
    published(tmp_path / "b", "SmolLM2-135M", old=False, prefix=False)
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path / "a")(IDS), load_model(tmp_path / "b")(IDS))


# Each pair says the same in the spelling before transformers 5 and after.
SPELLINGS = [
    ({"rope_theta": 500.0}, {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}),
    (
        {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0}},
    ),
    (
        {"rope_theta": 5e5, "rope_scaling": LLAMA3},
        {"rope_parameters": {"rope_theta": 5e5, **LLAMA3}},
    ),
    (
        {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        {
            "rope_parameters": {
                "rope_theta": 1e4,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 2}},
        {
            "rope_parameters": {
                "rope_theta": 1e4,
                "rope_type": "yarn",
                "factor": 4.0,
                "mscale": 1.0,
                "mscale_all_dim": 2,
            }
        },
    ),
]


@pytest.mark.parametrize(("before", "after"), SPELLINGS)
def test_rotary_scaling_is_read_in_both_spellings_as_theirs_is(
    before: dict[str, object], after: dict[str, object]
) -> None:
    ours = [read({**SMALL, **told}, "config.json") for told in (before, after)]
    assert ours[0] == ours[1]
    theirs = [
        transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(
            transformers.LlamaConfig(**{**SMALL, **json.loads(json.dumps(told))})
        )
        for told in (before, after)
    ]
    rotary = Llama(ours[0]).rotary
    for each in theirs:
        torch.testing.assert_close(rotary.theta, each.inv_freq, rtol=1e-6, atol=0)
        assert rotary.attention_factor == pytest.approx(each.attention_scaling)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "depend on the length seen"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rotary scaling 'longrope'"),
        ({"rope_scaling": {"type": "linear"}}, "rotary_scaling.factor: Field required"),
        ({"rope_scaling": "linear"}, "must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"hidden_act": "mish"}, "hidden_act 'mish'"),
        ({"num_attention_heads": 5}, "does not divide into 5 heads"),
        ({"eos_token_id": "</s>"}, "eos_id"),
    ],
)
def test_what_it_cannot_be_is_named(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read({**SMALL, "model_type": "llama", **change}, "config.json")
