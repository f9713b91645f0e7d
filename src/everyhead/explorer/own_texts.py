"""everyhead's own models of one stack as sessions: Bert and its tasks, and text decoders.

An encoder reads a text, or two at once; a decoder continues one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from everyhead.errors import UserError
from everyhead.explorer.effects import with_effects
from everyhead.explorer.readers import TextReader
from everyhead.explorer.scene import Scene
from everyhead.explorer.sessions import (
    Asked,
    Half,
    NextWords,
    check_length,
    check_tail,
    check_text,
    scene_of_halves,
    tensor,
)
from everyhead.explorer.spans import Pieces
from everyhead.inspection.trace import record
from everyhead.models.bert import Bert
from everyhead.models.tasks import SequenceClassifier
from everyhead.models.transformer_xl import TransformerXL


class OwnTextReader(TextReader):
    """A model of ours with `hidden`, and the tokenizer that was opened with it.

    Raises:
        UserError: it has no tokenizer.
    """

    def __init__(self, model: Any, tokenizer: Any, *, name: str) -> None:
        if tokenizer is None:
            raise UserError(
                f"{name} has no tokenizer, so no text can be shown to it: put its tokenizer.json "
                "into the folder."
            )
        self.model, self.tokenizer, self.name, self.notes = model, tokenizer, name, []
        self.body: Any = getattr(model, "body", model)
        self.longest: int | None = getattr(self.body.config, "max_len", None)
        self.writes = not isinstance(self.body, Bert)

    def scene(self, asked: Asked) -> Scene:
        """One group of every layer; with a decoder's next words, or a classifier's class."""
        line = check_text(asked.text)
        pieces = self._pieces(asked)
        check_length(len(pieces.ids), self.longest, asked.most)
        run = self._run(pieces, asked.second)
        with torch.inference_mode(), record(self.body, asked.changes) as trace:
            logits = run()
        half = trace.places()[0].split(".")[0]
        texts = [line] if asked.second is None else [line, asked.second]
        more: dict[str, Any] = {"texts": texts, "model": self.name, "notes": self.notes}
        more |= self._said(logits)
        scene = scene_of_halves(trace, {half: Half.of(pieces)}, title=line, **more)
        return with_effects(scene, self.body, run) if asked.measured else scene

    def next_words(self, asked: Asked) -> NextWords | None:
        """Of a decoder."""
        if not self._continues:
            return None
        pieces = self._pieces(asked)
        check_length(len(pieces.ids), self.longest, asked.most)
        with torch.inference_mode(), record(self.body, asked.changes):
            logits = self._run(pieces, asked.second)()
        return NextWords(logits[0, -1].float().cpu(), self.tokenizer.spans)

    @property
    def _continues(self) -> bool:
        return self.writes and self.body is self.model

    def _pieces(self, asked: Asked) -> Pieces:
        text = check_text(asked.text)
        check_tail(asked, self.body)
        ids = self.tokenizer.encode(text, asked.second)
        segments = self.tokenizer.segments(text, asked.second)
        if not ids:
            raise UserError("The text has no piece that the model knows: there is nothing to see.")
        end = [segments[-1]] * len(asked.tail)
        ids, segments = [*ids, *asked.tail], [*segments, *end]
        special = [number in self.tokenizer.special_ids for number in ids]
        return Pieces(ids, self.tokenizer.spans(ids), special, segments)

    def _run(self, pieces: Pieces, second: str | None) -> Callable[[], Tensor]:
        device = next(self.model.parameters()).device
        given: dict[str, Any] = {}
        if second is not None and not self.writes:
            given["segments"] = tensor(pieces.segments, device)
        ids = tensor(pieces.ids, device)
        if isinstance(self.model, TransformerXL):
            return partial(_by_segments, self.model, ids)
        return partial(self.model, ids, **given)

    def _said(self, logits: Tensor) -> dict[str, Any]:
        """What comes out, for the scene."""
        if self._continues:
            best = logits[0, -1].float().softmax(-1).topk(3)
            words = [self.tokenizer.spans([number])[0] for number in best.indices.tolist()]
            return {"output": {"next": [*zip(words, best.values.tolist(), strict=True)]}}
        if isinstance(self.model, SequenceClassifier):
            share, number = logits[0].float().softmax(-1).max(-1)
            return {"output": {"text": f"{self.model.config.labels[int(number)]} {share:.1%}"}}
        return {}


def _by_segments(model: TransformerXL, ids: Tensor) -> Tensor:
    """Logits (1, L, V) of a text read as it was learnt from, segment by segment with a memory."""
    n = model.config.segment_len or ids.shape[1]
    cache = model.cache(ids.shape[1])
    return torch.cat([model.head(model.hidden(part, cache=cache)) for part in ids.split(n, 1)], 1)
