"""A model folder: config.json, generation_config.json, model.safetensors and the tokenizer's files.

It is a Hugging Face folder wherever their code can say the same (weights/kinds.py); else the same
files hold everyhead's own config and names (weights/own.py). Tied tensors are stored once;
`tied_weights` in config.json says which other names they have.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from everyhead.errors import UserError
from everyhead.files import json_text, update_set
from everyhead.models.swap import Method, method_of, swap
from everyhead.tensors import write_tensors
from everyhead.weights.companions import (
    FINGERPRINT,
    Companion,
    companion_values,
    open_companion,
    remove_others,
)
from everyhead.weights.ends import GENERATION_CONFIG
from everyhead.weights.files import WEIGHTS_FILE
from everyhead.weights.gguf import gguf_at, open_gguf
from everyhead.weights.kind import Kind
from everyhead.weights.named import located
from everyhead.weights.opening import MODEL_CONFIG, kind_for, kind_of_family, opened, read_config
from everyhead.weights.own import family_of, own_kind
from everyhead.weights.state import aliases, collect
from everyhead.weights.vocabulary import check_same, check_sizes

IDS = {"bos_id": "bos_token_id", "eos_id": "eos_token_id", "pad_id": "pad_token_id"}


def save(
    model: nn.Module,
    tokenizer: Companion | None,
    folder: Path | str,
    *,
    generation: Mapping[str, Any] | None = None,
) -> list[str]:
    """The model with its tokenizer, for `load`; see `save_model`."""
    return save_model(model, folder, tokenizer=tokenizer, generation=generation)


def save_model(
    model: nn.Module,
    folder: Path | str,
    *,
    tokenizer: Companion | None = None,
    generation: Mapping[str, Any] | None = None,
) -> list[str]:
    """Write the model, float32, so that it can be loaded here and, where they can, by others.

    Everything is written and fsynced beside the folder first; then each file is replaced, and
    other files there stay. The model may be in training, compiled, or on another device.

    Args:
        model: of one of the families in MODELS.
        folder: made if it is not there.
        tokenizer: saved too; without it the tokenizer files in the folder stay as they are.
        generation: more entries for generation_config.json, in Hugging Face's names.

    Returns:
        A sentence for each tool that cannot open the folder, and for what it does not tell of;
        none if there is nothing of the kind.

    Raises:
        UserError: model and tokenizer do not fit each other, or the disk is full or read-only.
        TypeError: no family of everyhead's.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps would rename each tensor
    kind = kind_of_model(model)
    folder = Path(folder)
    if tokenizer is not None:
        check_sizes(model.config, tokenizer, folder)

    def write(temporary: Path) -> None:
        slots = kind.slots(model)
        config = kind.values(model) | _tied(aliases(slots))
        if tokenizer is not None:
            config |= companion_values(tokenizer)
        (temporary / MODEL_CONFIG).write_bytes(json_text(config).encode("utf-8"))
        defaults = _generation_values(model, kind) | dict(generation or {})
        if defaults:
            (temporary / GENERATION_CONFIG).write_bytes(json_text(defaults).encode("utf-8"))
        tensors: dict[str, Tensor] = collect(model, slots) | kind.extra(model)
        write_tensors(temporary / WEIGHTS_FILE, tensors)
        if tokenizer is not None:
            longest = getattr(getattr(model, "config", None), "max_len", None)
            tokenizer.save(temporary, model_max_length=longest)

    update_set(folder, write)
    if tokenizer is not None:
        remove_others(folder, tokenizer)
    remarks = [] if kind.remarks is None else kind.remarks(model)
    return [*remarks, *_left_out(model)]


def load_model(
    folder: Path | str,
    *,
    changes: Mapping[str, Any] | None = None,
    attention: Method | None = None,
) -> Any:
    """The model in the folder, ours or Hugging Face's; float32, on the CPU, in eval mode.

    A head that the file lacks starts at random, one that is not needed is left out; each is said
    in a warning.

    Args:
        folder: of a model or a run, a .gguf file, or a name that `everyhead fetch` knows.
        changes: fields of the config that shall be other than the folder says, such as another
            dropout, or another head with so many labels.
        attention: what computes self-attention instead, such as `everyhead.Window(512)`; see
            `everyhead.swap`. The file does not tell of it, nor will one that is saved.

    Raises:
        UserError: a file is missing or broken, the config is not one that everyhead can express,
            or tensors and config do not fit; each tensor at fault is named.
    """
    folder = located(folder)
    if (file := gguf_at(folder)) is not None:
        return _attending(open_gguf(file, changes)[0], attention, folder)
    return _attending(opened(folder, read_config(folder), changes), attention, folder)


def load(
    folder: Path | str,
    *,
    changes: Mapping[str, Any] | None = None,
    attention: Method | None = None,
) -> tuple[Any, Any]:
    """The model and what belongs to it: its tokenizer; None for a family that reads no text.

    Raises:
        UserError: as `load_model`; or the tokenizer is missing, broken, or not the model's.
    """
    folder = located(folder)
    if (file := gguf_at(folder)) is not None:
        found, tokenizer = open_gguf(file, changes)
        return _attending(found, attention, folder), tokenizer
    values = read_config(folder)
    tokenizer = open_companion(folder, kind_for(values, folder / MODEL_CONFIG), values)
    model = opened(folder, values, changes)
    if tokenizer is not None:
        check_sizes(model.config, tokenizer, folder)
        check_same(values.get(FINGERPRINT), tokenizer, folder)
    return _attending(model, attention, folder), tokenizer


def _attending(model: Any, attention: Method | None, folder: Path) -> Any:
    if attention is None:
        return model
    try:
        return swap(model, attention)
    except ValueError as error:
        raise UserError(f"{folder} cannot be opened with {attention}: {error}.") from error


def kind_of_model(model: nn.Module) -> Kind:
    """Hugging Face's kind of folder if it can say this model's config, else our own."""
    family = family_of(model)
    theirs = kind_of_family(family)
    if theirs is None or theirs.why_not(model.config) is not None:
        return own_kind(family, theirs)
    return theirs


def _left_out(model: nn.Module) -> list[str]:
    method = method_of(model)
    if method is None:
        return []
    return [f"The folder does not tell of {method}: load it with attention={method}."]


def _tied(names: dict[str, str]) -> dict[str, Any]:
    return {"tied_weights": names} if names else {}


def _generation_values(model: nn.Module, kind: Kind) -> dict[str, Any]:
    """generation_config.json; nothing for a family that cannot be decoded step by step."""
    if not hasattr(model, "cache"):
        return kind.generation(model)
    ids = {theirs: getattr(model.config, ours, None) for ours, theirs in IDS.items()}
    return {n: number for n, number in ids.items() if number is not None} | kind.generation(model)
