"""One word's vectors across contexts, layer by layer: does the model tell the senses apart?

    cos(x, y) = x·y / (|x| |y|)
    agreement = share of the sentences whose nearest neighbour by cosine has the same sense

Vectors of a word written in several pieces are their mean. Ethayarajh 2019 (1909.00512) compares
one word across contexts by cosine; Wiedemann et al. 2019 (1909.10430) name the sense by the nearest
neighbour. With two senses of equal number chance is (n/2 − 1) / (n − 1), a little below one half.
"""

import re
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from everyhead.inspection.trace import Trace


def word_pieces(
    text: str, word: str, spans: Sequence[tuple[int, int]], *, occurrence: int = 0
) -> list[int]:
    """Which pieces spell a word of the text.

    Args:
        spans: where each piece stands in the text, [start, end), as a tokenizer's
            `offset_mapping`; (0, 0) for special tokens.
        occurrence: which one, counted from 0; case is ignored, whole words only.

    Raises:
        ValueError: the word is not there that often.
    """
    found = []
    # In text.lower() places would shift: some capitals have longer small letters.
    for match in re.finditer(f"(?=({re.escape(word)}))", text, re.IGNORECASE):
        begin, end = match.span(1)
        if not any(c.isalnum() for c in text[max(0, begin - 1) : begin] + text[end : end + 1]):
            found.append((begin, end))
    if not word or len(found) <= occurrence:
        raise ValueError(f"{word!r} stands {len(found)} times in {text!r}; asked was {occurrence}")
    start, end = found[occurrence]
    return [i for i, (a, b) in enumerate(spans) if a < b and a < end and b > start]


def word_vectors(
    trace: Trace, pieces: Sequence[int], half: str = "encoder", *, batch: int = 0
) -> Tensor:
    """The word's state after the embedding and after each layer, (layers + 1, C).

    Raises:
        LookupError: the trace has no such half, or nothing was recorded.
        ValueError: no pieces, or one beyond the text.
    """
    names = [name for name in trace.layers() if name.split(".")[0] == half]
    if not names:
        raise LookupError(f"no layers in {half!r}; there are {', '.join(trace.layers())}")
    states = [trace.residual(name)[batch] for name in names]  # (T, C) each
    if not pieces or not 0 <= min(pieces) <= max(pieces) < states[0].shape[0]:
        raise ValueError(f"pieces must be places of the {states[0].shape[0]}; got {list(pieces)}")
    return torch.stack([each[list(pieces)].mean(0) for each in states])


def cosines(vectors: Tensor) -> Tensor:
    """(N, C) or (L, N, C) → cosine of each pair, (N, N) or (L, N, N); 0 beside a zero vector."""
    wide = vectors.double()
    unit = wide / wide.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(wide.dtype).tiny)
    return unit @ unit.transpose(-2, -1)


def sense_agreement(vectors: Tensor, senses: Sequence[Hashable]) -> list[float]:
    """For each layer of (L, N, C), the share of words whose nearest other word has their sense.

    Where several are equally near (to 1e-9: one word has one embedding, whatever its context), each
    counts as its share, so that what cannot be told apart scores as chance does.

    Raises:
        ValueError: fewer than two words, or another number of senses.
    """
    if vectors.dim() != 3 or vectors.shape[1] != len(senses) or len(senses) < 2:
        raise ValueError(
            f"vectors (layers, words, width) and one sense a word, two words at least; got "
            f"{tuple(vectors.shape)} and {len(senses)}"
        )
    near = cosines(vectors)  # (L, N, N)
    near.diagonal(dim1=-2, dim2=-1).fill_(-torch.inf)
    nearest = near >= near.amax(-1, keepdim=True) - 1e-9
    same = torch.tensor([[a == b for b in senses] for a in senses], device=vectors.device)
    share = (nearest & same).sum(-1) / nearest.sum(-1)  # (L, N)
    return share.double().mean(-1).tolist()


def sense_gap(vectors: Tensor, senses: Sequence[Hashable]) -> list[tuple[float, float]]:
    """For each layer the mean cosine (within a sense, between senses).

    Raises:
        ValueError: a sense with fewer than two words, or only one sense.
    """
    same = torch.tensor([[a == b for b in senses] for a in senses], device=vectors.device)
    others = ~torch.eye(len(senses), dtype=torch.bool, device=vectors.device)
    if not (same & others).any(-1).all() or same.all():
        raise ValueError("there must be two senses at least, each with two words at least")
    near = cosines(vectors)
    return [(float(layer[same & others].mean()), float(layer[~same].mean())) for layer in near]
