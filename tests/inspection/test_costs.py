"""What a model costs, measured without weights, is what counting on the real model gives."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from everyhead.inspection.costs import _primed, costs, held_numbers, inputs
from everyhead.inspection.flow import parts, shared, steps
from everyhead.inspection.weightless import Unmade, Weightless, counting
from everyhead.layers import probe
from everyhead.models import MODELS

LENGTH = 24
SMALL: dict[str, dict[str, Any]] = {
    family: {
        **({"vocab_size": 50} if "vocab_size" in each.config.model_fields else {}),
        **{k: v for k, v in each.presets["tiny"].items() if k != "vocab_size"},
        **({"bos_id": 1, "eos_id": 2} if family == "clip" else {}),
    }
    for family, each in MODELS.items()
    if "tiny" in each.presets
}
DECODERS = [f for f in SMALL if hasattr(MODELS[f].model, "cache")]
# Each block of a published model in transformers' words: config class, model class, its numbers.
PUBLISHED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2/small": ("GPT2Config", "GPT2LMHeadModel", {}),
    "gpt2/xl": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 1600, "n_head": 25, "n_layer": 48}),
    "gpt2/gpt3-175b": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_embd": 12288, "n_head": 96, "n_layer": 96, "n_positions": 2048},
    ),
    "bert/base": ("BertConfig", "BertForPreTraining", {}),
    "bert/large": (
        "BertConfig",
        "BertForPreTraining",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
    "longformer/base": (
        "LongformerConfig",
        "LongformerForMaskedLM",
        {"vocab_size": 50265, "max_position_embeddings": 4098, "type_vocab_size": 1},
    ),
    "llama/llama3-8b": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
    ),
    "t5/small": ("T5Config", "T5ForConditionalGeneration", {}),
    "vision-transformer/base-16": ("ViTConfig", "ViTForImageClassification", {"num_labels": 1000}),
    "clip/base-32": ("CLIPConfig", "CLIPModel", {}),
}


def real(family: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[family].model(MODELS[family].config(**SMALL[family])).eval()


def unmade(family: str, **fields: Any) -> nn.Module:
    with Unmade():
        return MODELS[family].model(MODELS[family].config(**(fields or SMALL[family])))


@pytest.mark.parametrize("family", SMALL)
def test_operations_are_those_that_pytorch_counts(family: str) -> None:
    model = real(family)
    row = inputs(model, LENGTH)
    with FlopCounterMode(display=False) as theirs, torch.no_grad():
        model(**row)
    recurrent = _recurrent_operations(model, LENGTH)
    assert costs(unmade(family), LENGTH).forward == theirs.get_total_flops() + recurrent


def _recurrent_operations(model: nn.Module, length: int) -> int:
    """PyTorch's counter sees into nn.GRU, not into nn.LSTM: two operations a weight and token."""
    return sum(
        2 * length * p.numel()
        for part in model.modules()
        if isinstance(part, nn.LSTM)
        for p in part.parameters()
        if p.dim() == 2
    )


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_cost_two_operations_a_weight_and_token(kind: type[nn.RNNBase]) -> None:
    with Unmade():
        model = kind(80, 160, num_layers=2, batch_first=True, bidirectional=True)
        cell = getattr(nn, f"{kind.__name__}Cell")(80, 160)
    x = torch.zeros(2, 5, 80)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
    for part, given, tokens in ((model, x, 10), (model, packed, 8), (cell, x[0], 5)):
        matrices = sum(p.numel() for p in part.parameters() if p.dim() == 2)
        with counting(part) as counted:
            part(given)
        assert counted.flops == 2 * tokens * matrices


@pytest.mark.parametrize("family", DECODERS)
def test_a_step_and_its_cache_are_those_of_the_real_model(family: str) -> None:
    model: Any = real(family)
    found = costs(unmade(family), LENGTH).decoding
    assert found is not None
    with torch.no_grad():
        step, cache = _primed(model, LENGTH - 1, LENGTH, LENGTH)
        with FlopCounterMode(display=False) as theirs:
            step()
    recurrent = _recurrent_operations(model, 1)
    assert found.flops == theirs.get_total_flops() + recurrent
    # a step's room is what the cache was made for; the real one holds it for every layer
    assert held_numbers(cache) == found.cache_fixed + LENGTH * found.cache_per_token


