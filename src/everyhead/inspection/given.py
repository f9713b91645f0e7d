"""Masks and biases as a model hands them over, n × n, taken back to the rules they were made from.

A trace keeps O(n). So a given matrix is looked through once, some rows at a time, and kept as the
rule that has the same entries: keys that are real, nothing after the query, a window; a bias that
depends on the distance alone is kept as one row of 2 n. A matrix that no rule describes is kept as
it is, once for all layers that were given it.
"""

import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from everyhead.layers import masks
from everyhead.layers.masks import Mask

T = TypeVar("T")
CHUNK = 2**22  # entries looked at in one go
COPIED = 2**20  # entries of a tensor of which a copy is kept to know it again


class Bias(Protocol):
    """A term of the scores of which rows are made when they are asked for."""

    def rows(self, i: Tensor) -> Tensor:
        """i (t,) → (B|1, H|1, t, S)."""
        ...


class WholeBias(NamedTuple):
    """A matrix of any kind, (B|1, H|1, T|1, S)."""

    matrix: Tensor

    def rows(self, i: Tensor) -> Tensor:
        return self.matrix if self.matrix.shape[-2] == 1 else self.matrix[..., i, :]


class RelativeBias(NamedTuple):
    """b(j − i): values (B|1, H|1, T + S − 1), from the largest distance backwards (T5)."""

    values: Tensor
    n_queries: int
    n_keys: int

    def rows(self, i: Tensor) -> Tensor:
        j = torch.arange(self.n_keys, device=i.device)
        return self.values[..., (self.n_queries - 1 - i)[:, None] + j]  # (…, t, S)


class Given(NamedTuple):
    """What a matrix of the model's says: who may look, what is added, how many keys it takes in."""

    mask: Mask | None
    bias: Tensor | None = None
    n_seen: int | None = None


class Readings:
    """What was made of a tensor, so that layers that share it are read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], tuple[weakref.ref[Tensor], int | Tensor, Any]] = {}

    def of(self, tensor: Tensor, how: Callable[[Tensor], T]) -> T:
        """how(tensor), made anew where the tensor is another one or was written into since."""
        counts = not tensor.is_inference()  # what is written into it; else a copy tells
        if not counts and tensor.numel() > COPIED:
            return how(tensor)
        key = (id(tensor), how.__name__)
        known = self._known.get(key)
        if known is not None and known[0]() is tensor and _is_still(tensor, known[1]):
            return known[2]
        version = tensor._version if counts else tensor.clone()
        result = how(tensor)
        # A list first: other threads read tensors of theirs meanwhile.
        self._known = {k: x for k, x in list(self._known.items()) if x[0]() is not None}
        self._known[key] = (weakref.ref(tensor), version, result)
        return result

    def clear(self) -> None:
        """Forget everything, matrices included."""
        self._known = {}


def _is_still(tensor: Tensor, version: int | Tensor) -> bool:
    if isinstance(version, Tensor):
        return torch.equal(version, tensor)
    return not tensor.is_inference() and tensor._version == version


def bias_of(matrix: Tensor | None) -> Bias | None:
    """(B|1, H|1, T|1, S) as it can be kept; None for zeros, which add nothing."""
    if matrix is None or not bool(matrix.any()):
        return None
    matrix = matrix.detach()
    if matrix.shape[-2] == 1:
        return WholeBias(matrix.clone())
    values = torch.cat([matrix[..., 0].flip(-1), matrix[..., 0, 1:]], -1)  # (…, T + S − 1)
    relative = RelativeBias(values, *matrix.shape[-2:])
    if all(torch.equal(relative.rows(i), part) for i, part in _chunks(matrix)):
        return relative
    return WholeBias(matrix.clone())


def given_of(matrix: Tensor) -> Given:
    """An attention mask, bool (True = may look) or additive, (B|1, H|1, T|1, S), or keys (B, S)."""
    matrix = matrix.detach()
    if matrix.dim() == 2:  # what flash attention is given: which keys are real
        padding = _keys(matrix != 0)
        return Given(padding if padding.rules else None)
    # Rows that see all keys before them tell which are real; in a window all rows are needed.
    real, bias = _sampled(matrix)[1].any(-2).any(1), None
    rule = _checked(matrix, _band(matrix) & _keys(real))
    if rule is None:
        real = torch.stack([_seen(x).any(-2).any(1) for _, x in _chunks(matrix)]).any(0)  # (B, S)
        rule = _checked(matrix, _band(matrix) & _keys(real))
    if matrix.dtype != torch.bool and not _only_hides(matrix):
        bias = torch.where(_seen(matrix), matrix, torch.zeros_like(matrix))
    if rule is None:
        own = matrix.clone() if matrix.dtype == torch.bool else _seen(matrix)
        rule = masks.dense(own)
    n_seen = int(real.any(0).nonzero().max()) + 1 if bool(real.any()) else 0
    return Given(rule if rule.rules else None, bias, n_seen)


def _keys(real: Tensor) -> Mask:
    return Mask() if bool(real.all()) else masks.keys(real, zeroed=True)


def _checked(matrix: Tensor, rule: Mask) -> Mask | None:
    """The rule, if it has the same entries as the whole matrix."""
    n_queries, n_keys = matrix.shape[-2:]
    for i, part in _chunks(matrix):
        if not bool((rule.rows(n_queries, n_keys, matrix.device, i) == _seen(part)).all()):
            return None
    return rule


def _sampled(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A few row numbers and who is seen from them, (B, H, t, S)."""
    i = torch.linspace(0, matrix.shape[-2] - 1, 9, device=matrix.device).long().unique()
    return i, _seen(matrix[..., i, :])


def _band(matrix: Tensor) -> Mask:
    """How far the rows look to the left and to the right of themselves, from a few of them."""
    n_queries, n_keys = matrix.shape[-2:]
    offset = n_keys - n_queries
    i, rows = _sampled(matrix)
    seen = rows.any(0).any(0)  # (t, S)
    i, seen = i[seen.any(-1)], seen[seen.any(-1)]
    if n_queries == 1 or not i.numel():
        return Mask()
    near, far = seen.byte().argmax(-1), n_keys - 1 - seen.flip(-1).byte().argmax(-1)
    left, right = int((i + offset - near).max()), int((far - i - offset).max())
    # Where all rows end at the same key, it is padding that they end at and not a window.
    bound_left = left < min(n_keys - 1, n_keys - 1 + right) and bool((near != near[0]).any())
    bound_right = right < n_queries - 1 and bool((far != far[0]).any())
    if not bound_left:
        return masks.causal(offset + right if right else None) if bound_right else Mask()
    return masks.window(left, right if bound_right else n_keys)


def _seen(matrix: Tensor) -> Tensor:
    """An additive mask hides with the least number there is, or nearly."""
    if matrix.dtype == torch.bool:
        return matrix
    return matrix > torch.finfo(matrix.dtype).min / 2


def _only_hides(matrix: Tensor) -> bool:
    return all(bool(((part == 0) | ~_seen(part)).all()) for _, part in _chunks(matrix))


def _chunks(matrix: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Row numbers and these rows, so many that their copy is small."""
    n_rows = matrix.shape[-2]
    step = max(1, CHUNK // max(1, matrix[..., :1, :].numel()))
    for start in range(0, n_rows, step):
        i = torch.arange(start, min(start + step, n_rows), device=matrix.device)
        yield i, matrix[..., start : start + step, :]
