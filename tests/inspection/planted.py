"""Ten kinds of bugs that toolkits had in public, each planted in a model that is right without it.

An attention of one's own enters a model of transformers through its registry of attentions; other
bugs are subclasses, or a part of one of everyhead's models that is replaced.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    BertForMaskedLM,
    BertModel,
    GPT2LMHeadModel,
    OPTConfig,
    OPTForCausalLM,
)
from transformers.masking_utils import sdpa_mask

from everyhead.models.transformer import Transformer
from tests.inspection.twelve import ENDS, TINY, build
from tests.laws.families import build as build_own

Weigh = Callable[[Tensor, Tensor | None], Tensor]  # scores (B, H, T, S), mask → weights


def with_attention(name: str, family: str, weigh: Weigh) -> Any:
    """The family's model, whose attention weighs its scores like this."""

    def attend(
        module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **more: Any
    ) -> tuple[Tensor, None]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = q @ k.transpose(-2, -1) * (more.get("scaling") or q.shape[-1] ** -0.5)
        return (weigh(scores, mask) @ v).transpose(1, 2).contiguous(), None

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, sdpa_mask)
    model = build(family)
    model.set_attn_implementation(name)
    return model


def seen_below(scores: Tensor, diagonal: int) -> Tensor:
    return torch.ones(scores.shape[-2:], dtype=torch.bool).tril(diagonal)


def right_attention(scores: Tensor, mask: Tensor | None) -> Tensor:
    """No bug: the two that follow differ from it by their bug alone."""
    seen = seen_below(scores, scores.shape[-1] - scores.shape[-2]) if mask is None else mask
    return scores.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num(0)


def top_left(scores: Tensor, mask: Tensor | None) -> Tensor:
    """`is_causal=True` beside a cache: query 0 of a step sees the first key alone."""
    return scores.masked_fill(~seen_below(scores, 0), float("-inf")).softmax(-1)


def leak_by_one(scores: Tensor, mask: Tensor | None) -> Tensor:
    """triu(2) for triu(1)."""
    offset = scores.shape[-1] - scores.shape[-2]
    return scores.masked_fill(~seen_below(scores, offset + 1), float("-inf")).softmax(-1)


def counting_pads(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The denominator goes over padding too."""
    powers = scores.exp()
    kept = powers if mask is None else powers * mask
    return kept / powers.sum(-1, keepdim=True)


def both_ways(scores: Tensor, mask: Tensor | None) -> Tensor:
    """No bug, for an encoder."""
    return (
        (scores if mask is None else scores.masked_fill(~mask, float("-inf")))
        .softmax(-1)
        .nan_to_num(0)
    )


class OppositePolarity(BertForMaskedLM):
    """True = hide, where the model takes 1 = may look."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **more: Any) -> Any:
        mask = None if attention_mask is None else 1 - attention_mask
        return super().forward(input_ids, attention_mask=mask, **more)


class PositionsFromZero(OPTForCausalLM):
    """Positions are 0, 1, 2 … whatever the padding."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **more: Any) -> Any:
        past = more.get("cache") or more.get("past_key_values")
        start = 0 if past is None else past.get_seq_length()
        places = torch.arange(start, start + input_ids.shape[1])[None].expand_as(input_ids)
        more["position_ids"] = places
        return super().forward(input_ids, attention_mask=attention_mask, **more)


class PadInTheMean(BertModel):
    """A sentence's vector is the mean over all places."""

    def forward(self, *given: Any, **more: Any) -> Any:
        out = super().forward(*given, **more)
        out.pooler_output = out.last_hidden_state.mean(1)
        return out


class UntiedByLoading(GPT2LMHeadModel):
    """The head is a copy of the table after loading."""

    @classmethod
    def from_pretrained(cls, *given: Any, **more: Any) -> Any:
        model = super().from_pretrained(*given, **more)
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        return model


class LossCountingPads(GPT2LMHeadModel):
    """The loss is divided by all places of the batch."""

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,  # generate looks whether it is named
        **more: Any,
    ) -> Any:
        out = super().forward(input_ids, position_ids=position_ids, **more)
        if labels is not None:
            logits, wanted = out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            out.loss = F.cross_entropy(logits, wanted, reduction="sum") / wanted.numel()
        return out


class AlwaysDropping(nn.Module):
    """`F.dropout(x, p)`, whose `training` is true unless somebody says otherwise."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.1)


def as_class(kind: type, family: str) -> Any:
    """The family's model with this class's methods."""
    model = build(family)
    model.__class__ = kind
    return model


def bert_model() -> Any:
    model = build("bert")
    found = PadInTheMean(model.config).eval()
    found.load_state_dict(model.bert.state_dict(), strict=False)
    return found


def opt(kind: type = OPTForCausalLM) -> Any:
    torch.manual_seed(0)
    sizes = {"ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64}
    model = kind(OPTConfig(**TINY, **ENDS, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    return model


def dropping() -> Transformer:
    model = build_own("transformer-post")
    model.embed_dropout = AlwaysDropping()
    return model
