"""The next token: the most probable one, or one drawn from the model's distribution.

    p = softmax(logits / T)              temperature T; T → 0 is the most probable token
    top-k    only the k most probable ones          Fan et al. 2018 (1805.04833) section 5.1
    top-p    the fewest whose sum reaches p         Holtzman et al. 2020 (1904.09751) section 3.1
    min-p    those of at least min_p · max p        Nguyen et al. 2024 (2407.01082) section 3
    logits of tokens that the text has already      Keskar et al. 2019 (1909.05858) section 4.1
             are divided by θ if positive, multiplied if negative (repetition penalty)

They apply in this order: penalty, temperature, top-k, top-p, min-p. A drawn token is the first one
at which the cumulated probability exceeds a number u in [0, 1) times their sum. The numbers u are a
text's own, a function of the seed alone: whatever else is in the batch changes nothing.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from everyhead.errors import UserError

HIDDEN = float("-inf")
LEAST_TEMPERATURE = torch.finfo(torch.float32).tiny  # anything less is 0 in float32
MOST_REPETITION = 1e9  # and its inverse: with more of either, logits are no finite numbers


class Sampling(NamedTuple):
    """How the next token is chosen. Temperature 0: the most probable one."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def check(self) -> None:
        """Raises UserError where a number makes no sense."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(
                f"temperature is {self.temperature}; give 0 for the most probable token each time, "
                "or a positive number such as 0.8."
            )
        if self.top_k < 0:
            raise UserError(f"top_k is {self.top_k}; give a number of tokens, or 0 for all.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}; give a share above 0 and up to 1 (all).")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"min_p is {self.min_p}; give a share from 0 (all) to 1.")
        if not 1 / MOST_REPETITION <= self.repetition_penalty <= MOST_REPETITION:
            raise UserError(
                f"repetition_penalty is {self.repetition_penalty}; give a positive number, 1 for "
                f"none and at most {MOST_REPETITION:,.0f} or one part of that."
            )


def kept(logits: Tensor, how: Sampling) -> Tensor:
    """logits (B, V) / T, the best at 0, with −∞ where a token is out of the question; T > 0."""
    logits = logits - logits.amax(-1, keepdim=True)  # so that no T makes the best infinite
    logits = logits / max(how.temperature, LEAST_TEMPERATURE)
    if 0 < how.top_k < logits.shape[-1]:
        least = logits.topk(how.top_k).values[..., -1:]  # (B, 1)
        logits = logits.masked_fill(logits < least, HIDDEN)
    if how.top_p < 1:
        ordered, order = logits.sort(-1, descending=True)
        shares = ordered.softmax(-1)
        before = shares.cumsum(-1) - shares  # (B, V), of those that are more probable
        beyond = before >= how.top_p
        beyond[..., 0] = False  # the best stays, however small p is
        ordered = ordered.masked_fill(beyond, HIDDEN)
        logits = torch.empty_like(logits).scatter_(-1, order, ordered)
    if how.min_p > 0:
        least = logits.amax(-1, keepdim=True) + math.log(how.min_p)
        logits = logits.masked_fill(logits < least, HIDDEN)
    return logits


def penalised(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """logits (B, V) with those of seen tokens (bool, B, V) pushed down by the penalty θ."""
    pushed = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, pushed, logits)


def drawn(logits: Tensor, u: Tensor) -> Tensor:
    """One token a row by its number u in [0, 1): logits (B, V), u (B,) → int64 (B,)."""
    mass = logits.softmax(-1, dtype=torch.float64).cumsum(-1)  # (B, V)
    place = torch.searchsorted(mass, u[:, None] * mass[:, -1:], right=True)
    return place[:, 0]


def numbers(seed: int, sample: int, n: int) -> Tensor:
    """n numbers in [0, 1), float64, that belong to this seed's text of this number."""
    digest = hashlib.blake2b(f"{seed} {sample}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest) >> 1)
    return torch.rand(n, generator=generator, dtype=torch.float64)


class Sampler:
    """Chooses one token a row and step; rows are those of the batch, and shrink with it."""

    def __init__(
        self,
        how: Sampling,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[tuple[int, int]],
        n_steps: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        """prompts: of each row; seeds: each row's seed and the number of its text under it."""
        self.how, self.step = how, 0
        self.numbers: Tensor | None = None  # (B, steps)
        self.seen: Tensor | None = None  # (B, V)
        if how.temperature > 0:
            rows = [numbers(seed, sample, n_steps) for seed, sample in seeds]
            self.numbers = torch.stack(rows).to(device)
        if how.repetition_penalty != 1:
            self.seen = torch.zeros(len(prompts), vocab_size, dtype=torch.bool, device=device)
            for i, row in enumerate(prompts):
                self.seen[i, torch.tensor(row, device=device)] = True

    def choose(self, logits: Tensor) -> Tensor:
        """logits (B, V) of the next token → int64 (B,)."""
        if self.seen is not None:
            logits = penalised(logits, self.seen, self.how.repetition_penalty)
        if self.numbers is None:
            chosen = logits.argmax(-1)
        else:
            chosen = drawn(kept(logits, self.how), self.numbers[:, self.step])
        if self.seen is not None:
            self.seen.scatter_(1, chosen[:, None], True)
        self.step += 1
        return chosen

    def select(self, index: Tensor) -> None:
        """Go on with these rows."""
        if self.numbers is not None:
            self.numbers = self.numbers.index_select(0, index)
        if self.seen is not None:
            self.seen = self.seen.index_select(0, index)
