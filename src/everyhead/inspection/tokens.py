"""Which tokens each call was given, and the rows of a search that wrote a sequence.

Beams are moved from step to step. Each call knows where its rows came from, so the calls are a tree
whose nodes are tokens; a finished sequence is a path in it, found by its tokens from the root.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from everyhead.inspection.places import Place
from everyhead.inspection.states import Wrap
from everyhead.inspection.steps import Call
from everyhead.layers.embeddings import TokenEmbedding


class Tokens:
    """The ids that last entered a token embedding of the model."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._tables = _tables(modules)
        self._last: Tensor | None = None

    def hooks(self, here: Wrap) -> list[Callable[[], None]]:
        """Start; what comes back ends it. `here` keeps a hook to the threads that look."""
        return [
            table.register_forward_pre_hook(here(self._keep, module=table)).remove
            for table in self._tables
        ]

    def _keep(self, module: nn.Module, args: Any) -> None:
        ids = args[0] if args and isinstance(args[0], Tensor) else None
        self._last = None if ids is None else ids.detach().clone()

    def of(self, n_rows: int, length: int) -> Tensor | None:
        """(R, T) ids of a call of this shape; None where other ids or none were seen."""
        ids = self._last
        return ids if ids is not None and ids.shape == (n_rows, length) else None


def _tables(modules: Iterable[nn.Module]) -> list[nn.Module]:
    modules, found = list(modules), list[nn.Module]()
    kinds = set(map(type, modules))  # few: most modules are told by their class
    own = {kind for kind in kinds if issubclass(kind, TokenEmbedding)}
    knowing = {kind for kind in kinds - own if hasattr(kind, "get_input_embeddings")}
    for module in modules:
        if type(module) in own:
            found.append(module)
        elif type(module) in knowing:
            try:
                table = cast(Any, module).get_input_embeddings()
            except (NotImplementedError, AttributeError):
                continue
            if isinstance(table, nn.Module):
                found.append(table)
    return list(dict.fromkeys(found))


def followed(place: Place, sequences: Sequence[Sequence[int]], each: int = 1) -> list[Tensor]:
    """For each call the rows (B,) that wrote the sequences, −1 where one had ended.

    The sequences stand in the order of the batch, `each` of them a sentence. One may leave out the
    first token, which only starts a decoder, and may end in a token that was never read.

    Raises:
        LookupError: the calls' tokens are unknown, or a sequence is not among them.
    """
    calls = place.calls
    rows = [[-1] * len(sequences) for _ in calls]
    tree = Tree.of(calls, max(1, len(sequences) // each))
    last_used = 0
    for number, sequence in enumerate(sequences):
        leaf = tree.leaf(list(sequence), number // each)
        if leaf is None:
            raise LookupError(
                f"the rows at {place.name} did not write {list(sequence)[:8]} …: give the ids of "
                "what was generated while the model was recorded"
            )
        last, row = leaf
        last_used = max(last, last_used)
        for call in range(last, -1, -1):
            rows[call][number] = row
            parents = calls[call].parents
            row = row if parents is None else int(parents[row])
    return [torch.tensor(one, device=calls[0].q.device) for one in rows[: last_used + 1]]


class Tree(NamedTuple):
    """For each call and row the tokens from the beginning, and the sentence they belong to."""

    written: list[list[tuple[int, ...]]]
    sentences: list[list[int]]

    @classmethod
    def of(cls, calls: Sequence[Call], n_sentences: int) -> "Tree":
        written: list[list[tuple[int, ...]]] = []
        sentences: list[list[int]] = []
        for number, call in enumerate(calls):
            if call.ids is None:
                raise LookupError("the tokens of the steps were not seen: no row can be followed")
            rows = [tuple(ids) for ids in call.ids.tolist()]
            of = [row * n_sentences // len(rows) for row in range(len(rows))]
            if number:
                parents = range(len(rows)) if call.parents is None else call.parents.tolist()
                rows = [written[-1][p] + ids for p, ids in zip(parents, rows, strict=True)]
                of = [sentences[-1][p] for p in parents]
            written.append(rows)
            sentences.append(of)
        return cls(written, sentences)

    def leaf(self, sequence: list[int], sentence: int) -> tuple[int, int] | None:
        """The last call, and its row, that had read the beginning of this sequence."""
        for skipped in (0, 1):
            best: tuple[int, int] | None = None
            for call, rows in enumerate(self.written):
                for row, ids in enumerate(rows):
                    read = list(ids[skipped:])
                    if self.sentences[call][row] == sentence and read == sequence[: len(read)]:
                        best = (call, row)
                        break
            if best is not None and _is_end(sequence[len(self.written[best[0]][0]) - skipped :]):
                return best
        return None


def _is_end(rest: list[int]) -> bool:
    """One token that was written and never read, and padding behind it, which is all alike."""
    return len(set(rest[1:])) <= 1
