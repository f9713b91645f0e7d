"""How everyhead's own readers of text are read by the laws: Bert, and the heads of tasks.

One side of tokens; a task's body may be a decoder, whose states see nothing later.
"""

from typing import Any

from torch import Tensor, nn

from everyhead.inspection.check_own import Tools, ordinary_ids
from everyhead.inspection.subjects import Batch, NotApplicable, Side, Subject
from everyhead.layers.packed import PackedLinear
from everyhead.models.bert import Bert
from everyhead.models.tasks import BODIES, SequenceClassifier, SpanReader, TokenClassifier


def subject_of_reader(model: Any, tokenizer: Any, tools: Tools | None) -> Subject | None:
    """The adapter for a model that reads a text and writes none, None for others."""
    if isinstance(model, Bert):
        return BertSubject(model, tokenizer, tools=tools)
    if isinstance(model, SequenceClassifier | TokenClassifier | SpanReader):
        return TaskSubject(model, tokenizer, tools=tools)
    return None


class BertSubject(Subject):
    """Hidden states, and what each head that is there makes of them."""

    holds_anything = True

    def __init__(self, model: Any, tokenizer: Any = None, *, tools: Tools | None = None) -> None:
        self.model, self.tokenizer, self.tools = model, tokenizer, tools or Tools()
        self.name = type(model).__name__
        c = model.config
        pad_id = c.pad_id or 0
        ids = ordinary_ids(c.vocab_size, {pad_id})
        self.sides = (Side("tokens", ids, pad_id, c.max_len, causal=self.causal_body),)

    @property
    def causal_body(self) -> bool:
        """Do its states see nothing later?"""
        return False

    def with_model(self, model: nn.Module) -> Subject:
        return type(self)(model, self.tokenizer, tools=self.tools)

    def read(self, batch: Batch) -> dict[str, Tensor]:
        model, real = self.model, batch.real["tokens"]
        hidden = model.hidden(batch.ids["tokens"], real)
        found = {"hidden": hidden}
        if model.gap_head is not None:
            found["logits"] = model.head(hidden)
        if model.pooler is not None:
            found["pooled"] = model.pooled(hidden, real)
        if model.next_sentence_head is not None:
            found["next sentence"] = model.next_sentence(hidden, real)
        return found

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
        tied = self.model.config.tie_output and self.model.gap_head is not None
        return [("gap_head.weight", "token_embed.weight")] if tied else []


class TaskSubject(BertSubject):
    """A body under the head of a task."""

    @property
    def causal_body(self) -> bool:
        return BODIES[self.model.config.family][2]

    def read(self, batch: Batch) -> dict[str, Tensor]:
        ids, real = batch.ids["tokens"], batch.real["tokens"]
        return {"hidden": self.model.hidden(ids, real), "logits": self.model(ids, real)}

    def ties(self) -> list[tuple[str, str]]:
        self._plain()
        return []
