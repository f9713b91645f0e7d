"""Sentences to vectors: lines of like length side by side, in the order they came."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from everyhead.data.batching import pad_rows
from everyhead.errors import UserError
from everyhead.generation.reading import PIECES, encoded_within, groups_by_length
from everyhead.models.sentences import SentenceRule, sentence_vectors


@torch.no_grad()
def embed(
    model: Any,
    tokenizer: Any,
    lines: Sequence[str],
    *,
    rule: SentenceRule | None = None,
    batch_tokens: int = PIECES,
) -> Tensor:
    """A vector for each line: float32 (N, C), on the CPU.

    Args:
        model: one that reads text and has `hidden` (Bert, GPT2, Llama, a task's body under it).
        tokenizer: the one that `everyhead.load` gave with it.
        lines: texts; an empty one has a vector too, of its special pieces.
        rule: what `everyhead.sentence_rule(folder)` says; by default the mean of the tokens'
            states, scaled to length 1. Then the dot product of two vectors is their cosine.
        batch_tokens: rows × longest that are read at once.

    Raises:
        UserError: the model has no such states.
    """
    rule = rule or SentenceRule()
    body = getattr(model, "body", model)
    if not hasattr(body, "hidden") or hasattr(body, "encode"):
        raise UserError(
            f"A {type(model).__name__} gives no vectors of sentences; open an encoder such as "
            "minilm, or a decoder."
        )
    ids = encoded(tokenizer, lines, rule, body.config.max_len)
    found = torch.zeros(len(lines), body.config.d_model)
    device = next(body.parameters()).device
    some = [i for i, row in enumerate(ids) if row]  # no token at all: a vector of zeros
    for group in groups_by_length([len(ids[i]) for i in some], batch_tokens):
        rows = [some[i] for i in group]
        padded, real = pad_rows([ids[i] for i in rows], tokenizer.pad_id or 0)
        hidden = body.hidden(padded.to(device), real.to(device))
        found[rows] = sentence_vectors(hidden.float(), real.to(device), rule).cpu()
    return found


def encoded(
    tokenizer: Any, lines: Sequence[str], rule: SentenceRule, longest: int
) -> list[list[int]]:
    """Each line's ids, cut to what the rule and the model take; a warning counts those cut.

    Where the rule is silent the tokenizer says where texts are cut: recent sentence-transformers
    write `max_seq_length` there and nowhere else.
    """
    texts = [rule.prompt + line.strip() for line in lines]
    texts = [text.lower() for text in texts] if rule.lowercase else texts
    told = tokenizer.config.get("model_max_length")
    limit = min(rule.max_len or (told if isinstance(told, int) else longest), longest)
    return encoded_within(tokenizer, texts, limit, "is not in their vectors")
