"""A decoder that reads no memory, as generation sees it, and the prompts that enter it.

Prompts of unequal length stand in one batch with their ends side by side: what fills the rest is
on the left, is hidden by the mask, and takes no position. A long prompt enters in pieces; only its
last row goes through the head.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from everyhead.errors import UserError
from everyhead.layers.cache import TextCache

# Positions of all rows that enter a model at once; more would only hold more memory.
AT_ONCE = 4096


class Decoder(Protocol):
    """The verbs that generation uses: any model that has them can write."""

    training: bool

    @property
    def config(self) -> Any: ...  # with max_len and eos_id
    def modules(self) -> Iterator[nn.Module]: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def train(self, mode: bool = True) -> object: ...
    def hidden(
        self, ids: Tensor, mask: Tensor | None = None, *, cache: TextCache | None = None
    ) -> Tensor: ...
    def head(self, hidden: Tensor) -> Tensor: ...
    def cache(
        self, max_len: int, rows: int = 1, device: torch.device | str | None = None
    ) -> TextCache: ...


def writes(model: nn.Module) -> bool:
    """Is it a decoder that can go on with a text: `hidden`, `head` and `cache`, and no encoder?"""
    verbs = all(hasattr(model, verb) for verb in ("hidden", "head", "cache"))
    return verbs and not hasattr(model, "encode")


def device_of(model: Decoder) -> torch.device:
    """Where the model computes: where its first table lies."""
    for part in model.modules():
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            return tensor.device
    return torch.device("cpu")


def longest(model: Decoder) -> int:
    """Tokens of the longest text that the model reads step by step."""
    return int(getattr(model, "longest", model.config.max_len))


def room(model: Decoder, prompt: Sequence[int]) -> int:
    """How many tokens the model can add to a prompt before its longest length is reached.

    Raises:
        UserError: there is no room.
    """
    limit = longest(model)
    if len(prompt) >= limit:
        raise UserError(
            f"The prompt has {len(prompt)} tokens and the model reads at most {limit}, its answer "
            "counted: shorten the prompt."
        )
    return limit - len(prompt)


def left_padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows of ids with their ends side by side: int64 (B, T), and where they are real, bool."""
    longest = max(map(len, rows), default=0)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    real = torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, row in enumerate(rows):
        start = longest - len(row)
        ids[i, start:] = torch.tensor(row, dtype=torch.long)
        real[i, start:] = True
    return ids.to(device), real.to(device)


def read(
    model: Decoder, rows: Sequence[Sequence[int]], cache: TextCache, at_once: int = AT_ONCE
) -> Tensor:
    """Let rows of ids enter the cache, in pieces; → the hidden state (B, C) after each row."""
    ids, real = left_padded(rows, device_of(model))
    whole = bool(real.all())
    width = max(1, at_once // max(1, ids.shape[0]))
    if cache.piece is not None and cache.length + ids.shape[1] > model.config.max_len:
        width = min(width, cache.piece)
    hidden = None
    for start in range(0, ids.shape[1], width):
        piece = slice(start, start + width)
        mask = None if whole else real[:, piece]
        hidden = model.hidden(ids[:, piece], mask, cache=cache)  # (B, t, C)
    if hidden is None:
        raise ValueError("there is nothing to read: each row needs at least one id")
    return hidden[:, -1]


def checked(logits: Tensor) -> Tensor:
    """The logits (B, V) as float32.

    Raises:
        ValueError: they are no numbers.
    """
    logits = logits.float()
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise ValueError(
            "the model's logits are not finite numbers, so nothing can be chosen by them: its "
            "weights are broken, or its training diverged"
        )
    return logits
