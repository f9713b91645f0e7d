"""How a model of Hugging Face's transformers is read by the laws, whatever its family.

Four ways of being called, told apart by its config and the tables of transformers alone: tokens
read at once (encoder), tokens written from left to right (decoder), source and target (encoder and
decoder), pictures; text beside a picture (CLIP) is an encoder that is shown one too. The call is
the plain one, `model(input_ids, attention_mask)`; position_ids are handed over only where rows are
padded beside a cache, as generate does.
"""

import contextlib
import copy
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from everyhead.inspection.check_families import (
    kind_of,
    needs_pictures,
    parameters,
    plain_generation,
    quiet_transformers,
    reading_both_ways,
    reserved,
    special,
)
from everyhead.inspection.check_feeding import check_fed, noise, vocabulary_of
from everyhead.inspection.check_own import ordinary_ids
from everyhead.inspection.subjects import Batch, Case, NotApplicable, Row, Side, Subject

LEFT_OUT = ("past_key_values", "cache", "hidden_states", "attentions", "loss", "cache_params")


class HuggingFaceSubject(Subject):
    """Any PreTrainedModel that reads tokens, pictures, or both.

    Raises:
        UserError: it reads something else, like sound, or ids of no known vocabulary.
    """

    model: Any

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.name = type(model).__name__
        self.takes = parameters(model)
        self.config = model.config
        self.text = model.config.get_text_config(decoder=True)
        self.kind = kind_of(model, self.takes)
        self.shifted = self.kind == "decoder"  # does it shift the labels of its loss?
        self.exempt = reading_both_ways(self.config)
        self.vocabulary = vocabulary_of(model, self.text) if "input_ids" in self.takes else 0
        self.sides = tuple(self._sides())

    def with_model(self, model: nn.Module) -> Subject:
        return HuggingFaceSubject(model, self.tokenizer)

    def fed(self) -> None:
        check_fed(self)

    def wide(self) -> Subject:
        copied = super().wide()
        if hasattr(copied.model, "set_experts_implementation"):
            copied.model.set_experts_implementation("eager")  # grouped products know no float64
        return copied

    def _sides(self) -> Iterator[Side]:
        if self.kind == "picture":
            yield Side("picture", tuple(range(8)), paddable=False)
            return
        last = self._id("eos_token_id")
        pad = self._id("pad_token_id", last or 0)
        first = {
            "ids": ordinary_ids(self.vocabulary, special(self.config, self.text)),
            "pad_id": pad,
        }
        longest = getattr(self.text, "max_position_embeddings", None) or -1
        longest = longest if longest > 0 else 1 << 30
        if self.kind == "encoder-decoder":
            longest = getattr(self.config, "max_source_positions", None) or longest
            yield Side("source", max_len=longest, last=last, **first)
            yield Side("target", max_len=longest, causal=True, **first)
            return
        causal = self.kind == "decoder"
        longest -= reserved(self.model)
        yield Side("tokens", max_len=longest, causal=causal, last=None if causal else last, **first)
        if needs_pictures(self.takes, self.config):
            yield Side("picture", tuple(range(8)), paddable=False)

    def _id(self, name: str, default: Any = None) -> Any:
        for config in (self.config, self.text):
            found = getattr(config, name, None)
            found = found[0] if isinstance(found, list) else found
            if found is not None and 0 <= found < self.vocabulary:
                return found
        return default

    # --------------------------------------------------------------------------------- reading

    def read(self, batch: Batch) -> dict[str, Tensor]:
        out = self.model(**self._inputs(batch), **self._plain())
        return dict(_fields(out))

    def _plain(self) -> dict[str, Any]:
        return {"return_dict": True} | ({"use_cache": False} if "use_cache" in self.takes else {})

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        ids, real = batch.ids, batch.real
        given: dict[str, Any] = {}
        if "picture" in ids:
            like = (self.device, self.model.dtype)
            given["pixel_values"] = noise(self.config, ids["picture"][:, 0].tolist(), like)
        if "source" in ids:
            given |= {"input_ids": ids["source"], "attention_mask": _mask(real["source"])}
            given |= {"decoder_input_ids": ids["target"]}
            given |= {"decoder_attention_mask": _mask(real["target"])}
        if "tokens" in ids:
            given |= {"input_ids": ids["tokens"], "attention_mask": _mask(real["tokens"])}
            given["position_ids"] = self._positions(batch)
        return {name: value for name, value in given.items() if value is not None}

    def _positions(self, batch: Batch) -> Tensor | None:
        real = batch.real.get(self.sides[0].name)
        if not batch.positions or real is None or "position_ids" not in self.takes:
            return None
        return (real.long().cumsum(1) - 1).clamp_min(0) + reserved(self.model)

    # -------------------------------------------------------------------------------- decoding

    def steps(
        self, batch: Batch, widths: Sequence[int], move: tuple[int, Tensor] | None = None
    ) -> tuple[str, Tensor]:
        side = self.causal.name
        name = next((n for n in ("cache", "past_key_values") if n in self.takes), None)
        if name is None or "use_cache" not in self.takes:
            raise NotApplicable("It decodes without a cache.")
        if "picture" in batch.ids:  # GIT's
            raise NotApplicable("Its pictures stand in its cache, where check knows no steps.")
        whole, cache, outputs, start = self._inputs(batch), None, [], 0
        if side == "target":
            whole["encoder_outputs"] = self.model.get_encoder()(
                whole.pop("input_ids"), attention_mask=whole.get("attention_mask")
            )
        for i, width in enumerate(widths):
            if move is not None and i == move[0] and cache is not None:
                cache.reorder_cache(move[1])
            given = _piece(whole, side, start, start + width)
            out = self.model(**given, **{name: cache}, use_cache=True, return_dict=True)
            cache = getattr(out, name, None)
            if cache is None:
                raise NotApplicable("It decodes without a cache.")
            outputs.append(out)
            start += width
        field = "logits" if "logits" in outputs[0] else "last_hidden_state"
        if outputs[0][field].dim() < 3:
            raise NotApplicable("No output of it belongs to one token.")
        return field, torch.cat([out[field] for out in outputs], 1)

    def searches(self, batch: Batch, n: int) -> dict[str, list[tuple[int, ...]]]:
        if not hasattr(self.model, "generate") or not self.model.can_generate():
            raise NotApplicable("It generates nothing.")
        if self.kind not in ("decoder", "encoder-decoder"):
            raise NotApplicable("It does not write from left to right.")
        side = self.sides[0].name
        given = {"input_ids": batch.ids[side], "attention_mask": _mask(batch.real[side])}
        given = {name: value for name, value in given.items() if value is not None}
        with plain_generation(self.model, self._start()):
            ids = self.model.generate(**given, max_new_tokens=n, num_beams=1, do_sample=False)
        skip = 1 if side == "source" else batch.ids[side].shape[1]
        return {"generate": [tuple(row) for row in ids[:, skip:].tolist()]}

    def _start(self) -> int:
        found = self._id("decoder_start_token_id", self._id("bos_token_id"))
        return int(self.sides[-1].pad_id if found is None else found)

    def following(self, row: Row, ids: tuple[int, ...]) -> tuple[Row, int]:
        if "target" in row:
            return {**row, "target": (self._start(), *ids[:-1])}, 0
        return {**row, "tokens": (*row["tokens"], *ids[:-1])}, len(row["tokens"]) - 1

    # ---------------------------------------------------------------------------- loss and files

    def loss(self, batch: Batch) -> tuple[float, float]:
        side = self.sides[-1].name if self.kind == "encoder-decoder" else self.sides[0].name
        ids, real = batch.ids[side], batch.real[side]
        if "labels" not in self.takes or not self._predicts_tokens():
            raise NotApplicable("It computes no loss over the tokens of a vocabulary.")
        labels = ids if real is None else ids.masked_fill(~real, -100)
        out = self.model(**self._inputs(batch), **self._plain(), labels=labels)
        counted = labels[:, 1:] if self.shifted else labels
        return float(out.loss), int((counted != -100).sum())

    def counted_otherwise(self) -> Subject | None:
        other = copy.copy(self)  # BartForCausalLM takes labels as they stand, BLIP shifts them
        other.shifted = not self.shifted
        return None if self.kind == "encoder-decoder" else other

    def _predicts_tokens(self) -> bool:
        logits = self.read(self.batch(Case((self.row(2),)))).get("logits")
        return logits is not None and logits.dim() == 3 and logits.shape[-1] >= self.vocabulary

    def saved_and_loaded(self) -> nn.Module:
        with tempfile.TemporaryDirectory() as folder:
            self.model.save_pretrained(folder)
            more = {"dtype": self.model.dtype, "local_files_only": True}
            load = partial(type(self.model).from_pretrained, folder, **more)
            try:
                return load(attn_implementation=self.config._attn_implementation)
            except ValueError:  # a part of it knows no such attention (DETR's ResNet)
                return load()

    def quiet(self) -> contextlib.AbstractContextManager[None]:
        return quiet_transformers()

    def ties(self) -> list[tuple[str, str]]:
        declared = getattr(self.model, "all_tied_weights_keys", None)
        return list(declared.items()) if isinstance(declared, Mapping) else []


def _mask(real: Tensor | None) -> Tensor | None:
    return None if real is None else real.long()


def _fields(out: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Tensor]]:
    """Floating tensors of an output and of the outputs inside it."""
    for name, value in out.items():
        if any(name.endswith(each) for each in LEFT_OUT):
            continue
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
            yield before + name, value
        elif isinstance(value, Mapping):
            yield from _fields(value, f"{before}{name}.")


def _piece(whole: dict[str, Any], side: str, start: int, end: int) -> dict[str, Any]:
    """The new tokens alone, and the masks up to them."""
    given = dict(whole)
    ids, mask = "input_ids", "attention_mask"
    if side == "target":
        ids, mask = "decoder_input_ids", "decoder_attention_mask"
    given[ids] = given[ids][:, start:end]
    if mask in given:
        given[mask] = given[mask][:, :end]
    if "position_ids" in given:
        given["position_ids"] = given["position_ids"][:, start:end]
    return given
