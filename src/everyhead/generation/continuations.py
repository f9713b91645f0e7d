"""How probable given continuations of prompts are: Brown et al. 2020 (2005.14165) section 2.4.

    log p(y | x) = Σₜ log p(yₜ | x, y₁ … yₜ₋₁)        and its mean of a token

What all prompts begin with (the examples of a few-shot prompt) is read once; each prompt's own rest
is read once for all of its continuations; a continuation of one token needs nothing more.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from everyhead.errors import UserError
from everyhead.generation.decoder import Decoder, checked, device_of, read
from everyhead.generation.search import inference
from everyhead.layers.cache import TextCache

Ids = Sequence[int]


class Likelihood(NamedTuple):
    """log p of a continuation, natural logarithm, over its n tokens."""

    log_prob: float
    n_tokens: int

    @property
    def mean(self) -> float:
        """log p of a token."""
        return self.log_prob / max(1, self.n_tokens)


class Case(NamedTuple):
    """A prompt and what may follow it, as ids."""

    prompt: Ids
    continuations: Sequence[Ids]

    @property
    def longest(self) -> int:
        """Most tokens of a continuation."""
        return max((len(each) for each in self.continuations), default=0)


def likelihoods(
    model: Decoder,
    cases: Sequence[Case],
    *,
    batch_tokens: int = 8192,
    progress: Callable[[int], None] | None = None,
) -> list[list[Likelihood]]:
    """The likelihood of each continuation after its prompt, in order.

    Args:
        cases: prompts of at least one id, and continuations; an empty one has log p 0.
        batch_tokens: positions of all rows, beyond what they share, that are held at once.
        progress: called with the number of cases that are done.

    Raises:
        UserError: a prompt with a continuation is longer than the model's max_len.
        ValueError: a prompt without an id, or logits that are not finite.
    """
    check_lengths(cases, int(model.config.max_len))
    found: list[list[Likelihood]] = [[] for _ in cases]
    if not cases:
        return found
    shared = shared_beginning([case.prompt for case in cases])
    rests = [case._replace(prompt=case.prompt[shared:]) for case in cases]
    longest = max(len(case.prompt) for case in rests) + max(case.longest for case in rests)
    done = 0
    with inference(model):
        begun = model.cache(shared + longest, rows=1, device=device_of(model))
        if shared:
            read(model, [cases[0].prompt[:shared]], begun)
        for group in _groups(rests, batch_tokens):
            scores = _scored(model, [rests[i] for i in group], copy.deepcopy(begun))
            for i, several in zip(group, scores, strict=True):
                found[i] = several
            done += len(group)
            if progress is not None:
                progress(done)
    return found


def check_lengths(cases: Sequence[Case], max_len: int) -> None:
    """Raises as `likelihoods` does."""
    for number, case in enumerate(cases, 1):
        n = len(case.prompt) + max(0, case.longest - 1)
        if not case.prompt:
            raise ValueError(f"prompt {number} has no id; a likelihood is that after something")
        if n > max_len:
            raise UserError(
                f"Prompt {number} has {n} tokens with its continuation, and the model reads at "
                f"most {max_len}: give fewer or shorter examples, or a shorter text."
            )


def shared_beginning(prompts: Sequence[Ids]) -> int:
    """How many first ids all prompts have in common, less the last id of each."""
    most = min(len(prompt) for prompt in prompts) - 1
    columns = zip(*(prompt[:most] for prompt in prompts), strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def _groups(cases: Sequence[Case], batch_tokens: int) -> Iterator[list[int]]:
    """Places of cases that go together, longest first: rows · longest ≤ batch_tokens, or one."""
    lengths = [
        max(1, len(each.continuations)) * (len(each.prompt) + each.longest) for each in cases
    ]
    order = sorted(range(len(cases)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        size = max(1, batch_tokens // lengths[order[start]])
        yield order[start : start + size]
        start += size


def _scored(model: Decoder, cases: Sequence[Case], cache: TextCache) -> list[list[Likelihood]]:
    """Of cases that stand behind what the cache of one row holds."""
    device = device_of(model)
    cache.reorder(torch.zeros(len(cases), dtype=torch.long, device=device))
    hidden = read(model, [case.prompt for case in cases], cache)  # (n, C)
    first = checked(model.head(hidden)).log_softmax(-1)  # (n, V)
    pairs = [(i, ids) for i, case in enumerate(cases) for ids in case.continuations]
    sums = torch.zeros(len(pairs), dtype=torch.float64, device=device)
    some = [j for j, (_, ids) in enumerate(pairs) if ids]
    if some:
        of = torch.tensor([pairs[j][0] for j in some], device=device)
        heads = torch.tensor([pairs[j][1][0] for j in some], device=device)
        sums[some] += first[of, heads].double()
    long = [j for j in some if len(pairs[j][1]) > 1]
    if long:
        cache.reorder(torch.tensor([pairs[j][0] for j in long], device=device))
        sums[long] += _later(model, [pairs[j][1] for j in long], cache)
    scores = iter(sums.tolist())
    return [[Likelihood(next(scores), len(ids)) for ids in case.continuations] for case in cases]


def _later(model: Decoder, rows: Sequence[Ids], cache: TextCache) -> Tensor:
    """Σ log p of all but the first id of each row: float64 (n,)."""
    longest = max(map(len, rows)) - 1
    padded = [[*row, *[0] * (longest + 1 - len(row))] for row in rows]
    ids = torch.tensor(padded, device=device_of(model))  # (n, longest + 1)
    lengths = torch.tensor([len(row) - 1 for row in rows], device=ids.device)
    real = torch.arange(longest, device=ids.device) < lengths[:, None]  # (n, longest)
    hidden = model.hidden(ids[:, :-1], None if bool(real.all()) else real, cache=cache)
    places = real.nonzero()  # (N, 2)
    logits = checked(model.head(hidden[real])).log_softmax(-1)  # (N, V)
    found = logits.gather(1, ids[:, 1:][real][:, None])[:, 0].double()  # (N,)
    return torch.zeros(len(rows), dtype=torch.float64, device=ids.device).index_add(
        0, places[:, 0], found
    )
