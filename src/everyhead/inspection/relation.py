"""How a call of an attention goes on from those before it, told by its keys.

The keys of a pass grow and stay: a call brings along those before it and adds its own. A cache with
a window brings only the last of them. Where rows were moved in between (beams, finished sentences),
each is found again by the keys that it brings.
"""

from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from everyhead.layers.additive import Step as StepOfMany


class Step(Enum):
    """How a call stands to the calls before it."""

    FRESH = "it begins a pass"
    NEXT = "it adds rows to the pass"
    MOVED = "its rows are others than the pass's"
    LOST = "its rows cannot be told"


class Relation(NamedTuple):
    """A step, for moved rows where each was before (R,), and whether keys were taken back."""

    step: Step
    parents: Tensor | None = None
    cropped: bool = False


def relation_of(
    kept: Tensor | None, k: Tensor, n_new: int, *, lost: bool, memory: Tensor | None = None
) -> Relation:
    """A call with keys k (R, K, S, D), the last n_new its own, after one with the keys `kept`.

    lost: the rows of the call before could not be told; memory (R', …): the keys of the sentences
    that they read, where the batch is the same.
    """
    n_before = k.shape[2] - n_new
    if n_before == 0:
        return Relation(Step.FRESH)
    if kept is None:  # a cache that was begun before the recording counts as fresh
        return Relation(Step.LOST if lost else Step.FRESH)
    before = k[:, :, :n_before]
    if kept.shape[2] < n_before or kept.shape[1::2] != k.shape[1::2]:
        return Relation(Step.LOST)
    if kept.shape[2] > n_before and torch.equal(before, kept[: before.shape[0], :, :n_before]):
        return Relation(Step.LOST, cropped=True)
    kept = kept[:, :, kept.shape[2] - n_before :]
    if before.shape == kept.shape and torch.equal(before, kept):
        return Relation(Step.NEXT)
    parents = _found_again(before, kept, memory)
    return Relation(Step.LOST) if parents is None else Relation(Step.MOVED, parents)


def told(step: StepOfMany | None, n_before: int, n_rows: int, rows_before: int) -> Relation:
    """By what an attention itself says, which is asked step by step over the same keys.

    n_before: steps that are kept; n_rows: of this call, rows_before: of the one before.
    """
    if step is None or step.number == 0:
        return Relation(Step.FRESH)
    if n_before == 0:  # a pass that was begun before the recording
        return Relation(Step.FRESH)
    if step.number != n_before:
        return Relation(Step.LOST, cropped=step.number < n_before)
    if step.parents is not None:
        return Relation(Step.MOVED, step.parents)
    return Relation(Step.NEXT if n_rows == rows_before else Step.LOST)


def _found_again(before: Tensor, kept: Tensor, memory: Tensor | None) -> Tensor | None:
    """(R,) for each row of keys one of `kept` that is equal to it; None where there is none."""
    likely = (before[:, None, :, -1] == kept[None, :, :, -1]).flatten(2).all(-1)  # (R, kept R)
    sentence = _sentences(memory, before.shape[0], kept.shape[0])
    rows = []
    for row, candidates in enumerate(likely):
        same = [c for c in candidates.nonzero()[:, 0].tolist() if torch.equal(before[row], kept[c])]
        if not same:
            return None
        # Beams of two sentences may have written the same; a row stays with its sentence.
        rows.append(next((c for c in same if sentence and sentence[c] == sentence[row]), same[0]))
    return torch.tensor(rows, device=before.device)


def _sentences(memory: Tensor | None, n_rows: int, n_before: int) -> list[int] | None:
    """For each row the first that reads the same memory (n, …), n rows or rows a sentence."""
    if memory is None or n_rows != n_before or n_rows % memory.shape[0]:
        return None
    same = (memory[:, None] == memory[None]).flatten(2).all(-1)  # (n, n)
    of = same.byte().argmax(-1).repeat_interleave(n_rows // memory.shape[0])
    return [int(first) for first in of]
