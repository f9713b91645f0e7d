"""CLIP as Hugging Face's CLIPModel.

config.json has one object a tower. Before 2023 it said eos_token_id 2 whatever the vocabulary, and
the code read each text at its largest id; such a folder is read, and written, so.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from everyhead.errors import UserError
from everyhead.models.clip import START, Clip, ClipConfig
from everyhead.weights.config_table import ConfigTable, Field, validated
from everyhead.weights.kind import Kind, Tidied
from everyhead.weights.names import NameTable, Row
from everyhead.weights.state import Slot, own_slots
from everyhead.weights.tidying import tidied
from everyhead.weights.vit import PICTURE_ACTIVATIONS, kernel, one_or_two

OLD_END = 2
TEXT = ConfigTable(
    "Clip",
    (
        Field("vocab_size", "vocab_size", 49408),
        Field("max_len", "max_position_embeddings", 77),
        Field("d_model", "hidden_size", 512),
        Field("n_heads", "num_attention_heads", 8),
        Field("n_layers", "num_hidden_layers", 12),
        Field("d_ff", "intermediate_size", 2048),
        Field("activation", "hidden_act", "quick_gelu", PICTURE_ACTIVATIONS),
        Field("norm_eps", "layer_norm_eps", 1e-5),
        Field("attention_dropout", "attention_dropout", 0.0),
        Field("bos_id", "bos_token_id", 49406),
        Field("eos_id", "eos_token_id", 49407),
        Field("pad_id", "pad_token_id", 1),
    ),
)
IMAGE = ConfigTable(
    "Clip",
    (
        Field("image_d_model", "hidden_size", 768),
        Field("image_n_heads", "num_attention_heads", 12),
        Field("image_n_layers", "num_hidden_layers", 12),
        Field("image_d_ff", "intermediate_size", 3072),
        Field("image_size", "image_size", 224),
        Field("patch_size", "patch_size", 32),
        Field("n_channels", "num_channels", 3),
        Field("activation", "hidden_act", "quick_gelu", PICTURE_ACTIVATIONS),
        Field("norm_eps", "layer_norm_eps", 1e-5),
        Field("attention_dropout", "attention_dropout", 0.0),
    ),
)

# fmt: off
MODULES = (  # of a layer of either tower
    ("self_attn.q_proj",       "self_attn.q_proj"),
    ("self_attn.k_proj",       "self_attn.k_proj"),
    ("self_attn.v_proj",       "self_attn.v_proj"),
    ("self_attn.o_proj",       "self_attn.out_proj"),
    ("self_attn_norm",         "layer_norm1"),
    ("feed_forward.up_proj",   "mlp.fc1"),
    ("feed_forward.down_proj", "mlp.fc2"),
    ("feed_forward_norm",      "layer_norm2"),
)
ABOVE = (
    ("image_first_norm", "vision_model.pre_layrnorm"),  # spelled so
    ("image_norm",       "vision_model.post_layernorm"),
    ("text_norm",        "text_model.final_layer_norm"),
)
# fmt: on
PARTS, KERNEL = ("weight", "bias"), "patches.proj.weight"
TABLE = NameTable(
    [
        Row("log_scale", "logit_scale"),
        Row("class_token", "vision_model.embeddings.class_embedding"),
        Row(KERNEL, "vision_model.embeddings.patch_embedding.weight"),
        Row("image_positions.weight", "vision_model.embeddings.position_embedding.weight"),
        Row("embed.weight", "text_model.embeddings.token_embedding.weight"),
        Row("text_positions.weight", "text_model.embeddings.position_embedding.weight"),
        Row("image_proj.weight", "visual_projection.weight"),
        Row("text_proj.weight", "text_projection.weight"),
        *(
            Row(f"{ours}.blocks.{{n}}.{a}.{p}", f"{theirs}.encoder.layers.{{n}}.{b}.{p}")
            for ours, theirs in (("image", "vision_model"), ("text", "text_model"))
            for a, b in MODULES
            for p in PARTS
        ),
        *(Row(f"{ours}.{p}", f"{theirs}.{p}") for ours, theirs in ABOVE for p in PARTS),
    ]
)


def config(values: Mapping[str, Any], where: object) -> ClipConfig:
    """Our config for the content of a config.json.

    Raises:
        UserError: a value is missing, or is one that this model cannot express; it is named.
    """
    text, image = (_tower(values, name) for name in ("text_config", "vision_config"))
    found, more = TEXT.read(text, where), IMAGE.read(image, where)
    differing = [name for name in found.keys() & more.keys() if found[name] != more[name]]
    if differing:
        name = sorted(differing)[0]
        raise UserError(
            f"{where} says {name} {found[name]} of the text's tower and {more[name]} of the "
            "picture's; everyhead's Clip needs them equal."
        )
    if found["eos_id"] == OLD_END:
        found["eos_id"] = None
    return validated(
        ClipConfig, found | more | {"d_embed": values.get("projection_dim", 512)}, where
    )


def _tower(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A tower's object; files of 2021 have a second one of the same name, which counts more."""
    tower = dict(values.get(name) or {})
    return tower | dict(values.get(f"{name}_dict") or {})


def values(model: Clip) -> dict[str, Any]:
    """The content of config.json."""
    c = model.config
    text, image = TEXT.write(c), one_or_two(IMAGE.write(c))
    if c.eos_id is None:
        text["eos_token_id"] = OLD_END
    width = {"projection_dim": c.d_embed}
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        **width,
        "logit_scale_init_value": START,
        "text_config": {"model_type": "clip_text_model", **text, **width},
        "vision_config": {"model_type": "clip_vision_model", **image, **width},
        "dtype": "float32",
    }


def slots(model: Clip) -> list[Slot]:
    """Where each tensor lies in the file."""
    return [_slot(slot.ours, model.config) for slot in own_slots(model)]


def _slot(ours: tuple[str, ...], c: ClipConfig) -> Slot:
    row = TABLE.row_of(ours[0])
    changes = kernel(c.n_channels, c.patch_size) if row.ours == KERNEL else row[2:]
    return Slot(ours, (row.theirs,), *changes)


def tidy(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> Tidied:
    """Published names → those of `slots`."""
    return tidied(tensors, buffers=(r"(text|vision)_model\.embeddings\.position_ids",))


def why_not(c: ClipConfig) -> str | None:
    """What of this config Hugging Face's code cannot say, None if nothing."""
    if c.eos_id == OLD_END:
        return f"the end of texts at id {OLD_END}, which there means the largest id"
    if c.image_size[0] != c.image_size[1] or c.patch_size[0] != c.patch_size[1]:
        return "pictures or patches that are not square"
    return None


KIND = Kind(
    family="clip",
    model_types=("clip",),
    config=config,
    values=values,
    slots=slots,
    tidy=tidy,
    why_not=why_not,
)
