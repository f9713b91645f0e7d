"""How everyhead's own models of pictures are read by the laws.

A picture is a side of one number, which stands for a picture of noise; it has one size, so there is
nothing to pad. Texts beside it are a side as any other.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from everyhead.inspection.check_own import Tools, ordinary_ids
from everyhead.inspection.subjects import Batch, NotApplicable, Row, Side, Subject
from everyhead.layers.packed import PackedLinear
from everyhead.models.clip import Clip
from everyhead.models.picture_convolution import PictureConvolution
from everyhead.models.vision_text import VisionText
from everyhead.models.vision_transformer import VisionTransformer

PICTURE = Side("picture", tuple(range(8)), paddable=False)


def subject_of_pictures(model: Any, tokenizer: Any, tools: Tools | None) -> Subject | None:
    """The adapter for a model that looks at pictures, None for others."""
    kinds: dict[type[nn.Module], type[PictureSubject]] = {
        VisionTransformer: PictureSubject,
        PictureConvolution: PictureSubject,
        Clip: TowersSubject,
        VisionText: VisionTextSubject,
    }
    kind = next((kinds[each] for each in kinds if isinstance(model, each)), None)
    return None if kind is None else kind(model, tokenizer, tools=tools)


class PictureSubject(Subject):
    """A Vision Transformer or a convolution, and what all models of pictures share."""

    holds_anything = True

    def __init__(self, model: Any, tokenizer: Any = None, *, tools: Tools | None = None) -> None:
        self.model, self.tokenizer, self.tools = model, tokenizer, tools or Tools()
        self.name = type(model).__name__
        self.sides = (PICTURE,)

    def with_model(self, model: nn.Module) -> Subject:
        return type(self)(model, self.tokenizer, tools=self.tools)

    def read(self, batch: Batch) -> dict[str, Tensor]:
        hidden = self.model.hidden(self.pixels(batch))
        found = {"picture": hidden.flatten(1)}
        return found | ({"logits": self.model.head(hidden)} if self.model.config.n_classes else {})

    def pixels(self, batch: Batch) -> Tensor:
        """Noise, one picture for each number."""
        c = self.model.config
        made = [
            torch.randn(c.n_channels, *c.image_size, generator=torch.Generator().manual_seed(i))
            for i in batch.ids["picture"][:, 0].tolist()
        ]
        return torch.stack(made).to(self.device, self.dtype)

    def saved_and_loaded(self) -> nn.Module:
        if any(isinstance(part, PackedLinear) for part in self.model.modules()):
            raise NotApplicable("It is prepared for inference: try the model it was made from.")
        if self.tools.save_and_load is None:
            raise NotApplicable("No way to save it was handed over.")
        return self.tools.save_and_load(self.model, self.tokenizer)


class TowersSubject(PictureSubject):
    """CLIP: a picture, and a text that ends in eos_id."""

    def __init__(self, model: Any, tokenizer: Any = None, *, tools: Tools | None = None) -> None:
        super().__init__(model, tokenizer, tools=tools)
        c = model.config
        end = c.vocab_size - 1 if c.eos_id is None else c.eos_id
        ids = ordinary_ids(c.vocab_size, {c.bos_id, c.pad_id, end})
        text = Side("tokens", ids, c.pad_id, c.max_len, causal=True, last=end)
        self.sides = (text, PICTURE)

    def read(self, batch: Batch) -> dict[str, Tensor]:
        ids, real = batch.ids["tokens"], batch.real["tokens"]
        images = self.model.image_features(self.pixels(batch))
        texts = torch.zeros_like(images)  # of a text without an end, which the model refuses
        ends = torch.eq(ids, self.sides[0].last or 0)
        ended = (ends if real is None else ends & real).any(1)
        if bool(ended.any()):
            some = None if real is None else real[ended]
            texts[ended] = self.model.text_features(ids[ended], some)
        return {
            "text states": self.model.text_hidden(ids, real),
            "image features": images,
            "text features": texts,
            "match": (images * texts).sum(1, keepdim=True),
        }

    def steps(
        self, batch: Batch, widths: Sequence[int], move: tuple[int, Tensor] | None = None
    ) -> tuple[str, Tensor]:
        raise NotApplicable("It reads a text once and writes none, so it keeps no cache.")


class VisionTextSubject(PictureSubject):
    """VisionText: words after a picture."""

    def __init__(self, model: Any, tokenizer: Any = None, *, tools: Tools | None = None) -> None:
        super().__init__(model, tokenizer, tools=tools)
        c = model.config
        ids = ordinary_ids(c.vocab_size, {c.sep_id, c.eos_id, c.pad_id})
        self.sides = (Side("tokens", ids, c.pad_id, c.max_len, causal=True), PICTURE)

    def read(self, batch: Batch) -> dict[str, Tensor]:
        ids, real = batch.ids["tokens"], batch.real["tokens"]
        hidden = self.model.hidden(self.pixels(batch), ids, real)
        return {"hidden": hidden, "logits": self.model.head(hidden)}

    def steps(
        self, batch: Batch, widths: Sequence[int], move: tuple[int, Tensor] | None = None
    ) -> tuple[str, Tensor]:
        ids, real = batch.ids["tokens"], batch.real["tokens"]
        cache, hidden, start = self.model.cache(ids.shape[1]), [], 0
        for i, width in enumerate(widths):
            if move is not None and i == move[0]:
                cache.reorder(move[1])
            here = slice(start, start + width)
            mask, pixels = None if real is None else real[:, here], None
            if not start:
                pixels = self.pixels(batch)
            hidden.append(self.model.hidden(pixels, ids[:, here], mask, cache=cache))
            start += width
        return "logits", self.model.head(torch.cat(hidden, 1))

    def following(self, row: Row, ids: tuple[int, ...]) -> tuple[Row, int]:
        return {**row, "tokens": (*row["tokens"], *ids[:-1])}, len(row["tokens"]) - 1

    def ties(self) -> list[tuple[str, str]]:
        tied = self.model.config.tie_output
        return [("output_head.weight", "embed.weight")] if tied else []
