"""Which sentences of a batch go on: finished ones leave, but not one at a time.

A kernel is set up anew for every number of rows, and moving rows costs memory traffic. So a batch
shrinks in steps of about an eighth, and the last rows move into the places of those that left.
"""

import torch
from torch import Tensor


def smaller(done: Tensor) -> Tensor | None:
    """done: bool (n,) → the rows of a smaller batch (m,), each at its place if it has one there.

    Some of the m rows may be done, so that m is a round number; None: the batch stays as it is.
    """
    n, n_open = done.numel(), done.numel() - int(done.sum())
    size = round_size(n_open)
    if size >= n:
        return None
    rows = torch.arange(size, device=done.device)
    later = (~done[size:]).nonzero()[:, 0] + size
    rows[done[:size].nonzero()[: later.numel(), 0]] = later
    return rows


def round_size(n: int) -> int:
    """n, or a little more: 1 to 8 as they are, then eight sizes an octave."""
    step = 1 << max(0, n.bit_length() - 4)
    return -(-n // step) * step
