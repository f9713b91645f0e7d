"""How decoders that read no memory are read by the laws: GPT-2, Llama, whatever has their verbs.

Known by its verbs (`hidden`, `head`, `cache`, ids in), so a family added tomorrow is checked too.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from everyhead.inspection.check_own import Tools, ordinary_ids
from everyhead.inspection.subjects import Batch, NotApplicable, Side, Subject
from everyhead.layers.packed import PackedLinear

VERBS = ("hidden", "head", "cache", "config")
NO_LIMIT = 512  # tokens that a model without a longest length is tried with


def subject_of_decoder(model: Any, tokenizer: Any, tools: Tools | None) -> Subject | None:
    """The adapter for a model that goes on with a text, None for others."""
    if not all(hasattr(model, verb) for verb in VERBS) or hasattr(model, "encode"):
        return None
    takes = set(inspect.signature(model.forward).parameters)
    if "ids" not in takes or "pixels" in takes:
        return None
    return DecoderSubject(model, tokenizer, tools=tools)


class DecoderSubject(Subject):
    """Hidden states and the logits of the next piece, at once or by a cache."""

    holds_anything = True

    def __init__(self, model: Any, tokenizer: Any = None, *, tools: Tools | None = None) -> None:
        self.model, self.tokenizer, self.tools = model, tokenizer, tools or Tools()
        self.name = type(model).__name__
        self.exempt = getattr(model, "exempt", {})
        c = model.config
        given = [getattr(c, name, None) for name in ("pad_id", "bos_id", "eos_id")]
        pad_id: int = c.vocab_size - 1 if given[0] is None else given[0]
        ids = ordinary_ids(c.vocab_size, {pad_id, *(n for n in given if n is not None)})
        longest = getattr(c, "max_len", None) or NO_LIMIT
        self.sides = (Side("tokens", ids, pad_id, longest, causal=True),)

    def with_model(self, model: nn.Module) -> Subject:
        return type(self)(model, self.tokenizer, tools=self.tools)

    def read(self, batch: Batch) -> dict[str, Tensor]:
        hidden = self.model.hidden(batch.ids["tokens"], batch.real["tokens"])
        return {"hidden": hidden, "logits": self.model.head(hidden)}

    def steps(
        self, batch: Batch, widths: Sequence[int], move: tuple[int, Tensor] | None = None
    ) -> tuple[str, Tensor]:
        model, ids, real = self.model, batch.ids["tokens"], batch.real["tokens"]
        cache = model.cache(ids.shape[1], rows=len(ids), device=ids.device)
        pieces = ids.split(list(widths), 1)
        shown: Sequence[Tensor | None] = [None] * len(pieces)
        if real is not None:
            shown = real.split(list(widths), 1)
        hidden = []
        for i, (piece, seen) in enumerate(zip(pieces, shown, strict=True)):
            if move is not None and i == move[0]:
                cache.reorder(move[1])
            hidden.append(model.hidden(piece, seen, cache=cache))
        return "logits", model.head(torch.cat(hidden, 1))

    def saved_and_loaded(self) -> nn.Module:
        self._plain()
        if self.tools.save_and_load is None:
            raise NotApplicable("No way to save it was handed over.")
        return self.tools.save_and_load(self.model, self.tokenizer)

    def ties(self) -> list[tuple[str, str]]:
        self._plain()
        tied = getattr(self.model.config, "tie_output", False)
        embed = next(
            (n for n, _ in self.model.named_parameters() if n.endswith("embed.weight")), ""
        )
        return [("output_head.weight", embed)] if tied and embed else []

    def _plain(self) -> None:
        """Raises NotApplicable: `everyhead.prepare` made it, whose weights lie as kernels want."""
        if any(isinstance(part, PackedLinear) for part in self.model.modules()):
            raise NotApplicable("It is prepared for inference: try the model it was made from.")
