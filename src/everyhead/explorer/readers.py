"""Hugging Face's models as sessions: what they read decides what is run.

An encoder reads the text, a decoder continues it, a model of two halves answers it (greedily, then
the answer is read along in one pass), an image model looks at the picture of that path, one of two
towers reads a text beside a picture.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from everyhead.errors import UserError
from everyhead.explorer.effects import with_effects
from everyhead.explorer.limits import longest_of
from everyhead.explorer.scene import Scene
from everyhead.explorer.sessions import (
    Asked,
    Half,
    NextWords,
    Session,
    check_length,
    check_tail,
    check_text,
    n_words,
    scene_of_halves,
    tensor,
)
from everyhead.explorer.spans import Pieces, continued, pieces_of, texts_of_ids
from everyhead.explorer.translators import with_decoder_keys
from everyhead.inspection.trace import record
from everyhead.weights.foreign import Foreign

MOST_WRITTEN = 64


def reader(foreign: Foreign, image: Path | None = None) -> Session:
    """The session that fits the model.

    Args:
        image: the picture that an image model looks at; only the person at the terminal names it.

    Raises:
        UserError: the model reads neither text nor pictures, or has no tokenizer.
    """
    from everyhead.explorer.pictures import PictureReader

    config = foreign.model.config
    takes = getattr(foreign.model, "main_input_name", "input_ids")
    if takes == "pixel_values" or hasattr(config, "vision_config"):
        return PictureReader(foreign, image)
    if takes != "input_ids":
        raise UserError(
            f"{foreign.name} takes {takes}, such as sound, neither text nor pictures: "
            "nothing typed can be shown to it."
        )
    if image is not None:
        raise UserError(f"{foreign.name} reads text and looks at no picture: leave --image out.")
    if foreign.tokenizer is None:
        raise UserError(
            f"{foreign.name} has no tokenizer, so no text can be shown to it: put its "
            "tokenizer.json into the folder."
        )
    if getattr(config, "is_encoder_decoder", False):
        return Answerer(foreign)
    return TextReader(foreign)


class TextReader:
    """One stack that reads a text, or a pair of sentences: BERT, GPT-2, Llama and their kind."""

    def __init__(self, foreign: Foreign) -> None:
        self.model: Any = foreign.model
        self.tokenizer, self.name = foreign.tokenizer, foreign.name
        self.longest = longest_of(foreign)
        self.notes = [foreign.note] if foreign.note else []

    def scene(self, asked: Asked) -> Scene:
        """One group of every layer; for a decoder the next words too."""
        line = check_text(asked.text)
        pieces = self._pieces(asked)
        check_length(len(pieces.ids), self.longest, asked.most)
        given = self._input(pieces.ids, pieces.segments, asked.second)
        with torch.inference_mode(), record(self.model, asked.changes) as trace:
            logits: Any = getattr(self.model(**given), "logits", None)
        half = trace.places()[0].split(".")[0]
        halves = {half: Half.of(pieces)}
        texts = [line] if asked.second is None else [line, asked.second]
        more: dict[str, Any] = {"texts": texts, "model": self.name, "notes": self.notes}
        if half == "decoder" and _says_words(self.model, logits):
            best = logits[0, -1].float().softmax(-1).topk(3)
            words = texts_of_ids(self.tokenizer, best.indices.tolist())
            more["output"] = {"next": [*zip(words, best.values.tolist(), strict=True)]}
        scene = scene_of_halves(trace, halves, title=line, **more)
        return (
            scene
            if not asked.measured
            else with_effects(scene, self.model, partial(self.model, **given))
        )

    def next_words(self, asked: Asked) -> NextWords | None:
        """Of a decoder with a head."""
        pieces = self._pieces(asked)
        check_length(len(pieces.ids), self.longest, asked.most)
        with torch.inference_mode(), record(self.model, asked.changes) as trace:
            result = self.model(**self._input(pieces.ids, pieces.segments, asked.second))
        logits: Any = getattr(result, "logits", None)
        decodes = trace.places()[0].startswith("decoder")
        if not decodes or not _says_words(self.model, logits):
            return None
        return NextWords(logits[0, -1].float().cpu(), self.written)

    def written(self, ids: Sequence[int]) -> list[str]:
        """How ids are written."""
        return texts_of_ids(self.tokenizer, ids)

    def _pieces(self, asked: Asked) -> Pieces:
        """The text's, and after them those that were written."""
        check_tail(asked, self.model)
        pieces = pieces_of(self.tokenizer, check_text(asked.text), asked.second)
        return pieces if not asked.tail else continued(self.tokenizer, pieces, asked.tail)

    def _input(self, ids: list[int], segments: list[int], second: str | None) -> dict[str, Any]:
        device = device_of(self.model)
        given = {"input_ids": tensor(ids, device)}
        if second is not None and hasattr(self.model.config, "type_vocab_size"):
            given["token_type_ids"] = tensor(segments, device)
        return given


