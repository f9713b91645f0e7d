"""What stands in a gap: the likeliest pieces behind each [MASK] of a line.

    p(v | line) = softmax(head(h_t))_v, t the place of the gap      Devlin et al. 2019 (1810.04805)

Several gaps of a line are answered each for itself, the others standing open.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from everyhead.data.batching import pad_rows
from everyhead.errors import UserError
from everyhead.generation.reading import PIECES, groups_by_length, tell_cut

TYPED = "[MASK]"  # stands for the tokenizer's own piece, whatever that is


class Candidate(NamedTuple):
    """A piece, its id, its probability, and the line with it in the gap."""

    piece: str
    id: int
    probability: float
    line: str


class Filled(NamedTuple):
    """A line, and for each of its gaps the candidates, the likeliest first."""

    text: str
    gaps: list[list[Candidate]]


@torch.no_grad()
def fill(
    model: Any, tokenizer: Any, lines: Sequence[str], *, top: int = 5, batch_tokens: int = PIECES
) -> list[Filled]:
    """The `top` likeliest pieces for every gap of every line.

    Args:
        model: one with a head for gaps (Bert).
        tokenizer: the one that `everyhead.load` gave with it.
        lines: each with at least one [MASK].

    Raises:
        UserError: no head for gaps, no mask in the vocabulary, a line without a gap, or a gap
            beyond the longest text that the model reads.
    """
    mask_id = _mask_of(model, tokenizer)
    if top < 1:
        raise UserError(f"top is how many candidates to show, 1 or more; got {top}.")
    read = [_ids(number, line, model, tokenizer) for number, line in enumerate(lines, 1)]
    ids, long = [row for row, _ in read], [i for i, (_, cut) in enumerate(read) if cut]
    tell_cut(long, len(lines), model.config.max_len, "is not read, and decides nothing")
    device = next(model.parameters()).device
    found: list[Filled] = [Filled("", [])] * len(lines)
    for rows in groups_by_length([len(row) for row in ids], batch_tokens):
        padded, real = pad_rows([ids[i] for i in rows], tokenizer.pad_id or 0)
        padded, real = padded.to(device), real.to(device)
        hidden = model.hidden(padded, real)
        open_places = padded == mask_id
        logits = model.head(hidden[open_places]).float()  # (gaps, V)
        best = logits.softmax(-1).topk(min(top, logits.shape[-1]))
        counts = open_places.sum(1).tolist()
        values, indices = best.values.split(counts), best.indices.split(counts)
        for i, p, numbers in zip(rows, values, indices, strict=True):
            found[i] = _filled(lines[i], tokenizer, p.tolist(), numbers.tolist())
    return found


def _mask_of(model: Any, tokenizer: Any) -> int:
    if getattr(model, "gap_head", None) is None:
        raise UserError(
            f"This {type(model).__name__} has no head for gaps, so it fills none; open a BERT with "
            "one, such as a run of pretrain-bert."
        )
    if tokenizer is None or tokenizer.mask_id is None:
        raise UserError("The model's tokenizer has no mask, so there is nothing to be filled.")
    return int(tokenizer.mask_id)


def _ids(number: int, line: str, model: Any, tokenizer: Any) -> tuple[list[int], bool]:
    """The line's ids, and whether it was cut behind its last gap."""
    mask = tokenizer.piece(tokenizer.mask_id)
    longest = model.config.max_len
    text = line.replace(TYPED, mask)
    ids: list[int] = tokenizer.encode(text, max_len=longest)
    whole = tokenizer.encode(text)
    gaps = whole.count(tokenizer.mask_id)
    if not gaps:
        raise UserError(f"Line {number} has no {mask}: write it where the gap is. Line: {line!r}")
    if ids.count(tokenizer.mask_id) < gaps:
        raise UserError(
            f"Line {number} has a gap beyond the {longest} tokens that the model reads: shorten it."
        )
    return ids, len(ids) < len(whole)


def _filled(
    line: str, tokenizer: Any, probabilities: list[list[float]], numbers: list[list[int]]
) -> Filled:
    mask = tokenizer.piece(tokenizer.mask_id)
    parts = line.replace(TYPED, mask).split(mask)
    gaps = []
    for gap, (values, ids) in enumerate(zip(probabilities, numbers, strict=True)):
        candidates = []
        for value, number in zip(values, ids, strict=True):
            piece = tokenizer.decode([number], skip_special=False).strip()
            piece = piece or tokenizer.piece(number)
            candidates.append(Candidate(piece, number, value, _with(parts, gap, piece, mask)))
        gaps.append(candidates)
    return Filled(line, gaps)


def _with(parts: list[str], gap: int, piece: str, mask: str) -> str:
    """The line with the piece in this gap; "##ing" joins the word before it."""
    before, after = mask.join(parts[: gap + 1]), mask.join(parts[gap + 1 :])
    if piece.startswith("##"):
        return before.rstrip() + piece.removeprefix("##") + after
    return before + piece + after
