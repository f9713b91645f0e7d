"""Heads for tasks over any body that reads text: a label for a text, for each token, or a span.

    text:   logits = W · pooled + b          pooled: tanh(W_p h_CLS), h_CLS, a mean, or the last h
    token:  logits_t = W · h_t + b           Devlin et al. 2019 (1810.04805) section 5.3
    span:   start_t, end_t = W · h_t + b     section 4.2: the answer runs from one to the other

The last real token stands for the text where a decoder reads it (Radford et al. 2018).
"""

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)
from torch import Tensor, nn

from everyhead.layers.dropout import Dropout
from everyhead.layers.linear import Linear
from everyhead.models.bert import Bert, BertConfig, first_real
from everyhead.models.family import Family
from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.models.llama import Llama, LlamaConfig
from everyhead.models.longformer import Longformer, LongformerConfig

# Families that can stand below a head, and whether they read from left to right alone.
BODIES: dict[str, tuple[type[nn.Module], type[BaseModel], bool]] = {
    "bert": (Bert, BertConfig, False),
    "longformer": (Longformer, LongformerConfig, False),
    "gpt2": (GPT2, GPT2Config, True),
    "llama": (Llama, LlamaConfig, True),
}
Pooling = Literal["pooler", "first", "mean", "last"]
Problem = Literal["single_label_classification", "multi_label_classification", "regression"]


class BodyConfig(BaseModel):
    """Which body, and its own numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str
    body: SerializeAsAny[BaseModel]
    dropout: float = Field(0.0, ge=0, lt=1)  # of what the head reads

    @field_validator("family")
    @classmethod
    def _known(cls, family: str) -> str:
        if family not in BODIES:
            raise ValueError(f"no body {family!r}; there are {', '.join(BODIES)}")
        return family

    @field_validator("body", mode="before")
    @classmethod
    def _of_family(cls, body: Any, info: ValidationInfo) -> Any:
        family = info.data.get("family")
        return body if family is None else BODIES[family][1].model_validate(body)

    @model_validator(mode="after")
    def _bare(self) -> "BodyConfig":
        """The body's own heads go (a decoder's is its table); the pooler stays if it is read."""
        heads: dict[str, bool] = {"tie_output": True}
        if isinstance(self.body, BertConfig):
            reads = getattr(self, "pooling", "none") in ("pooler", None)
            heads = {"gap_head": False, "next_sentence_head": False, "pooler": reads}
        if isinstance(self.body, LongformerConfig):
            heads["global_first"] = hasattr(self, "pooling")  # of a text, not of its tokens
        object.__setattr__(self, "body", self.body.model_copy(update=heads))
        return self

    @property
    def vocab_size(self) -> int:
        return int(self.body.vocab_size)  # type: ignore[attr-defined]

    @property
    def d_model(self) -> int:
        return int(self.body.d_model)  # type: ignore[attr-defined]

    @property
    def max_len(self) -> int:
        return int(self.body.max_len)  # type: ignore[attr-defined]

    @property
    def pad_id(self) -> int | None:
        return getattr(self.body, "pad_id", None)


class LabelsConfig(BodyConfig):
    """A body and the names of its labels, in the order of the logits."""

    labels: tuple[str, ...] = Field(min_length=1)

    @field_validator("labels")
    @classmethod
    def _distinct(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(labels)) < len(labels):
            raise ValueError("every label needs a name of its own")
        return labels


class SequenceClassifierConfig(LabelsConfig):
    """pooling: what stands for the whole text; by default the pooler, of a decoder the last."""

    pooling: Pooling | None = None
    problem: Problem = "single_label_classification"

    @model_validator(mode="after")
    def _resolve(self) -> "SequenceClassifierConfig":
        if self.pooling is None:
            causal = BODIES[self.family][2]
            object.__setattr__(self, "pooling", "last" if causal else "pooler")
        if self.pooling == "pooler" and not getattr(self.body, "pooler", False):
            raise ValueError(f"pooling 'pooler' needs a pooler, which this {self.family} lacks")
        return self


class TokenClassifierConfig(LabelsConfig):
    """A body and its labels, O and B-… and I-… where entities are tagged."""


class SpanReaderConfig(BodyConfig):
    """A body that reads a question and a text."""


class _Task(nn.Module):
    """A body and one map above it."""

    def __init__(self, config: Any, n_out: int) -> None:
        super().__init__()
        self.config = config
        make, _, causal = BODIES[config.family]
        self.body: Any = make(config.body)
        self.head_dropout = Dropout(config.dropout)
        self.classifier = Linear(config.body.d_model, n_out, bias=not causal)
        nn.init.normal_(self.classifier.weight, std=0.02)

    def hidden(self, ids: Tensor, mask: Tensor | None = None, **more: Tensor | None) -> Tensor:
        """ids int64 (B, T), mask bool (B, T) True = token → the body's states (B, T, C).

        more: what the body takes besides: segments; global_tokens (Longformer).
        """
        given = {name: x for name, x in more.items() if x is not None}
        return self.body.hidden(ids, mask, **given)

    def head(self, hidden: Tensor) -> Tensor:
        """(…, C) → (…, labels)."""
        return self.classifier(self.head_dropout(hidden))


class SequenceClassifier(_Task):
    """One label, several, or one number for a text."""

    def __init__(self, config: SequenceClassifierConfig) -> None:
        super().__init__(config, len(config.labels))

    def pooled(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden (B, T, C), mask bool (B, T) → what stands for each text, (B, C)."""
        pooling = self.config.pooling
        if pooling == "pooler":
            return self.body.pooled(hidden, mask)
        if pooling == "first":
            return first_real(hidden, mask)
        return mean_of(hidden, mask) if pooling == "mean" else last_real(hidden, mask)

    def forward(self, ids: Tensor, mask: Tensor | None = None, **more: Tensor | None) -> Tensor:
        """Logits (B, labels)."""
        return self.head(self.pooled(self.hidden(ids, mask, **more), mask))


class TokenClassifier(_Task):
    """A label for every token."""

    def __init__(self, config: TokenClassifierConfig) -> None:
        super().__init__(config, len(config.labels))

    def forward(self, ids: Tensor, mask: Tensor | None = None, **more: Tensor | None) -> Tensor:
        """Logits (B, T, labels)."""
        return self.head(self.hidden(ids, mask, **more))


class SpanReader(_Task):
    """Where an answer begins and where it ends."""

    def __init__(self, config: SpanReaderConfig) -> None:
        super().__init__(config, 2)

    def forward(self, ids: Tensor, mask: Tensor | None = None, **more: Tensor | None) -> Tensor:
        """Logits (B, T, 2): of the answer's first token and of its last."""
        return self.head(self.hidden(ids, mask, **more))


def last_real(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """hidden (B, T, C) at each row's last real token: (B, C)."""
    if mask is None:
        return hidden[:, -1]
    places = mask.long().cumsum(1).argmax(1)  # the first place where all have been counted
    return hidden.gather(1, places[:, None, None].expand(-1, 1, hidden.shape[2]))[:, 0]


def mean_of(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of hidden (B, T, C) over each row's real tokens: (B, C), zeros where none is."""
    if mask is None:
        return hidden.mean(1)
    real = mask[..., None].to(hidden.dtype)
    return (hidden * real).sum(1) / real.sum(1).clamp_min(1)


FAMILIES: dict[str, Family] = {
    "sequence-classifier": Family(SequenceClassifier, SequenceClassifierConfig, {}),
    "token-classifier": Family(TokenClassifier, TokenClassifierConfig, {}),
    "span-reader": Family(SpanReader, SpanReaderConfig, {}),
}
