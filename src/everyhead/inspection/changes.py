"""Changes to a forward pass, at the places where a trace looks: what would be without this head?

    HeadOff(place, heads)               these heads give zeros
    TokenHidden(place, keys)            nobody may look at these positions (None: at any place)
    Replaced(place, output, …)          heads and rows give what they gave in another run (patching)

    with record(model, [HeadOff("decoder.1.cross_attn", [3])]) as trace:
        model(source, target)

Activation patching: Meng et al. 2022 (2202.05262) section 2; heads off: Michel et al. 2019
(1905.10650) equation 2. Positions and rows count from the beginning of the pass, so that a change
holds through the steps of a cached decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from everyhead.inspection.beams import Layout
from everyhead.layers import masks
from everyhead.layers.masks import Mask


@dataclass(frozen=True)
class HeadOff:
    """These heads of an attention give zeros; their weights stay what they are."""

    place: str
    heads: Sequence[int]

    def applied(self, out: Tensor, rows: Tensor) -> Tensor:
        """out (B, H, T, D) of the pass's rows (T,)."""
        heads = _within(self.heads, out.shape[1], f"heads of {self.place}")
        kept = torch.ones(out.shape[1], dtype=torch.bool, device=out.device)
        kept[heads] = False
        return out.masked_fill(~kept[:, None, None], 0)


@dataclass(frozen=True)
class TokenHidden:
    """Nobody may look at these positions of the keys; place None: at every place."""

    place: str | None
    keys: Sequence[int]

    def hide(self, mask: Mask | None, k: Tensor, layout: Layout, first: int) -> Mask:
        """The mask of a call whose keys (B, K, S, D) stand at `first` and on of the pass."""
        hidden = torch.tensor(list(self.keys), dtype=torch.long)
        real = ~torch.isin(layout.key_numbers(k.shape[2]) + first, hidden)
        rule = masks.keys(real.to(k.device).expand(k.shape[0], -1), zeroed=True)
        return rule if mask is None else mask & rule


@dataclass(frozen=True)
class Replaced:
    """Heads and rows give `output` (B or 1, h, t, D) instead, as `Place.output` of another run."""

    place: str
    output: Tensor
    heads: Sequence[int] | None = None
    rows: Sequence[int] | None = None

    def applied(self, out: Tensor, rows: Tensor) -> Tensor:
        """out (B, H, T, D) of the pass's rows (T,)."""
        n_heads = out.shape[1]
        heads = _within(self.heads, n_heads, f"heads of {self.place}")
        wanted = range(self.output.shape[2]) if self.rows is None else self.rows
        if self.output.dim() != 4 or self.output.shape[1:3] != (len(heads), len(wanted)):
            raise ValueError(
                f"the replacement at {self.place} must be (batch, {len(heads)} heads, "
                f"{len(wanted)} rows, width); got {tuple(self.output.shape)}"
            )
        out, given = out.clone(), self.output.to(out)
        places = {row: place for place, row in enumerate(wanted)}
        for t, row in enumerate(rows.tolist()):
            if row in places:
                out[:, heads, t] = given[:, :, places[row]]
        return out


Change = HeadOff | TokenHidden | Replaced


def _within(numbers: Sequence[int] | None, n: int, what: str) -> list[int]:
    """
    Raises:
        ValueError: one of the numbers does not exist.
    """
    chosen = list(range(n)) if numbers is None else list(numbers)
    for number in chosen:
        if not 0 <= number < n:
            raise ValueError(f"there is no {number} among the {n} {what}, counted from 0")
    return chosen