class Answerer:
    """An encoder and a decoder: T5, BART, Marian and their kind."""

    def __init__(self, foreign: Foreign) -> None:
        self.model: Any = foreign.model
        self.tokenizer, self.name = foreign.tokenizer, foreign.name
        self.longest = longest_of(foreign)
        self.notes = [foreign.note] if foreign.note else []

    def scene(self, asked: Asked) -> Scene:
        """Encoder, decoder, cross-attention; the decoder's rows are the pieces that it wrote."""
        line = check_text(asked.text)
        check_tail(asked, self.model)
        pieces = pieces_of(self.tokenizer, line)
        check_length(len(pieces.ids), self.longest, asked.most)
        read, written = self._decoder(asked, pieces.ids)
        check_length(len(read), self.longest, asked.most)
        device = device_of(self.model)
        given = {
            "input_ids": tensor(pieces.ids, device),
            "decoder_input_ids": tensor(read, device),
        }
        with torch.inference_mode(), record(self.model, asked.changes) as trace:
            self.model(**given)
        texts, known = texts_of_ids(self.tokenizer, written), set(self.tokenizer.all_special_ids)
        halves = {
            "encoder": Half.of(pieces),
            "decoder": Half(texts, [i in known for i in written], read),
        }
        answer = self.tokenizer.decode(written, skip_special_tokens=True)
        more: dict[str, Any] = {"texts": [line], "model": self.name, "notes": self.notes}
        scene = scene_of_halves(trace, halves, title=line, output={"text": answer}, **more)
        if asked.measured:
            scene = with_effects(scene, self.model, partial(self.model, **given))
        return with_decoder_keys(scene, texts)

    def next_words(self, asked: Asked) -> NextWords | None:
        """After `target`, which may be empty."""
        if not hasattr(self.model, "generate"):
            return None
        check_tail(asked, self.model)
        pieces, device = pieces_of(self.tokenizer, check_text(asked.text)), device_of(self.model)
        check_length(len(pieces.ids), self.longest, asked.most)
        read = [self._start(), *self._ids(asked.target or ""), *asked.tail]
        check_length(len(read), self.longest, asked.most)
        with torch.inference_mode(), record(self.model, asked.changes):
            result = self.model(
                input_ids=tensor(pieces.ids, device), decoder_input_ids=tensor(read, device)
            )
        logits: Any = getattr(result, "logits", None)
        if not _says_words(self.model, logits):
            return None
        return NextWords(logits[0, -1].float().cpu(), lambda ids: texts_of_ids(self.tokenizer, ids))

    def _decoder(self, asked: Asked, ids: list[int]) -> tuple[list[int], list[int]]:
        """What the decoder reads, and what it writes at the same rows."""
        start = self._start()
        if asked.tail:
            written = [*self._ids(asked.target or ""), *asked.tail]
            return [start, *written][: len(written)], written
        if asked.target is None and not hasattr(self.model, "generate"):
            return [start, *ids][:-1], list(ids)  # classifiers and bodies read the text again
        if asked.target is not None and "SequenceClassification" in type(self.model).__name__:
            raise UserError(f"{self.name} reads one text, twice: leave the second half's out.")
        if asked.target is not None:
            written = self._ids(asked.target)
        else:
            with torch.inference_mode(), record(self.model, asked.changes):
                found = self.model.generate(
                    tensor(ids, device_of(self.model)),
                    max_new_tokens=MOST_WRITTEN,
                    num_beams=1,
                    do_sample=False,
                )
            return found[0, :-1].tolist(), found[0, 1:].tolist()
        end = self.model.config.eos_token_id
        written = [*written, *([end] if isinstance(end, int) else [])]
        return [start, *written][: len(written)], written

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _start(self) -> int:
        config = self.model.config
        for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
            value = getattr(config, name, None)
            if isinstance(value, int):
                return value
        return 0


def _says_words(model: Any, logits: Any) -> bool:
    """Are these (B, T, V) over the words, and no labels of a classifier's or tagger's?"""
    if not isinstance(logits, Tensor) or logits.dim() != 3:
        return False
    return logits.shape[-1] >= (n_words(model) or 0)


def device_of(model: nn.Module) -> torch.device:
    """Where the model's parameters are."""
    return next(model.parameters()).device
