"""The Transformer in a folder: Marian (post-norm) or Pegasus (pre-norm), opened and written.

Its config is translated in marian_config.py, its tensors in marian.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.data.sentencepiece_tokenizer import SentencePiecePair
from everyhead.models.transformer import Transformer
from everyhead.weights import marian, marian_config
from everyhead.weights.kind import Kind, Tidied
from everyhead.weights.state import aliases, collect


def _tidy(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> Tidied:
    marian.check_positions(tensors)
    size = values.get("decoder_vocab_size") or values["vocab_size"]
    whole = marian.completed(tensors, size)
    return Tidied({n: tensor for n, tensor in whole.items() if n not in marian.POSITIONS})


def _extra(model: Transformer) -> dict[str, Tensor]:
    """Tied names, where Hugging Face then shares no table at all; the tables Pegasus stores."""
    config, slots, tensors = model.config, marian.slots(model, model.config), {}
    if not config.tie_output:
        stored = collect(model, slots)
        tensors = {alias: stored[name].clone() for alias, name in aliases(slots).items()}
    return tensors | (marian.position_tables(config) if config.norm == "pre" else {})


def _generation(model: Transformer) -> dict[str, Any]:
    return {
        "decoder_start_token_id": model.config.pad_id,
        "eos_token_id": model.config.eos_id,
        "forced_eos_token_id": None,
        "max_length": model.config.max_len,
        "num_beams": 1,
        "pad_token_id": model.config.pad_id,
    }


def _close_padding(model: Transformer) -> None:
    """The logit of padding is −∞ whatever the file says, since padding is never a prediction."""
    model.output_head.bias[model.config.pad_id] = float("-inf")


def _tokenizer(folder: Path) -> PairTokenizer | SentencePiecePair:
    """Ours, or that of a published translation model."""
    kind = SentencePiecePair if SentencePiecePair.found_in(folder) else PairTokenizer
    return kind.load(folder)


def _remarks(model: Transformer) -> list[str]:
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


KIND = Kind(
    family="transformer",
    model_types=tuple(marian_config.ARCHITECTURES),
    config=marian_config.from_hugging_face,
    values=lambda model: marian_config.to_hugging_face(model.config),
    slots=lambda model: marian.slots(model, model.config),
    tidy=_tidy,
    why_not=marian_config.why_not,
    extra=_extra,
    generation=_generation,
    companion=_tokenizer,
    finish=_close_padding,
    remarks=_remarks,
)
