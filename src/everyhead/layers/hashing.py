"""Which bucket a vector falls into, and how the tokens of the buckets are cut into chunks.

    h(x) = argmax [xR; −xR]          R (D, b/2) of N(0, 1), another one for each head and round

Kitaev et al. 2020 (2001.04451) section 2; the hash: Andoni et al. 2015 (1509.02897). With several
factors b₁, b₂, … their numbers are put together: b₁·b₂·… buckets by (b₁ + b₂ + …)/2 columns.

`within_buckets` cuts each bucket by itself: a token's chunk is told by how many tokens of its own
bucket came before it, so nothing later can move it. Chunks are numbered in the order in which they
were begun, so not even their place in memory depends on the future. `across_buckets` is the
published way: all tokens sorted by bucket and cut into equal chunks.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Hashing(NamedTuple):
    """b₁, b₂, … buckets; tokens of a chunk; how many chunks before and after are seen as well.

    fill: published chunks are as many as if the text were a multiple of so many tokens.
    """

    factors: tuple[int, ...]
    chunk: int
    look: tuple[int, int]
    fill: int = 1

    @property
    def n_buckets(self) -> int:
        """b₁·b₂·…"""
        return math.prod(self.factors)

    @property
    def width(self) -> int:
        """Columns of R; a single bucket needs none."""
        return sum(factor // 2 for factor in self.factors)

    def check(self) -> "Hashing":
        """
        Raises:
            ValueError: an odd number of buckets other than 1, an empty chunk, or a negative look.
        """
        if not self.factors or any(f < 1 or (f % 2 and f > 1) for f in self.factors):
            raise ValueError(
                f"buckets come in pairs x and −x: an even number, or 1; got {self.factors}"
            )
        if self.chunk < 1 or min(self.look) < 0:
            raise ValueError(
                f"a chunk holds at least 1 token and looks 0 or more chunks around; got chunk "
                f"{self.chunk}, look {self.look}"
            )
        return self


class Chunks(NamedTuple):
    """Tokens laid into chunks of C slots.

    source (B, H, M, C): the token in each slot, −1 where it is empty. near (B, H, M, L): the chunks
    that a chunk sees. slots (B, H, R, S): where each token stands, of M·C.
    """

    source: Tensor
    near: Tensor
    slots: Tensor


Layout = Callable[[Tensor, Tensor, Hashing], Iterator[Chunks]]


def seeded(shape: tuple[int, ...], seed: int) -> Tensor:
    """R of N(0, 1) in float32, as torch.randn draws it behind torch.manual_seed(seed)."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)


@torch.no_grad()
def hashed(k: Tensor, rotations: Tensor, factors: tuple[int, ...]) -> Tensor:
    """k (B, H, S, D) and R (H, D, R, b/2) → the bucket of each in each round, (B, H, R, S)."""
    rounds = []
    for turn in rotations.to(k.dtype).unbind(2):  # (H, D, b/2)
        turned = k @ turn  # (B, H, S, b/2)
        bucket = torch.zeros(k.shape[:-1], dtype=torch.int64, device=k.device)
        first, times = 0, 1
        for factor in factors:
            if factor > 1:
                part = turned[..., first : first + factor // 2]
                top = part.abs().argmax(-1, keepdim=True)
                below = part.gather(-1, top) < 0  # then it is −x that is the largest
                bucket += times * (top + factor // 2 * below)[..., 0]
            first, times = first + factor // 2, times * factor
        rounds.append(bucket)
    return torch.stack(rounds, 2)


def within_buckets(buckets: Tensor, real: Tensor, hashing: Hashing) -> Iterator[Chunks]:
    """Chunks by a token's rank within its bucket, one round after another; tokens that are not
    `real` (B, S) stand in none. buckets (B, H, R, S).

    The last of the M chunks is always empty: it is what the first chunk of a bucket looks back at.
    """
    pads, size = hashing.n_buckets, hashing.chunk
    batch, heads, _, n = buckets.shape
    last = min(n, n // size + pads)  # as many chunks can be begun: a bucket has one unfinished
    real = real[:, None].expand(batch, heads, n)
    place = torch.arange(n, device=buckets.device).expand(batch, heads, n)
    for bucket in buckets.masked_fill(~real[:, :, None], pads).unbind(2):
        own, order = bucket.sort(stable=True)  # (B, H, S) by bucket, then by time
        begins = torch.ones_like(own, dtype=torch.bool)
        begins[..., 1:] = own[..., 1:] != own[..., :-1]
        rank = place - place.masked_fill(~begins, 0).cummax(-1).values
        heading = (rank % size == 0) & (own < pads)
        begun = torch.zeros_like(real).scatter(-1, order, heading).cumsum(-1) - 1  # in time
        number = begun.gather(-1, order.gather(-1, place - rank % size))
        number = number.masked_fill(own == pads, last)  # the chunk of each, in sorted order
        slot = number * size + (rank % size).masked_fill(own == pads, 0)
        source = torch.full((batch, heads, (last + 1) * size), -1, device=bucket.device)
        source = source.scatter(-1, slot, order).unflatten(-1, (last + 1, size))
        source[:, :, last] = -1
        near = []
        for step in range(-hashing.look[0], hashing.look[1] + 1):
            other = (place + step * size).clamp(0, n - 1)
            there = (place + step * size == other) & (own.gather(-1, other) == own) & heading
            seen = number.gather(-1, other).masked_fill(~there, last)
            table = torch.full((batch, heads, last + 2), last, device=bucket.device)
            to = number.masked_fill(~heading, last + 1)  # the others' word is thrown away
            near.append(table.scatter(-1, to, seen)[..., : last + 1])
        slots = torch.zeros_like(slot).scatter(-1, order, slot)
        yield Chunks(source, torch.stack(near, -1), slots[:, :, None])


def across_buckets(buckets: Tensor, real: Tensor, hashing: Hashing) -> Iterator[Chunks]:
    """The published chunks: all rounds sorted by bucket, one behind the other, in equal pieces.

    The first chunk sees the last one, and a chunk may hold several buckets. Padding stands at the
    end of each round, and so does what fills the last chunk.
    """
    pads, size = hashing.n_buckets, hashing.chunk
    batch, heads, rounds, n = buckets.shape
    bucket = buckets.masked_fill(~real[:, None, None], pads)
    more = -n % math.lcm(size, hashing.fill)
    own = torch.nn.functional.pad(bucket, (0, more), value=pads)  # (B, H, R, n')
    order = own.sort(stable=True).indices
    places = torch.arange(order.shape[-1] * rounds, device=own.device).view(rounds, -1)
    slots = torch.zeros_like(order).scatter(-1, order, places.expand_as(order))[..., :n]
    filled = torch.nn.functional.pad(real, (0, more), value=False)[:, None, None]
    stands = filled.expand_as(order).gather(-1, order)
    source = order.masked_fill(~stands, -1).flatten(2).unflatten(-1, (-1, size))
    m = source.shape[2]
    step = torch.arange(-hashing.look[0], hashing.look[1] + 1, device=own.device)
    near = (torch.arange(m, device=own.device)[:, None] + step) % m  # (M, L)
    yield Chunks(source, near.expand(batch, heads, *near.shape), slots)
