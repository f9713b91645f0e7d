"""The keys of one attention that sees a window and the first tokens; see layers/sliding_cache.py.

    [ first f | window, oldest first | new ]          what left the window leaves the middle

Xiao et al. 2023 (2309.17453) section 3.2; the paper moves a key at every step, here an eighth of a
window more has room, so that few are moved.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from everyhead.layers.cache import KeyValueCache, Move
from everyhead.layers.rotary import Rotation, rotated

Count = Tensor | int  # one a row (B, 1), or one for all


class Plan(NamedTuple):
    """What each layer does before new keys enter.

    leave: keys of which the last are kept, 0: all stay. origin (B, f): where the first tokens
    stand, None: at the beginning. back: turns the window's keys. far: how first tokens are seen
    from new queries (their own turn where there is one query, else the turns of the queries).
    """

    leave: int = 0
    origin: Tensor | None = None
    back: Rotation | None = None
    far: Rotation | None = None
    base: Count = 0  # what is taken off positions
    real: Tensor | None = None  # of the keys that stay


class Frame:
    """What all layers share: w, f, how many keys there are with the new ones, and the plan."""

    def __init__(self, size: int, first: int) -> None:
        self.size, self.first, self.used = size, first, 0
        self.plan = Plan()

    @property
    def kept(self) -> int:
        """Keys that stay where some leave."""
        return self.first + self.size - 1

    def room(self, n_new: int) -> int:
        """Keys before some leave: an eighth more than needed, so that few are moved."""
        return self.kept + max(n_new, self.size // 8, 16)


class SlidingKeys(KeyValueCache):
    """Keys and values of one attention: (B, K, f + w − 1 + new, D) at most."""

    def __init__(self, capacity: int, frame: Frame) -> None:
        super().__init__(capacity)
        self.frame = frame
        self._first: Tensor | None = None  # (B, K, f, D) as turned by their own positions

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add (B, K, T, D); all keys and values that are left come back, the first ones first.

        Raises:
            ValueError: more positions than there is room for.
        """
        n, frame = k.shape[2], self.frame
        self._check(self.length + n)
        if frame.plan.leave:
            self._leave(frame.plan)
        self._k, self._v = self._grown(self._k, k), self._grown(self._v, v)
        self._k[:, :, frame.used - n : frame.used] = k
        self._v[:, :, frame.used - n : frame.used] = v
        self.length += n
        if frame.plan.far is not None and self._first is not None and n == 1:
            self._k[:, :, : frame.first] = rotated(self._first, frame.plan.far)
        return self.read()

    def read(self) -> tuple[Tensor, Tensor]:
        """All keys and values that are left; raises ValueError where none was appended yet."""
        if self._k is None or self._v is None:
            raise ValueError("the cache is empty: append keys and values before reading them")
        return self._k[:, :, : self.frame.used], self._v[:, :, : self.frame.used]

    def entered(self, parts: Any) -> Any:
        """The parts with all keys and values; from far queries, first tokens as they seem.

        The scores with first tokens are made here, and are channels of their own: q ‖ scores, k ‖
        one-hot, so that one product gives both kinds.
        """
        q, far = parts.q, self.frame.plan.far
        k, v = self.append(parts.k, parts.v)
        if far is None or self._first is None or q.shape[2] == 1:
            return parts._replace(k=k, v=v)
        first = self._first  # (B, K, f, D)
        heads = rotated(q, far).unflatten(1, (first.shape[1], -1))  # (B, K, H / K, T, D)
        scores = (heads @ first[:, :, None].transpose(-2, -1)).flatten(1, 2)  # (B, H, T, f)
        n, more = first.shape[2], -first.shape[2] % 8
        wide = F.pad(k, (0, n + more))  # (B, K, S, D + f, a multiple of 8 more)
        wide[:, :, :n] = 0
        wide[:, :, :n, k.shape[3] : k.shape[3] + n] = torch.eye(n, dtype=k.dtype, device=k.device)
        return parts._replace(q=F.pad(torch.cat([q, scores], -1), (0, more)), k=wide, v=v)

    def _grown(self, old: Tensor | None, new: Tensor) -> Tensor:
        frame = self.frame
        if old is not None and old.shape[2] >= frame.used:
            return old
        room = max(frame.used, min(self.capacity, frame.room(new.shape[2])))
        whole = new.new_empty(*new.shape[:2], room, new.shape[3])
        if old is not None:
            before = frame.used - new.shape[2]
            whole[:, :, :before] = old[:, :, :before]
        return whole

    def _leave(self, plan: Plan) -> None:
        assert self._k is not None and self._v is not None
        frame = self.frame
        window = slice(frame.first, frame.kept)
        if self._first is not None:
            self._k[:, :, : frame.first] = self._first
        for x in (self._k, self._v):
            last = x[:, :, plan.leave - frame.size + 1 : plan.leave].clone()
            if plan.origin is not None:
                index = plan.origin[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
                x[:, :, : frame.first] = x.gather(2, index)
            x[:, :, window] = last
        if plan.back is not None:
            self._k[:, :, window] = rotated(self._k[:, :, window], plan.back)
        self._first = self._k[:, :, : frame.first].clone() if frame.first else None

    def move(self, move: Move) -> None:
        if self._k is None or self._v is None:
            return
        used = self.frame.used
        self._k, self._v = move.apply(self._k, used), move.apply(self._v, used)
        if self._first is not None:
            self._first = self._first.index_select(0, move.rows)
