"""Our translation models as sessions: the sentence is translated, then read along in one pass."""

from dataclasses import replace
from typing import Any

import torch

from everyhead.data.sides import sides_of
from everyhead.explorer.effects import with_effects
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
from everyhead.generation.translate import Options, translate_stream
from everyhead.inspection.trace import record

END = "(end)"
START = "(start)"


class Translator:
    """A run of ours, or any model of two halves with its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, *, name: str, options: Options) -> None:
        self.model, self.tokenizer, self.name = model, sides_of(tokenizer), name
        self._given, self.options = tokenizer, options

    def scene(self, asked: Asked) -> Scene:
        """Encoder, decoder and cross-attention; rows of the decoder are the pieces it wrote."""
        source, target, ended, text = self._texts(asked)
        config, device = self.model.config, next(self.model.parameters()).device
        check_length(max(len(source) + 1, len(target) + ended), config.max_len, asked.most)
        written = [config.pad_id, *target][: len(target) + ended]
        given = tensor([*source, config.eos_id], device), tensor(written, device)
        with torch.inference_mode(), record(self.model, asked.changes) as trace:
            self.model.hidden(*given)
        spans = self.tokenizer.target.pieces_to_spans(target) + [END] * ended
        halves = {
            "encoder": Half(
                [*self.tokenizer.source.pieces_to_spans(source), END],
                [False] * len(source) + [True],
                [*source, config.eos_id],
            ),
            "decoder": Half(spans, [False] * len(target) + [True] * ended, written),
        }
        line = check_text(asked.text)
        more: dict[str, Any] = {"texts": [line], "model": self.name, "output": {"text": text}}
        scene = scene_of_halves(trace, halves, title=line, **more)
        if asked.measured:
            scene = with_effects(scene, self.model, lambda: self.model.hidden(*given))
        return with_decoder_keys(scene, spans)

    def next_words(self, asked: Asked) -> NextWords | None:
        """After `target`, which may be empty."""
        source = self.tokenizer.source.encode(check_text(asked.text))
        check_tail(asked, self.model)
        config, device = self.model.config, next(self.model.parameters()).device
        target = [*self.tokenizer.target.encode(asked.target or ""), *asked.tail]
        check_length(max(len(source), len(target)) + 1, config.max_len, asked.most)
        with torch.inference_mode(), record(self.model, asked.changes):
            logits = self.model(
                tensor([*source, config.eos_id], device), tensor([config.pad_id, *target], device)
            )
        return NextWords(logits[0, -1].float().cpu(), self._written)

    def _written(self, ids: list[int]) -> list[str]:
        return [
            END if i == self.model.config.eos_id else self.tokenizer.target.pieces_to_spans([i])[0]
            for i in ids
        ]

    def _texts(self, asked: Asked) -> tuple[list[int], list[int], bool, str]:
        """Ids of the source, ids of the target, whether that has ended, and its text."""
        line = check_text(asked.text)
        source = self.tokenizer.source.encode(line)
        check_length(len(source) + 1, self.model.config.max_len, asked.most)
        check_tail(asked, self.model)
        if asked.tail:
            target = [*self.tokenizer.target.encode(asked.target or ""), *asked.tail]
            ended = target[-1] == self.model.config.eos_id
            target = target[: len(target) - ended]
            return source, target, ended, self.tokenizer.target.decode(target)
        if asked.target is not None:
            return source, self.tokenizer.target.encode(asked.target), True, asked.target
        with record(self.model, asked.changes):
            found = next(translate_stream(self.model, self._given, [line], self.options))[0]
        return source, found.hypothesis.ids, found.hypothesis.ended, found.text


def with_decoder_keys(scene: Scene, written: list[str]) -> Scene:
    """A decoder stands on what it has read, one step behind what it writes."""
    read = [START, *written][: len(written)]
    groups = [
        replace(group, rows=read, columns=read) if group.name == "decoder" else group
        for group in scene.groups
    ]
    return replace(scene, groups=groups)
