"""How a .gguf file of the Llama kind says that angles are scaled for longer texts.

llama.rope.scaling.*     a rule by name and its numbers; a factor without a name is linear
rope_freqs.weight        Llama 3's rule, as what it divides each pair's angle by
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from everyhead.errors import UserError
from everyhead.layers.rotary_scaling import Llama3, turns
from everyhead.models.llama import LlamaConfig
from everyhead.weights.config_table import validated
from everyhead.weights.gguf_file import GgufFile

DIVISORS = "rope_freqs.weight"
# Of llama.rope: what says how angles are scaled, and what makes q and k longer besides.
NEUTRAL = {
    "attn_factor": (1.0, 0.0),
    "yarn_attn_factor": (1.0,),
    "yarn_ext_factor": (1.0, -1.0),  # -1: as the kind has it
    "yarn_log_multiplier": (0.0,),
}
SCALING = (
    "scale_linear",
    *(f"scaling.{name}" for name in ("type", "factor", "original_context_length")),
    *(f"scaling.yarn_{name}" for name in ("beta_fast", "beta_slow")),
    *(f"scaling.{name}" for name in NEUTRAL),
)


def turned(config: LlamaConfig, file: GgufFile) -> LlamaConfig:
    """The config with what the file says of longer texts."""
    values, where = file.values, file.path
    pairs = values.get("llama.rope.dimension_count", config.d_head)
    if pairs != config.d_head:
        raise UserError(
            f"{where} turns {pairs} channels of each head's {config.d_head}; everyhead's Llama "
            "turns whole heads only."
        )
    told = {key: values[each] for key in SCALING if (each := f"llama.rope.{key}") in values}
    scaling = _scaling(told, config, where)
    if DIVISORS in file.entries:
        if scaling is not None:
            raise UserError(
                f"{where} scales its angles twice, by {DIVISORS} and by {scaling['kind']}; "
                "everyhead's Llama does so once. Give the model folder instead."
            )
        scaling = _by_divisors(file.tensor(DIVISORS), config, where)
    changed = config.model_dump() | {"rotary_scaling": scaling}
    return validated(LlamaConfig, changed, where)


def _scaling(told: Mapping[str, Any], config: LlamaConfig, where: object) -> dict[str, Any] | None:
    """The rule that the values say; a factor without a kind is linear, as llama.cpp takes it."""
    factor = told.get("scaling.factor") or told.get("scale_linear") or 1.0  # 0 says nothing
    kind = told.get("scaling.type", "linear")
    for name, neutral in NEUTRAL.items():
        if told.get(f"scaling.{name}", neutral[0]) not in neutral:
            raise UserError(
                f"{where} says rope.scaling.{name} {told[f'scaling.{name}']}; everyhead's Llama "
                "has no such number. Give the model folder instead."
            )
    if kind == "none" or (kind == "linear" and factor == 1):
        return None
    if kind == "linear":
        return {"kind": kind, "factor": factor}
    if kind != "yarn":
        raise UserError(f"{where} says rotary scaling {kind!r}; known are none, linear, yarn.")
    between = {ours: told.get(f"scaling.yarn_{ours}") for ours in ("beta_fast", "beta_slow")}
    original = told.get("scaling.original_context_length") or config.max_len
    return {"kind": kind, "factor": factor, "original_len": original, **between}


def _by_divisors(divisors: Tensor, config: LlamaConfig, where: object) -> dict[str, Any]:
    """Llama 3's rule, from what it does to each pair: its factor is the largest divisor."""
    rule = Llama3(float(divisors.max()), original_len=8192)
    plain = 1.0 / turns(config.d_head or 0, config.rotary_base)
    expected = plain / rule.frequencies(config.d_head or 0, config.rotary_base)
    if divisors.shape != expected.shape or not torch.allclose(divisors, expected, rtol=1e-4):
        raise UserError(
            f"{where} divides the angles of its pairs ({DIVISORS}) by other numbers than Llama 3's "
            "rule does; everyhead's Llama cannot express them. Give the model folder instead."
        )
    return {"kind": "llama3", **rule._asdict()}