def test_the_cache_of_published_models() -> None:
    """2 · layers · heads of keys · width, Shazeer 2019 (1911.02150) section 2.4."""
    gpt3 = costs(unmade("gpt2", **MODELS["gpt2"].presets["gpt3-175b"]), 2048).decoding
    assert gpt3 is not None and gpt3.cache_per_token == 2 * 96 * 12288
    llama = costs(unmade("llama", **MODELS["llama"].presets["llama3-8b"]), 2048).decoding
    assert llama is not None and llama.cache_per_token == 2 * 32 * 8 * 128
    # twice the parameters, but for tables that are looked up, and 4·T·C a layer for attention
    n = sum(p.numel() for p in unmade("llama", **MODELS["llama"].presets["llama3-8b"]).parameters())
    norms = 65 * 4096
    assert llama.flops == 2 * (n - 128256 * 4096 - norms) + 4 * 2048 * 4096 * 32


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5", "vision-transformer"])
def test_what_autograd_keeps_is_what_it_keeps_of_the_real_model(family: str) -> None:
    """But for attention, which is let out on both sides, and joined weights."""
    model = real(family).train()
    kept: dict[int, torch.Tensor] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        owner = x if x._base is None else x._base
        joined = owner.dim() == 2 and "Cat" in str(owner.grad_fn)  # weights of q, k and v
        if not joined and not isinstance(owner, nn.Parameter):
            kept[x.untyped_storage().data_ptr()] = x
        return x

    observer = Weightless()
    probe.attach(observer)
    try:
        with saved_tensors_hooks(pack, lambda x: x):
            model(**inputs(model, LENGTH))
    finally:
        probe.detach(observer)
    expected = sum(x.untyped_storage().nbytes() for x in kept.values())
    assert costs(unmade(family), LENGTH).kept == expected


@pytest.mark.parametrize("family", SMALL)
def test_steps_and_parts_say_every_parameter(family: str) -> None:
    model = unmade(family)
    total = sum(p.numel() for p in model.parameters())
    assert sum(part.parameters for part in parts(model)) == total
    found = steps(model)
    tops = {step.name.split(".")[0] for step in found}
    all_blocks = shared(model)
    outside = sum(
        p.numel()
        for name, p in model.named_parameters()
        if name.split(".")[0] not in tops or id(p) in all_blocks
    )
    assert sum(step.parameters * step.times for step in found) + outside == total
    assert [step._replace(parameters=0) for step in steps(real(family))] == [
        step._replace(parameters=0) for step in found
    ]


def test_the_flow_of_gpt2_is_the_papers() -> None:
    found = steps(unmade("gpt2", **MODELS["gpt2"].presets["gpt3-175b"]))
    inside = ("self_attn_norm", "self_attn", "feed_forward_norm", "feed_forward")
    assert [step.name for step in found] == [
        "token_embed",
        "positions",
        *(f"decoder.*.{name}" for name in inside),
        "decoder.norm",
        "output_head",
    ]
    assert {step.shape for step in found[:-1]} == {("B", "T", 12288)}
    assert found[-1].shape == ("B", "T", 50257)
    assert found[-1].parameters == 0  # tied
    assert [step.times for step in found] == [1, 1, 96, 96, 96, 96, 1, 1]
    assert found[3].kind == "MultiHeadAttention, 96 heads of 128"


def test_nothing_large_is_made() -> None:
    model = unmade("gpt2", **MODELS["gpt2"].presets["gpt3-175b"])
    assert sum(p.untyped_storage().nbytes() for p in model.parameters()) < 1e8
    with counting(model) as counted, torch.no_grad():
        model(torch.zeros(1, 3, dtype=torch.long))
    assert 3 * 2 * 173.9e9 < counted.flops < 3 * 2 * 174.7e9  # two a weight


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    family, _, preset = name.partition("/")
    config_class, model_class, numbers = PUBLISHED[name]
    config = getattr(transformers, config_class)(**numbers)
    with torch.device("meta"):
        theirs = getattr(transformers, model_class)(config)
    ours = unmade(family, **MODELS[family].presets[preset])
    assert sum(p.numel() for p in ours.parameters()) == theirs.num_parameters()
