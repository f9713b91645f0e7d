"""Attention rollout: how much of each input token reaches each place after several layers.

    Ã_l = ½ A_l + ½ I, rows made to sum to 1         A_l: the mean (or maximum) over the heads
    rollout = Ã_L · … · Ã_2 · Ã_1                    (T, T)

The identity stands for the residual stream. Abnar & Zuidema 2020 (2005.00928) section 3. It is a
walk through weights alone: values, norms and feed-forwards are not in it.

A few rows of it need O(n) memory: they are multiplied from the last layer down, and each layer's
matrix is taken some rows at a time.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from everyhead.inspection.rows import Matrix, Source


def rollout(
    layers: Sequence[Source],
    rows: slice | Sequence[int] | None = None,
    *,
    heads: Sequence[Sequence[int] | None] | None = None,
    combine: Literal["mean", "max"] = "mean",
    residual: float = 0.5,
    batch: int = 0,
) -> Tensor:
    """Rows (t, T) of the rollout through self-attention layers, the first layer first; float64.

    Args:
        layers: `trace.stack("encoder.self")`, or arrays (H, T, T), NaN where a query may not look.
        rows: places after the last layer; all of them by default, which takes O(n²) memory.
        heads: for each layer the heads to combine, None for all.
        combine: the mean over the heads, or the maximum, which then is made to sum to 1.
        residual: the identity's share.
        batch: which text of a place's batch.

    Returns: each row sums to 1. A place that sees nothing keeps itself.

    Raises:
        ValueError: no layers, a matrix that is not square, or sizes that differ.
    """
    matrices = [Matrix(layer, batch=batch) for layer in layers]
    _check(matrices, heads, residual)
    n = matrices[0].n_keys
    chosen = torch.arange(n)
    chosen = chosen if rows is None else chosen[rows if isinstance(rows, slice) else list(rows)]
    reached = torch.zeros(len(chosen), n, dtype=torch.float64)
    reached[torch.arange(len(chosen)), chosen] = 1.0
    for number in reversed(range(len(matrices))):
        of = None if heads is None else heads[number]
        reached = _through(reached, matrices[number], of, combine=combine, residual=residual)
    return reached


def _through(
    reached: Tensor,
    matrix: Matrix,
    heads: Sequence[int] | None,
    *,
    combine: Literal["mean", "max"],
    residual: float,
) -> Tensor:
    """reached (t, T) · Ã → (t, T)."""
    before = torch.zeros_like(reached)
    for start, weights in matrix.chunks():
        of = weights if heads is None else weights[list(heads)]  # (h, r, T)
        mixed = of.amax(0) if combine == "max" else of.mean(0)
        mixed = mixed.cpu().double()  # (r, T)
        if combine == "max":
            mixed = mixed / mixed.sum(-1, keepdim=True).clamp_min(torch.finfo(mixed.dtype).tiny)
        mixed = mixed * (1 - residual)
        places = torch.arange(mixed.shape[0])
        mixed[places, start + places] += residual
        mixed = mixed / mixed.sum(-1, keepdim=True)
        before += reached[:, start : start + mixed.shape[0]] @ mixed
    return before


def _check(
    matrices: Sequence[Matrix], heads: Sequence[Sequence[int] | None] | None, residual: float
) -> None:
    if not matrices:
        raise ValueError("rollout needs one layer at least")
    if heads is not None and len(heads) != len(matrices):
        raise ValueError(f"heads names {len(heads)} layers and there are {len(matrices)}")
    if not 0 < residual <= 1:
        raise ValueError(f"residual is the identity's share, above 0 and at most 1; got {residual}")
    for matrix in matrices:
        if matrix.kind == "cross" or matrix.n_queries != matrix.n_keys != 0:
            raise ValueError(
                "rollout goes through self-attention, whose matrices are square; got "
                f"{matrix.n_queries} queries and {matrix.n_keys} keys ({matrix.kind or 'given'})"
            )
        if matrix.n_keys != matrices[0].n_keys:
            raise ValueError(f"layers have {matrices[0].n_keys} and {matrix.n_keys} places")
