"""How everyhead's own models are read by the laws: two halves, source and target.

What other floors do (searching, saving, summing the loss) is handed over as `Tools`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from everyhead.inspection.subjects import Batch, NotApplicable, Row, Side, Subject
from everyhead.layers.packed import PackedLinear

# (model, source, source_mask, most tokens) → the ids found for each row
Search = Callable[[Any, Tensor, Tensor | None, int], list[list[int]]]


@dataclass(frozen=True)
class Tools:
    """What the laws need of floors that inspection does not know.

    search: by name, each with one beam. save_and_load: the model as it comes back from a folder.
    loss: (model, ids by side, masks by side) → Σ −log p of the target and how many tokens.
    """

    search: Mapping[str, Search] = field(default_factory=dict)
    save_and_load: Callable[[Any, Any], nn.Module] | None = None
    loss: Callable[..., tuple[float, int]] | None = None


class EncoderDecoderSubject(Subject):
    """A model with `encode`, `decode`, `head` and `cache`."""

    holds_anything = True

    def __init__(self, model: Any, tokenizer: Any = None, *, tools: Tools | None = None) -> None:
        self.model, self.tokenizer, self.tools = model, tokenizer, tools or Tools()
        self.name = type(model).__name__
        c = model.config
        special = {c.pad_id, c.source_pad_id, c.eos_id}
        source_size = c.source_vocab_size or c.vocab_size
        self.sides = (
            Side("source", ordinary_ids(source_size, special), c.source_pad_id, c.max_len),
            Side("target", ordinary_ids(c.vocab_size, special), c.pad_id, c.max_len, causal=True),
        )

    def with_model(self, model: nn.Module) -> Subject:
        return EncoderDecoderSubject(model, self.tokenizer, tools=self.tools)

    def read(self, batch: Batch) -> dict[str, Tensor]:
        ids, real = batch.ids, batch.real
        hidden = self.model.hidden(ids["source"], ids["target"], real["source"], real["target"])
        return {"hidden": hidden, "logits": self.model.head(hidden)}

    def steps(
        self, batch: Batch, widths: Sequence[int], move: tuple[int, Tensor] | None = None
    ) -> tuple[str, Tensor]:
        model, target = self.model, batch.ids["target"]
        source, real = batch.ids["source"], batch.real["source"]
        if move is not None:  # the rows are beams of one sentence, whose memory they share
            source, real = source[:1], None
        memory = model.encode(source, real)
        cache = model.cache(memory, target.shape[1])
        hidden = []
        for i, piece in enumerate(target.split(list(widths), 1)):
            if move is not None and i == move[0]:
                cache.reorder(move[1])
            hidden.append(model.decode(piece, memory, cache=cache))
        return "logits", model.head(torch.cat(hidden, 1))

    def searches(self, batch: Batch, n: int) -> dict[str, list[tuple[int, ...]]]:
        if not self.tools.search:
            raise NotApplicable("No search was handed over.")
        eos, found = self.model.config.eos_id, {}
        for name, search in self.tools.search.items():
            rows = search(self.model, batch.ids["source"], batch.real["source"], n)
            found[name] = [tuple(ids) + (eos,) * (len(ids) < n) for ids in rows]
        return found

    def following(self, row: Row, ids: tuple[int, ...]) -> tuple[Row, int]:
        start = self.model.config.pad_id  # decoding starts from padding
        return {**row, "target": (start, *ids[:-1])}, 0

    def loss(self, batch: Batch) -> tuple[float, float]:
        self._plain()
        if self.tools.loss is None:
            raise NotApplicable("No loss was handed over.")
        total, n = self.tools.loss(self.model, batch.ids, batch.real)
        return total / max(n, 1), n

    def saved_and_loaded(self) -> nn.Module:
        self._plain()
        if self.tools.save_and_load is None:
            raise NotApplicable("No way to save it was handed over.")
        return self.tools.save_and_load(self.model, self.tokenizer)

    def _plain(self) -> None:
        """Raises NotApplicable: `everyhead.prepare` made it, whose weights lie as kernels want."""
        if any(isinstance(part, PackedLinear) for part in self.model.modules()):
            raise NotApplicable("It is prepared for inference: try the model it was made from.")

    def ties(self) -> list[tuple[str, str]]:
        self._plain()
        c = self.model.config
        pairs = [("output_head.weight", "target_embed.weight")] if c.tie_output else []
        if c.source_vocab_size is None:
            pairs.append(("source_embed.weight", "target_embed.weight"))
        return pairs


def ordinary_ids(size: int, special: set[int]) -> tuple[int, ...]:
    """Up to 64 ids without a meaning of their own, from the whole vocabulary."""
    usable = [i for i in range(size) if i not in special]
    return tuple(usable[:: max(1, len(usable) // 64)][:64]) or (0,)
