"""Llama in Hugging Face's folders: LlamaForCausalLM, with and without `model.` before names.

Rotary scaling is said in two spellings: `rope_theta` beside `rope_scaling` {"type" or "rope_type"},
and `rope_parameters` with both in it. Read are both; written too, so that old and new readers see
the same. NTK-aware scaling is another base and nothing else, and is written as one.
"""

from collections.abc import Mapping
from typing import Any

from everyhead.errors import UserError
from everyhead.layers.rotary_scaling import NTK, lengthened
from everyhead.models.llama import Llama, LlamaConfig, RotaryScaling
from everyhead.weights import ends
from everyhead.weights.config_table import ACTIVATIONS, ConfigTable, Field, validated
from everyhead.weights.kind import Kind
from everyhead.weights.names import NameTable, Row
from everyhead.weights.state import Slot, own_slots
from everyhead.weights.tidying import tidier

FUNCTIONS = {"silu": "silu", **ACTIVATIONS}  # the name that other readers look for
# fmt: off
TABLE = ConfigTable(
    "Llama",
    (
        Field("vocab_size",        "vocab_size", 32_000),
        Field("d_model",           "hidden_size", 4096),
        Field("n_heads",           "num_attention_heads", 32),
        Field("n_kv_heads",        "num_key_value_heads", None),
        Field("d_head",            "head_dim", None),
        Field("d_ff",              "intermediate_size", 11_008),
        Field("n_layers",          "num_hidden_layers", 32),
        Field("max_len",           "max_position_embeddings", 2048),
        Field("attention_dropout", "attention_dropout", 0.0),
        Field("activation",        "hidden_act", "silu", FUNCTIONS),
        Field("norm_eps",          "rms_norm_eps", 1e-6),
        Field("attention_bias",    "attention_bias", False),
        Field("mlp_bias",          "mlp_bias", False),
        Field("tie_output",        "tie_word_embeddings", False),
        Field("bos_id",            "bos_token_id", None),
        Field("pad_id",            "pad_token_id", None),
    ),
)
SCALING = (  # ours, theirs
    ("factor",       "factor"),
    ("original_len", "original_max_position_embeddings"),
    ("beta_fast",    "beta_fast"),
    ("beta_slow",    "beta_slow"),
    ("attention",    "attention_factor"),
    ("truncate",     "truncate"),
    ("low",          "low_freq_factor"),
    ("high",         "high_freq_factor"),
)
MODULES = (  # of a layer
    ("self_attn.q_proj",       "self_attn.q_proj"),
    ("self_attn.k_proj",       "self_attn.k_proj"),
    ("self_attn.v_proj",       "self_attn.v_proj"),
    ("self_attn.o_proj",       "self_attn.o_proj"),
    ("self_attn_norm",         "input_layernorm"),
    ("feed_forward.gate_proj", "mlp.gate_proj"),
    ("feed_forward.up_proj",   "mlp.up_proj"),
    ("feed_forward.down_proj", "mlp.down_proj"),
    ("feed_forward_norm",      "post_attention_layernorm"),
)
# fmt: on
IDS = {"bos_token_id": 1, "eos_token_id": 2}  # what their code takes for silence
KINDS_OF_SCALING = ("linear", "yarn", "llama3")
NAMES = NameTable(
    [
        Row("token_embed.weight", "model.embed_tokens.weight"),
        Row("decoder.norm.weight", "model.norm.weight"),
        Row("output_head.weight", "lm_head.weight"),
        *(
            Row(f"decoder.blocks.{{n}}.{ours}.{part}", f"model.layers.{{n}}.{theirs}.{part}")
            for ours, theirs in MODULES
            for part in ("weight", "bias")
        ),
    ]
)


def config(values: Mapping[str, Any], where: object) -> LlamaConfig:
    """Our config for the content of a config.json.

    Raises:
        UserError: a value is one that this Llama cannot express; it is named.
    """
    values = IDS | dict(values)
    fields = TABLE.read(values, where)
    fields |= ends.fields(values.get(ends.EOS))
    fields |= _rotary(values, where)
    return validated(LlamaConfig, fields, where)


