"""The keys of a window and of the first tokens: bounded memory, however long the text.

    keys kept:  the first f, the last w − 1, and those that enter now
    seen from position p, the first token i is  min(p, L − 1) − i  places away      L: max_len

Xiao et al. 2023 (2309.17453) section 3.2. While the text is no longer than the model was trained
for, this is attention under the window's mask (layers/nearby.py) to the last bit of rounding;
behind it a first token recedes no further. The paper counts positions in the cache from the
beginning, so its first tokens stay nearer; both keep every distance within the trained range. A
query's distances are its own, so they do not depend on how a text is cut into pieces.

Keys are turned by their positions when they enter. So that positions stay small, those of the
window are now and then turned back together.
"""

import torch
from torch import Tensor

from everyhead.layers import masks, probe
from everyhead.layers.cache import KeyValueCache, TextCache
from everyhead.layers.nearby import near
from everyhead.layers.positions import places
from everyhead.layers.rotary import Rotary, Rotation
from everyhead.layers.sliding_keys import Count, Frame, Plan, SlidingKeys


class SlidingCache(TextCache):
    """Of a decoder whose attentions see a window and the first tokens.

    max_len: how far apart tokens may be that see one another; rotary: what turned q and k, None
    where a position cannot be taken back. Where somebody looks from the beginning on
    (layers/probe.py), all keys are kept, so that there is a matrix.
    """

    def __init__(
        self,
        n_layers: int,
        capacity: int,
        *,
        size: int,
        first: int,
        max_len: int,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__(n_layers, capacity)
        self.capacity, self.max_len, self.rotary = capacity, max_len, rotary
        self.frame, self.looked = Frame(size, first), False
        self._tokens: Count = 0
        self._base: Count = 0
        self._left = False  # did any key leave?
        self._entering = 0  # positions of the newest call
        self._begin()

    def _begin(self) -> None:
        n, c = len(self.self_attn), self.capacity
        if self.looked:
            self.self_attn = [KeyValueCache(c) for _ in range(n)]
        else:
            self.self_attn = [SlidingKeys(c, self.frame) for _ in range(n)]

    @property
    def piece(self) -> int | None:
        """How many positions may enter at once behind max_len; None: any number."""
        return None if self.rotary is None else max(1, self.max_len - self.frame.kept)

    @property
    def counts(self) -> Count:
        return super().counts if self.looked else self._tokens

    def places(self, real: Tensor | None, n: int) -> Tensor:
        """Where n new tokens stand, int64 (B|1, n); a plan is made for their entering.

        Raises:
            ValueError: too many at once, behind max_len; or any behind it while recording.
        """
        if self.length == 0 and self.looked != probe.active():
            self.looked = probe.active()
            self._begin()
        if self.looked:
            if self.rotary is not None and self.length + n > self.max_len:
                raise ValueError(
                    "a recording keeps every key, so behind a window it ends at the model's "
                    f"max_len {self.max_len}: record a shorter text"
                )
            return super().places(real, n)
        frame, before = self.frame, self.frame.used
        base = self._base_for(n)
        shift = base - self._base
        moved = isinstance(shift, Tensor) or shift > 0
        plan = Plan(base=base, real=self.real)
        if before + n > frame.room(n) or moved:
            plan = self._leaving(plan, before)
        if moved:
            plan = plan._replace(back=self._turn(-shift))
        positions = places(real, n, self._tokens - base)
        frame.plan = plan._replace(far=self._far(positions, base, n))
        return positions

    def _base_for(self, n: int) -> Count:
        """What positions are counted from, so that n more stay within max_len."""
        reach = self._tokens - self._base + n
        if self.rotary is None or int(torch.as_tensor(reach).max()) <= self.max_len:
            return self._base
        frame = self.frame
        if frame.kept + n > self.max_len:
            raise ValueError(
                f"a window of {frame.size} tokens, {frame.first} first ones and {n} new ones are "
                f"more than the model's max_len {self.max_len}: read fewer at once, or take a "
                "smaller window"
            )
        new = self._tokens - (frame.size - 1)
        if isinstance(new, int):
            return new
        return torch.where(new >= frame.first, new, self._base)

    def _leaving(self, plan: Plan, before: int) -> Plan:
        frame, real = self.frame, self.real
        if real is None:
            return plan._replace(leave=before)
        cut = before - (frame.size - 1)  # those from here on stay as they are
        kept = real[:, :cut] & (real[:, :cut].cumsum(1) <= frame.first)
        index = kept.int().argsort(dim=1, descending=True, stable=True)[:, : frame.first]
        found = torch.cat([kept.gather(1, index), real[:, cut:before]], 1)
        return plan._replace(leave=before, origin=index, real=found)

    def _far(self, positions: Tensor, base: Count, n: int) -> Rotation | None:
        """Turns of the first tokens for one new query, or of several queries for them."""
        if not self.frame.first or (isinstance(base, int) and base == 0):
            return None
        behind = positions - (positions + base).clamp_max(self.max_len - 1)  # (B|1, n)
        return self._turn(behind if n == 1 else -behind)

    def _turn(self, by: Count) -> Rotation:
        assert self.rotary is not None
        by = torch.as_tensor(by)
        return self.rotary.turn(by if by.dim() == 2 else by.view(1, 1))

    def note(self, real: Tensor | None, ids: Tensor) -> Tensor | None:
        """Before new ids (B, T) enter: which of the keys that are left are tokens; None: all."""
        self._entering = ids.shape[1]
        if self.looked:
            return super().note(real, ids)
        frame, plan, n = self.frame, self.frame.plan, ids.shape[1]
        if plan.leave:
            frame.used, self._left = frame.kept, True
        before, self.real, self._base = plan.real, None, plan.base
        if real is not None or before is not None:
            rows, device = ids.shape[0], ids.device
            if before is None:
                before = torch.ones(rows, frame.used, dtype=torch.bool, device=device)
            new = torch.ones_like(ids, dtype=torch.bool) if real is None else real
            self.real = torch.cat([before, new], 1)
        self._tokens = self._tokens + (n if real is None else real.sum(1, keepdim=True))
        frame.used += n
        return self.real

    def note_bias(self, bias: Tensor | None) -> None:
        """`DecoderCache.note_bias`; for one more position, what is out of its sight is in it."""
        n = self.length + 1 if self.looked else self.frame.used
        if self._entering == 1 and n > self.frame.size and self.self_attn:
            bias = self._sight(n)
        super().note_bias(bias)

    def _sight(self, n: int) -> Tensor:
        """(B|1, 1, 1, n): −∞ at keys that the newest position does not see."""
        like = self.self_attn[0].read()[0]
        rule = masks.causal() if self.real is None else masks.keys(self.real, zeroed=True)
        seen = near(rule, self.frame.size, self.frame.first).rows(1, n, like.device)
        hidden = ~seen & seen.any(-1, keepdim=True)  # who sees nothing is padding itself
        bias = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
        return bias.masked_fill_(hidden, float("-inf"))

    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        self._tokens, self._base = _rows(self._tokens, index), _rows(self._base, index)

    def crop(self, n: int) -> None:
        """Forget everything after the first n positions.

        Raises:
            ValueError: keys that position n saw have left.
        """
        gone, frame = self.length - n, self.frame
        if self.looked or gone <= 0:
            return super().crop(n)
        if n and self._left and frame.used - gone < frame.kept:
            raise ValueError(
                f"what position {n} saw has left the window: crop the cache to 0 and read the text "
                "again"
            )
        for cache in self.self_attn:
            cache.crop(n)
        frame.used -= gone
        if self.real is not None:
            lost = self.real[:, frame.used :].sum(1, keepdim=True)
            self._tokens, self.real = self._tokens - lost, self.real[:, : frame.used]
        else:
            self._tokens = self._tokens - gone
        if n == 0:
            frame.used, frame.plan, self.real = 0, Plan(), None
            self._tokens, self._base, self._left = 0, 0, False
            self._begin()


def _rows(count: Count, index: Tensor) -> Count:
    return count.index_select(0, index) if isinstance(count, Tensor) else count
