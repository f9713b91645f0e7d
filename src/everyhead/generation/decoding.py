"""The decoding loop: logits → a token → logits …, all rows of a batch one token at a time.

A row ends at a token that ends texts, at a stop string, or at its longest length; it then leaves
the batch. The prompt is read once, whatever the number of texts that are wanted after it.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch

from everyhead.generation.decoder import Decoder, checked, device_of, read
from everyhead.generation.open_rows import smaller
from everyhead.generation.sampling import Sampler
from everyhead.generation.search import inference
from everyhead.generation.text_stream import Writing

# Ended by the model, by a stop string, by the number that was asked for, by the model's max_len.
Reason = Literal["end", "stop", "length", "context"]


class Row:
    """One text that is being written: its ids without what ended it, and why it ended."""

    def __init__(
        self,
        limit: int,
        ends: frozenset[int] = frozenset(),
        *,
        writing: Writing | None = None,
        at_limit: Reason = "length",
    ) -> None:
        """limit: most new tokens, at least 1; at_limit: the reason to give there."""
        self.limit, self.ends, self.writing, self.at_limit = limit, ends, writing, at_limit
        self.ids: list[int] = []
        self.reason: Reason | None = None

    def take(self, number: int) -> str:
        """Add a token; → the text that may be shown now."""
        if self.reason is not None:
            return ""
        if number in self.ends:
            return self._finish("end")
        self.ids.append(number)
        piece = "" if self.writing is None else self.writing.push(number)
        if self.writing is not None and self.writing.stopped:
            self.reason = "stop"
        elif len(self.ids) >= self.limit:
            piece += self._finish(self.at_limit)
        return piece

    def _finish(self, reason: Reason) -> str:
        rest = "" if self.writing is None else self.writing.close()
        stopped = self.writing is not None and self.writing.stopped
        self.reason = "stop" if stopped else reason
        return rest


def write(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[Row],
    *,
    sampler: Sampler,
    vocab_size: int | None = None,
) -> Iterator[list[str]]:
    """Write rows until all have ended; after each token what each row may show now.

    Args:
        prompts: ids, at least one each.
        rows: as many for each prompt as the others have, next to one another.
        vocab_size: of the tokenizer, where the model has room for more ids; those are never chosen.

    Raises:
        ValueError: the model's logits are not finite.
    """
    order = torch.arange(len(rows), device=device_of(model))
    open_rows = list(range(len(rows)))
    with inference(model):
        longest, n_new = max(map(len, prompts)), max(row.limit for row in rows)
        cache = model.cache(longest + n_new, rows=len(prompts), device=order.device)
        logits = checked(model.head(read(model, prompts, cache))[:, :vocab_size])  # (n, V)
        if len(rows) > len(prompts):
            several = order // (len(rows) // len(prompts))
            cache.reorder(several)
            logits = logits.index_select(0, several)
    while True:
        with inference(model):
            chosen = sampler.choose(logits)  # (B,)
        pieces = [""] * len(rows)
        for i, number in zip(open_rows, chosen.tolist(), strict=True):
            pieces[i] = rows[i].take(number)
        yield pieces
        done = [rows[i].reason is not None for i in open_rows]
        if all(done):
            return
        with inference(model):
            stay = smaller(torch.tensor(done, device=order.device)) if any(done) else None
            if stay is not None:
                cache.reorder(stay)
                sampler.select(stay)
                chosen = chosen.index_select(0, stay)
                open_rows = [open_rows[i] for i in stay.tolist()]
            hidden = model.hidden(chosen[:, None], cache=cache)  # (B, 1, C)
            logits = checked(model.head(hidden[:, -1])[:, :vocab_size])