def _rotary(values: Mapping[str, Any], where: object) -> dict[str, Any]:
    """Base and scaling, in whichever spelling."""
    told = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if not isinstance(told, Mapping):
        raise UserError(f"{where} is broken: rope_scaling must be an object of fields.")
    told = {"rope_theta": values.get("rope_theta"), **told}
    base = told["rope_theta"] or 10_000.0
    part = told.get("partial_rotary_factor", values.get("partial_rotary_factor"))
    if part not in (None, 1, 1.0):
        raise UserError(
            f"{where} says partial_rotary_factor {part}; everyhead's Llama turns whole heads only."
        )
    kind = told.get("rope_type", told.get("type", "default")) or "default"
    if kind == "default":
        return {"rotary_base": base}
    if kind == "dynamic":
        raise UserError(
            f"{where} says rotary scaling 'dynamic', whose angles depend on the length seen so "
            "far: what was kept in a cache would be turned wrongly. Choose 'yarn' or 'linear' "
            f"there, or raise rope_theta (now {base})."
        )
    if kind not in KINDS_OF_SCALING:
        raise UserError(
            f"{where} says rotary scaling {kind!r}; everyhead's Llama has default, "
            f"{', '.join(KINDS_OF_SCALING)}."
        )
    return {"rotary_base": base, "rotary_scaling": _scaling(kind, told, values)}


def _scaling(kind: str, told: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Their fields as ours, and what they leave to be worked out."""
    fields = {ours: told[theirs] for ours, theirs in SCALING if told.get(theirs) is not None}
    if kind != "linear":
        longest = values.get("max_position_embeddings", 2048)
        outside = values.get("original_max_position_embeddings")
        fields.setdefault("original_len", outside or longest)
        fields.setdefault("factor", longest / fields["original_len"])
    shares = told.get("mscale"), told.get("mscale_all_dim")
    if kind == "yarn" and all(shares) and "attention" not in fields:  # DeepSeek's
        above, below = (lengthened(fields["factor"], float(share or 0)) for share in shares)
        fields["attention"] = above / below
    wanted = RotaryScaling.model_fields
    return {"kind": kind, **{name: fields[name] for name in fields if name in wanted}}


def values(model: Llama) -> dict[str, Any]:
    """The content of config.json."""
    c = model.config
    written = TABLE.write(c)
    base, scaling = c.rotary_base, c.rotary_scaling
    if scaling is not None and scaling.kind == "ntk":
        base, scaling = NTK(scaling.factor).base(written["head_dim"], base), None
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **written,
        ends.EOS: ends.value(c),
        "rope_theta": base,
        "rope_scaling": None if scaling is None else _told(scaling),
        "rope_parameters": {
            "rope_theta": base,
            **({"rope_type": "default"} if scaling is None else _told(scaling)),
        },
        "use_cache": True,
        "dtype": "float32",
    }


def _told(scaling: RotaryScaling) -> dict[str, Any]:
    numbers = scaling.rule()._asdict()
    known = {theirs: numbers[ours] for ours, theirs in SCALING if numbers.get(ours) is not None}
    return {"rope_type": scaling.kind, **known}


def why_not(c: LlamaConfig) -> str | None:
    """What of this config LlamaForCausalLM cannot say, None if nothing."""
    if c.d_model % c.n_heads:
        return f"{c.n_heads} heads that do not divide its width {c.d_model}"
    return None


def slots(model: Llama) -> list[Slot]:
    """Where each tensor lies."""
    return [
        Slot(slot.ours, tuple(NAMES.row_of(name).theirs for name in slot.ours))
        for slot in own_slots(model)
        if slot.ours != ("output_head.bias",)  # zeros: no piece is closed
    ]


KIND = Kind(
    family="llama",
    model_types=("llama",),
    config=config,
    values=values,
    slots=slots,
    tidy=tidier(
        prefix="model.",
        outside=("lm_head.", "score.", "qa_outputs."),
        buffers=(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
    ),
    spare=("score.", "qa_outputs."),
    why_not=why_not,
    generation=ends.generation,
)
