"""Answers to questions about pictures, and what a picture is likest, by the models of pictures.

answer: a₁ a₂ … [SEP]      each piece the likeliest after the picture, the question and those
                           before it (greedy)
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyhead.data.text_and_pictures import TextAndPictures
from everyhead.errors import UserError

MOST_PIECES = 16
# WordPiece reads each Chinese character as a word of its own, and writes words with blanks between.
BETWEEN_HAN = re.compile(r"(?<=[\u3400-\u9fff\uf900-\ufaff]) (?=[\u3400-\u9fff\uf900-\ufaff])")


class Written(NamedTuple):
    """An answer and the product of its pieces' probabilities, the end included."""

    text: str
    probability: float


@torch.inference_mode()
def answer(
    model: Any, companion: TextAndPictures, pixels: Tensor | None, questions: Sequence[str]
) -> list[Written]:
    """One answer a question; pixels (B, ch, H, W), or None for a model that sees no picture.

    Raises:
        UserError: a question that is too long for the model, or blank.
    """
    tokenizer, device = companion.text, next(model.parameters()).device
    rows = [_question(model, companion, text) for text in questions]
    longest = max(map(len, rows), default=0)
    pad = tokenizer.pad_id or 0
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows], device=device)
    real = torch.tensor(
        [[False] * (longest - len(row)) + [True] * len(row) for row in rows], device=device
    )
    room = model.config.max_len - longest
    most, cache = min(MOST_PIECES, room), model.cache(longest + room)
    hidden = model.hidden(None if pixels is None else pixels.to(device), ids, real, cache=cache)
    written: list[list[int]] = [[] for _ in rows]
    log_p, open_rows = torch.zeros(len(rows)), [True] * len(rows)
    for step in range(most + 1):  # the last one may only end
        best = model.head(hidden[:, -1]).float().log_softmax(-1).max(-1)
        pieces, values = best.indices.tolist(), best.values.tolist()
        for i, (piece, value) in enumerate(zip(pieces, values, strict=True)):
            if open_rows[i]:
                log_p[i] += value
                open_rows[i] = piece != model.config.eos_id
                written[i] += [piece] * (open_rows[i] and step < most)
        if not any(open_rows) or step == most:
            break
        hidden = model.hidden(None, best.indices[:, None], cache=cache)
    texts = (BETWEEN_HAN.sub("", tokenizer.decode(row)) for row in written)
    return [Written(text, p) for text, p in zip(texts, log_p.exp().tolist(), strict=True)]


def _question(model: Any, companion: TextAndPictures, text: str) -> list[int]:
    ids, limit = companion.text.encode(text, literal=True), model.config.max_len
    if len(ids) >= limit:
        raise UserError(
            f"The question {text[:60]!r} has {len(ids)} pieces and the model takes {limit - 1}, "
            "so that an answer fits behind it: ask shorter."
        )
    return ids


@torch.inference_mode()
def class_probabilities(model: Any, pixels: Tensor) -> Tensor:
    """pixels (B, ch, H, W) → (B, n_classes)."""
    return model(pixels.to(next(model.parameters()).device)).float().softmax(-1).cpu()


@torch.inference_mode()
def text_probabilities(
    model: Any, companion: TextAndPictures, pixels: Tensor, texts: Sequence[str]
) -> Tensor:
    """pixels (B, ch, H, W) → (B, A): which of A texts each picture matches, by CLIP.

    Raises:
        UserError: a text that is too long for the model.
    """
    device, limit = next(model.parameters()).device, model.config.max_len
    rows = [companion.text.encode(text, literal=True) for text in texts]
    for text, row in zip(texts, rows, strict=True):
        if len(row) > limit:
            raise UserError(
                f"The text {text[:60]!r} has {len(row)} pieces and the model takes {limit}: "
                "shorten it."
            )
    features = [model.text_features(torch.tensor([row], device=device)) for row in rows]
    logits = model.logits(model.image_features(pixels.to(device)), torch.cat(features))
    return logits.float().softmax(-1).cpu()
