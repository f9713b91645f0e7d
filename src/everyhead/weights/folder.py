"""A model folder: config.json, generation_config.json, model.safetensors and the tokenizer's files.

It is a Hugging Face folder (MarianMTModel, PegasusForConditionalGeneration) wherever their code
can say the same; else the same files hold everyhead's own config and names. Tied tensors are
stored once; `tied_weights` in config.json says which other names they have.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from everyhead.data.pair_tokenizer import CONFIG_FILE, SHARED_FILE, SIDE_FILES, PairTokenizer
from everyhead.errors import UserError
from everyhead.files import json_text, read_json, update_set
from everyhead.models.transformer import Transformer, TransformerConfig
from everyhead.tensors import write_tensors
from everyhead.weights import marian, marian_config
from everyhead.weights.files import WEIGHTS_FILE, read_tensors
from everyhead.weights.state import Slot, Undrawn, aliases, collect, fill, own_slots
from everyhead.weights.vocabulary import check_same, check_sizes, fingerprint

MODEL_CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
OWN_TYPE = "everyhead-transformer"


def save(
    model: nn.Module,
    tokenizer: PairTokenizer,
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
    tokenizer: PairTokenizer | None = None,
    generation: Mapping[str, Any] | None = None,
) -> list[str]:
    """Write the model, float32, so that it can be loaded here and, where they can, by others.

    Everything is written and fsynced beside the folder first; then each file is replaced, and
    other files there stay. The model may be in training, compiled, or on another device.

    Args:
        model: a Transformer.
        folder: made if it is not there.
        tokenizer: saved too; without it the tokenizer files in the folder stay as they are.
        generation: more entries for generation_config.json, in Hugging Face's names.

    Returns:
        A sentence for each tool that cannot open the folder, none if all can.

    Raises:
        UserError: model and tokenizer do not fit each other, or the disk is full or read-only.
    """
    model = _unwrapped(model)
    folder = Path(folder)
    if tokenizer is not None:
        check_sizes(model.config, tokenizer, folder)

    def write(temporary: Path) -> None:
        config = _config_values(model, tokenizer)
        (temporary / MODEL_CONFIG).write_bytes(json_text(config).encode("utf-8"))
        defaults = _generation_values(model.config) | dict(generation or {})
        (temporary / GENERATION_CONFIG).write_bytes(json_text(defaults).encode("utf-8"))
        write_tensors(temporary / WEIGHTS_FILE, _tensors_of(model))
        if tokenizer is not None:
            tokenizer.save(temporary, model_max_length=model.config.max_len)

    update_set(folder, write)
    if tokenizer is not None:  # a folder never holds both layouts
        for name in SIDE_FILES if tokenizer.shared else (SHARED_FILE, CONFIG_FILE):
            (folder / name).unlink(missing_ok=True)
    return _notes(model)


def load_model(folder: Path | str) -> Transformer:
    """The model in the folder: ours, Marian's or Pegasus'; float32, on the CPU, in eval mode.

    The logit of padding is −∞ whatever the file says, since padding is never a prediction.

    Raises:
        UserError: a file is missing or broken, the config is not one that everyhead can express,
            or tensors and config do not fit; each tensor at fault is named.
    """
    return _load_model(Path(folder), _read_config(Path(folder)))


def load(folder: Path | str) -> tuple[Transformer, PairTokenizer]:
    """The model and its tokenizer; both must come from everyhead.

    Raises:
        UserError: as `load_model`; or the tokenizer is missing, broken, or not the model's.
    """
    folder = Path(folder)
    values = _read_config(folder)
    tokenizer = PairTokenizer.load(folder)
    model = _load_model(folder, values)
    check_sizes(model.config, tokenizer, folder)
    check_same(values.get("tokenizer_sha256"), tokenizer, folder)
    return model, tokenizer


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise UserError(f"There is no model folder {folder}; check the path.")
    if not (folder / MODEL_CONFIG).is_file():
        raise UserError(f"{folder} is no model folder: it has no {MODEL_CONFIG}.")
    values = read_json(folder / MODEL_CONFIG)
    known = (OWN_TYPE, *marian_config.ARCHITECTURES)
    if values.get("model_type") not in known:
        raise UserError(
            f"{folder / MODEL_CONFIG} says model_type {values.get('model_type')!r}; "
            f"everyhead opens {', '.join(known)}."
        )
    return values


def _load_model(folder: Path, values: Mapping[str, Any]) -> Transformer:
    where = folder / MODEL_CONFIG
    if values["model_type"] == OWN_TYPE:
        config = marian_config.validated(values.get("transformer", {}), where)
    else:
        config = marian_config.from_hugging_face(values, where)
    model = _unfilled(config, where)
    tensors = read_tensors(folder)
    if values["model_type"] == OWN_TYPE:
        fill(model, tensors, own_slots(model), where=folder)
    else:
        marian.check_positions(tensors, folder)
        tensors = marian.completed(tensors, config)
        fill(model, tensors, marian.slots(model, config), known=marian.POSITIONS, where=folder)
    model.output_head.bias[config.pad_id] = float("-inf")
    return model.eval()


def _unfilled(config: TransformerConfig, where: Path) -> Transformer:
    """A model whose random start is left out: time is saved and no random number is drawn."""
    try:
        with Undrawn():
            return Transformer(config)
    except (ValueError, RuntimeError, ArithmeticError, MemoryError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{where} describes no Transformer that fits here: {reason}.") from error


def _unwrapped(model: nn.Module) -> Transformer:
    """Without the wrapper that torch.compile puts around it, which would rename every tensor."""
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, Transformer):
        raise TypeError(f"only a Transformer can be saved, not a {type(model).__name__}")
    return model


def _slots(model: Transformer) -> list[Slot]:
    if marian_config.why_not(model.config) is None:
        return marian.slots(model, model.config)
    return own_slots(model)


def _tensors_of(model: Transformer) -> dict[str, Tensor]:
    tensors, slots = collect(model, _slots(model)), _slots(model)
    if marian_config.why_not(model.config) is not None:
        return tensors
    if not model.config.tie_output:  # then Hugging Face shares no table at all
        tensors |= {alias: tensors[name].clone() for alias, name in aliases(slots).items()}
    if model.config.norm == "pre":
        tensors |= marian.position_tables(model.config)
    return tensors


def _config_values(model: Transformer, tokenizer: PairTokenizer | None) -> dict[str, Any]:
    config = model.config
    if marian_config.why_not(config) is None:
        values = marian_config.to_hugging_face(config)
    else:
        values = {
            "architectures": ["Transformer"],
            "model_type": OWN_TYPE,
            "transformer": config.model_dump(),
        }
    values["tied_weights"] = aliases(_slots(model))
    if tokenizer is not None:
        values["tokenizer_sha256"] = fingerprint(tokenizer)
    return values


def _generation_values(config: TransformerConfig) -> dict[str, Any]:
    return {
        "decoder_start_token_id": config.pad_id,
        "eos_token_id": config.eos_id,
        "forced_eos_token_id": None,
        "max_length": config.max_len,
        "num_beams": 1,
        "pad_token_id": config.pad_id,
    }


def _notes(model: Transformer) -> list[str]:
    reason = marian_config.why_not(model.config)
    if reason is not None:
        return [
            f"Only everyhead can open this folder, because the model has {reason}: "
            "neither Hugging Face's Marian and Pegasus nor CTranslate2 can."
        ]
    if model.config.norm == "post" and not _starts_from_zero(model):
        return [
            "CTranslate2 cannot convert this folder faithfully, because the padding is not the "
            "last entry of the vocabulary with a zero embedding; Hugging Face opens it."
        ]
    return []


def _starts_from_zero(model: Transformer) -> bool:
    """CTranslate2 drops the last row of a Marian vocabulary and starts from a zero embedding."""
    pad = model.config.pad_id
    return pad == model.config.vocab_size - 1 and not bool(model.target_embed.weight[pad].any())
