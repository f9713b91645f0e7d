"""Which tokens each call was given, and the rows of a search that wrote a sequence.

Beams are moved from step to step. Each call knows where its rows came from, so the calls are a tree
whose nodes are tokens; a finished sequence is a path in it, found by its tokens from the root.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from everyhead.inspection.places import Place
from everyhead.inspection.steps import Call
from everyhead.layers.embeddings import TokenEmbedding


class Tokens:
    """The ids that last entered a token embedding of the model."""

    def __init__(self, model: nn.Module) -> None:
        self._tables = _tables(model)
        self._last: Tensor | None = None

    def hooks(self) -> list[Callable[[], None]]:
        """Start; what comes back ends it."""
        return [table.register_forward_pre_hook(self._keep).remove for table in self._tables]

    def _keep(self, module: nn.Module, args: Any) -> None:
        self._last = args[0] if args and isinstance(args[0], Tensor) else None

    def of(self, n_rows: int, length: int) -> Tensor | None:
        """(R, T) ids of a call of this shape; None where other ids or none were seen."""
        ids = self._last
        if ids is None or ids.shape != (n_rows, length):
            return None
        return ids.detach().clone()


def _tables(model: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, TokenEmbedding):
            found.append(module)
        elif hasattr(module, "get_input_embeddings"):
            try:
                table = cast(Any, module).get_input_embeddings()
            except (NotImplementedError, AttributeError):
                continue
            if isinstance(table, nn.Module):
                found.append(table)
    return list(dict.fromkeys(found))


def followed(place: Place, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
    """For each call the rows (B,) that wrote the sequences, −1 where one had ended.

    A sequence may leave out the first token, which only starts a decoder, and may end in tokens
    that were never read.

    Raises:
        LookupError: the calls' tokens are unknown, or a sequence is not among them.
    """
    calls = place.calls
    written = _written(calls)
    leaves = [_leaf(written, list(sequence), place.name) for sequence in sequences]
    device = calls[0].q.device
    rows = [[-1] * len(sequences) for _ in calls]
    for number, (last, row) in enumerate(leaves):
        for call in range(last, -1, -1):
            rows[call][number] = row
            parents = calls[call].parents
            row = row if parents is None else int(parents[row])
    last_used = max(call for call, _ in leaves)
    return [torch.tensor(one, device=device) for one in rows[: last_used + 1]]


def _written(calls: Sequence[Call]) -> list[list[tuple[int, ...]]]:
    """For each call and row the tokens from the beginning."""
    written: list[list[tuple[int, ...]]] = []
    for number, call in enumerate(calls):
        if call.ids is None:
            raise LookupError("the tokens of the steps were not seen, so no row can be followed")
        rows = [tuple(ids) for ids in call.ids.tolist()]
        if number:
            before = written[-1]
            parents = range(len(rows)) if call.parents is None else call.parents.tolist()
            rows = [before[parent] + ids for parent, ids in zip(parents, rows, strict=True)]
        written.append(rows)
    return written


def _leaf(written: list[list[tuple[int, ...]]], sequence: list[int], name: str) -> tuple[int, int]:
    """The last call, and its row, that had read this sequence's beginning and no other's."""
    for skipped in (0, 1):
        best: tuple[int, int] | None = None
        for call, rows in enumerate(written):
            for row, ids in enumerate(rows):
                ids = ids[skipped:]
                if len(ids) <= len(sequence) and list(ids) == sequence[: len(ids)]:
                    best = (call, row)
                    break
        # All but its last token was read; what is padded behind a sequence is its end repeated.
        if best is not None and _is_end(sequence[len(written[best[0]][best[1]][skipped:]) :]):
            return best
    raise LookupError(f"the rows at {name} did not write {sequence[:8]} …, so they cannot be shown")


def _is_end(rest: list[int]) -> bool:
    """One token that was written and never read, and padding."""
    return len(set(rest[1:])) <= 1
