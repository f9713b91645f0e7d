"""The Vision Transformer as Hugging Face's ViTForImageClassification or ViTModel.

The convolution over patches is our map of flat patches, the class token and the positions have
axes before them there. Names as `save_pretrained` writes them, which are those on the Hub; those of
newer code inside (`layers.0.attention.q_proj`) are known, too.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from everyhead.models.vision_transformer import VisionTransformer, VisionTransformerConfig
from everyhead.weights.config_table import ACTIVATIONS, ConfigTable, Field, validated
from everyhead.weights.kind import Kind, Tidied
from everyhead.weights.names import NameTable, Row
from everyhead.weights.state import Slot, own_slots
from everyhead.weights.tidying import tidied

CLASSIFIER, BODY = "ViTForImageClassification", "ViTModel"
PICTURE_ACTIVATIONS = {**ACTIVATIONS, "quick_gelu": "quick_gelu"}
CONFIG = ConfigTable(
    "VisionTransformer",
    (
        Field("d_model", "hidden_size", 768),
        Field("n_layers", "num_hidden_layers", 12),
        Field("n_heads", "num_attention_heads", 12),
        Field("d_ff", "intermediate_size", 3072),
        Field("activation", "hidden_act", "gelu", PICTURE_ACTIVATIONS),
        Field("dropout", "hidden_dropout_prob", 0.0),
        Field("attention_dropout", "attention_probs_dropout_prob", 0.0),
        Field("norm_eps", "layer_norm_eps", 1e-12),
        Field("image_size", "image_size", 224),
        Field("patch_size", "patch_size", 16),
        Field("n_channels", "num_channels", 3),
        Field("attention_bias", "qkv_bias", True),
    ),
    fixed={"pooler_act": "tanh"},
)

# fmt: off
MODULES = (  # of a layer
    ("self_attn.q_proj",       "attention.attention.query"),
    ("self_attn.k_proj",       "attention.attention.key"),
    ("self_attn.v_proj",       "attention.attention.value"),
    ("self_attn.o_proj",       "attention.output.dense"),
    ("self_attn_norm",         "layernorm_before"),
    ("feed_forward.up_proj",   "intermediate.dense"),
    ("feed_forward.down_proj", "output.dense"),
    ("feed_forward_norm",      "layernorm_after"),
)
NEWER = (  # names inside recent code → those on disk
    (r"^vit\.layers\.(\d+)\.", r"vit.encoder.layer.\1."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.",          ".intermediate.dense."),
    (r"\.mlp\.fc2\.",          ".output.dense."),
)
# fmt: on
PARTS, PATCHES = ("weight", "bias"), "vit.embeddings.patch_embeddings.projection"
TABLE = NameTable(
    [
        Row("class_token", "vit.embeddings.cls_token", lambda t: t[None, None], lambda t: t[0, 0]),
        Row(
            "positions.weight",
            "vit.embeddings.position_embeddings",
            lambda t: t[None],
            lambda t: t[0],
        ),
        *(
            Row(f"patches.proj.{p}", f"vit.embeddings.patch_embeddings.projection.{p}")
            for p in PARTS
        ),
        *(
            Row(f"encoder.blocks.{{n}}.{ours}.{p}", f"vit.encoder.layer.{{n}}.{theirs}.{p}")
            for ours, theirs in MODULES
            for p in PARTS
        ),
        *(Row(f"encoder.norm.{p}", f"vit.layernorm.{p}") for p in PARTS),
        *(Row(f"pooler.{p}", f"vit.pooler.dense.{p}") for p in PARTS),
        *(Row(f"classifier.{p}", f"classifier.{p}") for p in PARTS),
    ]
)


def config(values: Mapping[str, Any], where: object) -> VisionTransformerConfig:
    """Our config for the content of a config.json.

    Raises:
        UserError: a value is missing, or is one that this model cannot express; it is named.
    """
    found = CONFIG.read(values, where)
    CONFIG.need(values, "pooler_output_size", found["d_model"], where)
    names = values.get("id2label") or {str(i): f"LABEL_{i}" for i in range(2)}
    labels = [names[key] for key in sorted(names, key=int)]
    if BODY in (values.get("architectures") or ()):
        return validated(VisionTransformerConfig, found | {"n_classes": 0, "pooler": True}, where)
    return validated(
        VisionTransformerConfig, found | {"n_classes": len(labels), "labels": labels}, where
    )


def values(model: VisionTransformer) -> dict[str, Any]:
    """The content of config.json."""
    c = model.config
    found = one_or_two(CONFIG.write(c))
    head: dict[str, Any] = {"architectures": [BODY]}
    if c.n_classes:
        labels = c.labels or tuple(f"LABEL_{i}" for i in range(c.n_classes))
        head = {
            "architectures": [CLASSIFIER],
            "id2label": {str(i): label for i, label in enumerate(labels)},
            "label2id": {label: i for i, label in enumerate(labels)},
        }
    return {
        **head,
        "model_type": "vit",
        **found,
        "pooler_output_size": c.d_model,
        "dtype": "float32",
    }


def one_or_two(found: dict[str, Any]) -> dict[str, Any]:
    """Sides of a square as one number."""
    for name in ("image_size", "patch_size"):
        height, width = found[name]
        found[name] = height if height == width else [height, width]
    return found


def slots(model: VisionTransformer) -> list[Slot]:
    """Where each tensor lies; ViTModel's own files have no `vit.` before their names."""
    return [_slot(slot.ours, model.config) for slot in own_slots(model)]


def _slot(ours: tuple[str, ...], c: VisionTransformerConfig) -> Slot:
    row = TABLE.row_of(ours[0])
    theirs = row.theirs if c.n_classes else row.theirs.removeprefix("vit.")
    if ours[0] == "patches.proj.weight":
        return Slot(ours, (theirs,), *kernel(c.n_channels, c.patch_size))
    return Slot(ours, (theirs,), row.to_theirs, row.to_ours)


def kernel(n_channels: int, patch: tuple[int, int]) -> tuple[Any, Any]:
    """A map of flat patches → the convolution's kernel, and back."""
    return (lambda t: t.unflatten(1, (n_channels, *patch))), (lambda t: t.flatten(1))


def tidy(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> Tidied:
    """Published names → those of `slots`; a mask token is only for pictures that are masked."""
    found = tidied(
        tensors,
        prefix="vit.",
        outside=("classifier.",),
        buffers=(r"vit\.embeddings\.mask_token", r"vit\.embeddings\.position_ids"),
    )
    bare = BODY in (values.get("architectures") or ())
    renamed = {_on_disk(name): tensor for name, tensor in found.tensors.items()}
    if bare:
        renamed = {name.removeprefix("vit."): tensor for name, tensor in renamed.items()}
    return Tidied(renamed, found.notes)


def _on_disk(name: str) -> str:
    for newer, disk in NEWER:
        name = re.sub(newer, disk, name)
    return name


def why_not(c: VisionTransformerConfig) -> str | None:
    """What of this config Hugging Face's code cannot say, None if nothing."""
    if c.n_classes and c.pooler:
        return "both a pooler and a head"
    if not c.n_classes and not c.pooler:
        return "neither a head nor a pooler"
    if len(set(c.labels)) != len(c.labels):
        return "two classes of one name"
    return None


KIND = Kind(
    family="vision-transformer",
    model_types=("vit",),
    config=config,
    values=values,
    slots=slots,
    tidy=tidy,
    heads=("classifier.", "pooler."),
    spare=("vit.pooler.", "pooler.", "classifier."),
    why_not=why_not,
)
