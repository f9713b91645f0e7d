"""The best continuations of what was generated so far.

    t(b, v) = s_b + log p(v | b)          the best k over a sentence's beams b and the pieces v

With a compiler this is one pass over the logits (layers/csrc/continuations.c); otherwise PyTorch's
log-softmax and its search among all of them.
"""

import ctypes
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from everyhead.layers.compiled import library, lies_here

NEVER = float("-inf")
MOST, LARGEST = 64, 64 * 4096  # continuations and pieces that the program looks for


class Candidates(NamedTuple):
    """Continuations of each sentence's beams, best first, (n, k) each."""

    sums: Tensor
    parent: Tensor  # the beam that is continued
    token: Tensor

    def gather(self, rank: Tensor) -> "Candidates":
        return Candidates(*(x.gather(1, rank) for x in self))


class Choice(ctypes.Structure):
    """csrc/continuations.c, Choice."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "sums", "best", "parent", "token")),
        *((name, ctypes.c_int64) for name in ("sentences", "beams", "pieces", "k")),
    )


def candidates(logits: Tensor, sums: Tensor, k: int) -> Candidates:
    """The best k continuations; logits (n·w, V) and sums (n, w) of beams → (n, k) each.

    Where fewer than k exist the rest has the sum −∞. Logits that are no numbers give sums that are
    none.
    """
    logits = logits.float()
    if _is_compiled(logits, sums, k):
        return _chosen(logits.contiguous(), sums.contiguous(), k)
    n, width = sums.shape
    totals = (logits.log_softmax(-1).view(n, width, -1) + sums[:, :, None]).flatten(1)  # (n, w·V)
    best, index = totals.topk(min(k, totals.shape[1]))
    missing = (0, k - best.shape[1])
    best, index = F.pad(best, missing, value=NEVER), F.pad(index, missing)
    n_tokens = logits.shape[1]
    return Candidates(best, index // n_tokens, index % n_tokens)


def _is_compiled(logits: Tensor, sums: Tensor, k: int) -> bool:
    fits = 0 < k <= MOST and 0 < logits.shape[1] <= LARGEST and sums.dtype == torch.float32
    return fits and library() is not None and lies_here(logits) and lies_here(sums)


def _chosen(logits: Tensor, sums: Tensor, k: int) -> Candidates:
    programs, (n, beams) = library(), sums.shape
    assert programs is not None
    found = Candidates(sums.new_empty(n, k), *torch.empty(2, n, k, dtype=torch.int64).unbind())
    totals = torch.empty(n * k, dtype=torch.float64)
    addresses = [x.data_ptr() for x in (logits, sums, *found)]
    told = Choice(*addresses, n, beams, logits.shape[1], k)
    programs.continuations(ctypes.byref(told), totals.data_ptr(), torch.get_num_threads())
    return found
