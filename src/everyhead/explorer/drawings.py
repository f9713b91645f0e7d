"""What kind of attention a layer has, so that the page can draw it as what it is.

band        which distances are seen, and which tokens see all and are seen by all
hashing     the bucket of every token in every round
memory      how far back a segment reads, and where each segment begins
features    the matrix is implied: nothing computes it but who looks
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from everyhead.inspection.places import Place
from everyhead.layers.attention import Parts
from everyhead.layers.chunked import LshParts, buckets_of
from everyhead.layers.feature_attention import FeatureParts
from everyhead.layers.masks import Mask
from everyhead.layers.relative import RelativeParts
from everyhead.layers.rules import AnyOf, Causal, Globals, Keys, Prefix, Rule, Window

Buckets = NDArray[np.uint16]


@dataclass(frozen=True)
class Drawing:
    """What the page is told of a layer: the kind, and its numbers by name.

    other: the weights are more than softmax(scale·q kᵀ + bias), so q and k do not explain them;
    place, row: where buckets come from, when they are asked for.
    """

    kind: str
    numbers: dict[str, Any]
    other: bool = True
    place: Place | None = None
    row: int = 0

    def entry(self) -> dict[str, Any]:
        """As the page reads it."""
        return {"kind": self.kind, "other": self.other, **self.numbers}

    def buckets(self, head: int, tokens: NDArray[np.int64] | None = None) -> Buckets | None:
        """The bucket of each token in each round of hashing, (R, T); None where nothing hashes."""
        if self.place is None:
            return None
        parts: Any = self.place.parts
        with torch.inference_mode():
            found = buckets_of(parts, [head], self.place.mask)[self.row, 0]  # (R, S)
        array: Buckets = found.cpu().numpy().astype(np.uint16)
        return array if tokens is None else array[:, tokens]


class Band(NamedTuple):
    """−left ≤ j − i ≤ right in steps, and the tokens that are seen from anywhere."""

    left: int
    right: int
    step: int
    far: list[int]
    sees: bool = False  # they see all, too


def drawing_of(place: Place, row: int = 0) -> Drawing | None:
    """Of a recorded attention; None where every token may see every other, or all before it."""
    parts: Any = place.parts
    mask, n = place.mask, place.shape[3]
    if isinstance(parts, LshParts):
        rounds = parts.rotations.shape[2]
        numbers = {"rounds": rounds, "buckets": parts.hashing.n_buckets}
        return Drawing("hashing", {**numbers, "chunk": parts.hashing.chunk}, True, place, row)
    if isinstance(parts, FeatureParts):
        count = parts.projection.shape[0]
        return Drawing("features", {"features": count, "function": parts.kernel})
    if isinstance(parts, RelativeParts):
        starts = [piece.start for piece in place.pieces()]
        return Drawing("memory", {"reach": parts.table.shape[0] - 1, "segments": starts})
    band = band_of(mask, row)
    if band is None:
        return None
    band = band._replace(far=[token for token in band.far if token < n])
    causal = mask is not None and any(isinstance(rule, Causal) for rule in mask.rules)
    if band.left >= n - 1 and (causal or band.right >= n - 1):
        return None
    return Drawing("band", band._asdict(), other=not softmax_alone(place))


def softmax_alone(place: Place) -> bool:
    """Whether the weights are softmax(scale·q kᵀ + bias), so that q and k explain them."""
    return type(place.parts) is Parts


def band_of(mask: Mask | None, row: int = 0) -> Band | None:
    """The window among a mask's rules; None where there is none."""
    rules: tuple[Rule, ...] = () if mask is None else mask.rules
    found = next((band for rule in rules if (band := _band(rule, row)) is not None), None)
    if found is not None and any(isinstance(rule, Causal) for rule in rules):
        return found._replace(right=min(found.right, 0))
    return found


def _band(rule: Rule, row: int) -> Band | None:
    if isinstance(rule, Window):
        return Band(rule.left, rule.right, rule.step, [])
    if not isinstance(rule, AnyOf | Prefix):
        return None
    near = [band for each in rule.rules if (band := _band(each, row)) is not None]
    if not near:
        return None
    far, sees = list(range(rule.n)) if isinstance(rule, Prefix) else [], near[0].sees
    for each in rule.rules:
        if isinstance(each, Globals | Keys):
            marked = each.marked if isinstance(each, Globals) else each.real
            far += marked[min(row, len(marked) - 1)].nonzero()[:, 0].tolist()
            sees = sees or (isinstance(each, Globals) and each.sees)
    return near[0]._replace(far=sorted({*near[0].far, *far}), sees=sees)
