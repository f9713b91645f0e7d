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
from torch import nn

from everyhead.errors import UserError
from everyhead.explorer.effects import with_effects
from everyhead.explorer.scene import Scene
from everyhead.explorer.sessions import (
    Asked,
    Half,
    NextWords,
    Session,
    check_length,
    check_tail,
    check_text,
    scene_of_halves,
    tensor,
)
from everyhead.explorer.spans import Pieces, continued, pieces_of, texts_of_ids
from everyhead.explorer.translators import with_decoder_keys
from everyhead.inspection.trace import record
from everyhead.weights.foreign import Foreign

MOST_WRITTEN = 64
# Their positions are counted from behind the padding's id.
OFFSET = ("roberta", "xlm-roberta", "camembert")


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
            logits = getattr(self.model(**given), "logits", None)
        half = trace.places()[0].split(".")[0]
        halves = {half: Half.of(pieces)}
        texts = [line] if asked.second is None else [line, asked.second]
        more: dict[str, Any] = {"texts": texts, "model": self.name, "notes": self.notes}
        if half == "decoder" and logits is not None:
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
        logits = getattr(result, "logits", None)
        if logits is None or logits.dim() != 3 or not trace.places()[0].startswith("decoder"):
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
        check_tail(asked, self.model)
        pieces, device = pieces_of(self.tokenizer, check_text(asked.text)), device_of(self.model)
        check_length(len(pieces.ids), self.longest, asked.most)
        read = [self._start(), *self._ids(asked.target or ""), *asked.tail]
        with torch.inference_mode(), record(self.model, asked.changes):
            result = self.model(
                input_ids=tensor(pieces.ids, device), decoder_input_ids=tensor(read, device)
            )
        logits = getattr(result, "logits", None)
        if logits is None:
            return None
        return NextWords(logits[0, -1].float().cpu(), lambda ids: texts_of_ids(self.tokenizer, ids))

    def _decoder(self, asked: Asked, ids: list[int]) -> tuple[list[int], list[int]]:
        """What the decoder reads, and what it writes at the same rows."""
        start = self._start()
        if asked.tail:
            written = [*self._ids(asked.target or ""), *asked.tail]
            return [start, *written][: len(written)], written
        if asked.target is not None or not hasattr(self.model, "generate"):
            written = self._ids(asked.text if asked.target is None else asked.target)
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


def longest_of(foreign: Foreign) -> int | None:
    """Most tokens that the model can read, where it or its tokenizer says so."""
    config = foreign.model.config
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    if getattr(config, "model_type", "") in OFFSET:
        unused = (getattr(config, "pad_token_id", None) or 0) + 1
        limits = [n - unused if isinstance(n, int) else n for n in limits]
    limits.append(getattr(foreign.tokenizer, "model_max_length", None))
    known = [n for n in limits if isinstance(n, int) and 0 < n < 10**7]
    if getattr(config, "model_type", "") in ("t5", "mt5", "umt5"):  # relative: any length
        known = []
    return min(known) if known else None


def device_of(model: nn.Module) -> torch.device:
    """Where the model's parameters are."""
    return next(model.parameters()).device
