"""What transformers itself says of one of its models: how it is called, and which way it reads."""

import contextlib
import inspect
import io
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from everyhead.errors import UserError


def is_hugging_face(model: object) -> bool:
    """Is it one of transformers' models? Without importing transformers."""
    return any(
        kind.__name__ == "PreTrainedModel" and kind.__module__.startswith("transformers.")
        for kind in type(model).__mro__
    )


def parameters(model: Any) -> set[str]:
    """Names that forward takes, also where a subclass hands them on as **kwargs."""
    names: set[str] = set()
    for kind in type(model).__mro__:
        if "forward" in vars(kind):
            found = inspect.signature(vars(kind)["forward"]).parameters
            names |= set(found)
            if all(each.kind is not each.VAR_KEYWORD for each in found.values()):
                break
    return names


def kind_of(model: Any, takes: set[str]) -> str:
    main = getattr(model, "main_input_name", "input_ids")
    if "input_ids" not in takes and main == "pixel_values":
        return "picture"
    if "input_ids" not in takes:
        raise UserError(
            f"{type(model).__name__} reads {main}; check feeds tokens and pictures, so it cannot "
            "judge this model."
        )
    if classifies(model):
        return "encoder"  # it makes the target of the source by itself
    if model.config.is_encoder_decoder and "decoder_input_ids" in takes:
        return "encoder-decoder"
    return "decoder" if _causal(model) else "encoder"


def _causal(model: Any) -> bool:
    """Does transformers list it among those that write from left to right?"""
    from transformers.models.auto import modeling_auto as tables

    kind = model.config.model_type
    if getattr(model.config, "is_decoder", False):
        return True
    if reading_both_ways(model.config):
        return False
    masked = kind in tables.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    written = listed(tables.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, kind)
    classes = {base.__name__ for base in type(model).__mro__}
    return bool(written) and (not masked or bool(written & classes))


def reading_both_ways(config: Any) -> dict[str, str]:
    """Laws that a family listed among the writers does not have → why; empty for all others."""
    told = {
        "xlnet": "XLNet reads both ways unless it is given perm_mask, which the plain call is not.",
        "xlm": "This XLM reads both ways: its config says causal=False.",
    }
    kind = getattr(config, "model_type", None)
    if kind not in told or getattr(config, "causal", False):
        return {}
    return dict.fromkeys(("future", "cache", "reorder", "greedy"), told[kind])


def listed(table: Mapping[str, Any], key: str) -> set[str]:
    """Names of classes that a table of transformers has for a type of model."""
    found = table.get(key, ())
    return {found} if isinstance(found, str) else set(found)


def classifies(model: Any) -> bool:
    """Is it an encoder and decoder that judges whole rows?"""
    from transformers.models.auto import modeling_auto as tables

    named = tables.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    classes = {base.__name__ for base in type(model).__mro__}
    return model.config.is_encoder_decoder and bool(
        listed(named, model.config.model_type) & classes
    )


def needs_pictures(takes: set[str], config: Any) -> bool:
    return "pixel_values" in takes and any(
        hasattr(config, name) for name in ("vision_config", "image_size")
    )


def reserved(model: Any) -> int:
    """Positions before the first, where a family (RoBERTa) counts from behind the padding's id."""
    for module in model.modules():
        table = getattr(module, "position_embeddings", None)
        if hasattr(module, "padding_idx") and getattr(table, "padding_idx", None) is not None:
            return int(module.padding_idx) + 1
    return 0


def special(*configs: Any) -> set[int]:
    found: set[int] = set()
    for config in configs:
        for name, value in config.to_dict().items():
            if name.endswith("_token_id") and value is not None:
                found |= set(value) if isinstance(value, list) else {value}
    return found


@contextlib.contextmanager
def plain_generation(model: Any, start: int) -> Iterator[None]:
    """Generation by the likeliest token alone: no penalties, forced tokens or early ends."""
    from transformers import GenerationConfig

    before = model.generation_config
    pad = getattr(before, "pad_token_id", None)
    model.generation_config = GenerationConfig(
        pad_token_id=0 if pad is None else pad, decoder_start_token_id=start
    )
    try:
        yield
    finally:
        model.generation_config = before


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no warnings of transformers' while a model is tried."""
    from transformers.utils import logging as theirs

    level, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity(logging.CRITICAL)
    theirs.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # some print what they ignore
            yield
    finally:
        theirs.set_verbosity(level)
        if bars:
            theirs.enable_progress_bar()
