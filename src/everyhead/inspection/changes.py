"""Changes to a forward pass, at the places where a trace looks: what would be without this head?

    HeadOff(place, heads)               these heads give zeros
    TokenHidden(place, keys)            nobody may look at these positions (None: at any place)
    Replaced(place, output, …)          heads and rows give what they gave in another run (patching)

    with record(model, [HeadOff("decoder.1.cross_attn", [3])]) as trace:
        model(source, target)

Activation patching: Meng et al. 2022 (2202.05262) section 2; heads off: Michel et al. 2019
(1905.10650) equation 2. Positions and rows count from the beginning of the pass, so that a change
holds through the steps of a cached decoding; one number stands for a list of one. What is below 0
is refused at once, and a position that no call reached when the recording ends (`unreached`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from everyhead.inspection.beams import Layout
from everyhead.inspection.selection import counted, within
from everyhead.layers import masks
from everyhead.layers.masks import Mask


@dataclass(frozen=True)
class HeadOff:
    """These heads of an attention give zeros; their weights stay what they are.

    Raises:
        ValueError: a number below 0.
    """

    place: str
    heads: int | Sequence[int]

    def __post_init__(self) -> None:
        _count(self, heads=f"heads of {self.place}")

    def applied(self, out: Tensor, rows: Tensor) -> Tensor:
        """out (B, H, T, D) of the pass's rows (T,)."""
        heads = within(_listed(self.heads), out.shape[1], f"heads of {self.place}")
        kept = torch.ones(out.shape[1], dtype=torch.bool, device=out.device)
        kept[heads] = False
        return out.masked_fill(~kept[:, None, None], 0)


@dataclass(frozen=True)
class TokenHidden:
    """Nobody may look at these positions of the keys; place None: at every place.

    Raises:
        ValueError: a number below 0.
    """

    place: str | None
    keys: int | Sequence[int]

    def __post_init__(self) -> None:
        _count(self, keys=f"keys of {self.place or 'any place'}")

    @property
    def furthest(self) -> int:
        """The last position that is hidden, −1 where none is."""
        return max(_listed(self.keys), default=-1)

    def hide(self, mask: Mask | None, k: Tensor, layout: Layout, first: int) -> Mask:
        """The mask of a call whose keys (B, K, S, D) stand at `first` and on of the pass."""
        hidden = torch.tensor(_listed(self.keys), dtype=torch.long)
        real = ~torch.isin(layout.key_numbers(k.shape[2]) + first, hidden)
        rule = masks.keys(real.to(k.device).expand(k.shape[0], -1), zeroed=True)
        return rule if mask is None else mask & rule


@dataclass(frozen=True)
class Replaced:
    """Heads and rows give `output` (B or 1, h, t, D) instead, as `Place.output` of another run.

    Raises:
        ValueError: a number below 0, or an output that has no four axes.
    """

    place: str
    output: Tensor
    heads: int | Sequence[int] | None = None
    rows: int | Sequence[int] | None = None

    def __post_init__(self) -> None:
        _count(self, heads=f"heads of {self.place}", rows=f"rows of {self.place}")
        if self.output.dim() != 4:
            raise ValueError(
                f"the replacement at {self.place} must be (batch, heads, rows, width); "
                f"got {tuple(self.output.shape)}"
            )

    @property
    def furthest(self) -> int:
        """The last row that is replaced, −1 where none is."""
        rows = range(self.output.shape[2]) if self.rows is None else _listed(self.rows)
        return max(rows, default=-1)

    def applied(self, out: Tensor, rows: Tensor) -> Tensor:
        """out (B, H, T, D) of the pass's rows (T,)."""
        batch, n_heads, _, width = out.shape
        chosen = None if self.heads is None else _listed(self.heads)
        heads = within(chosen, n_heads, f"heads of {self.place}")
        wanted = range(self.output.shape[2]) if self.rows is None else _listed(self.rows)
        given = self.output.shape
        if given[1:] != (len(heads), len(wanted), width) or given[0] not in (1, batch):
            raise ValueError(
                f"the replacement at {self.place} must be (batch, {len(heads)} heads, "
                f"{len(wanted)} rows, width {width}) of batch 1 or {batch}; got {tuple(given)}"
            )
        out, given_output = out.clone(), self.output.to(out)
        places = {row: place for place, row in enumerate(wanted)}
        for t, row in enumerate(rows.tolist()):
            if row in places:
                out[:, heads, t] = given_output[:, :, places[row]]
        return out


Change = HeadOff | TokenHidden | Replaced


def unreached(change: Change, n_seen: int) -> str | None:
    """The sentence for a change of positions of which only the first `n_seen` ever came."""
    if isinstance(change, HeadOff) or change.furthest < n_seen:
        return None
    what, verb = ("key", "hidden") if isinstance(change, TokenHidden) else ("row", "replaced")
    where = "any place" if change.place is None else change.place
    came = f"the longest call there had {n_seen}" if n_seen else "no call came there"
    return (
        f"{what} {change.furthest} of {where} was to be {verb} and was never reached: {came}; "
        f"{what}s are counted from 0"
    )


def _count(change: Change, **what: str) -> None:
    """Numbers as tuples, each of them checked."""
    for name, told in what.items():
        numbers = getattr(change, name)
        if numbers is not None:
            object.__setattr__(change, name, counted(numbers, told))


def _listed(numbers: int | Sequence[int]) -> list[int]:
    """What `_count` has left as a tuple."""
    return [numbers] if isinstance(numbers, int) else list(numbers)
