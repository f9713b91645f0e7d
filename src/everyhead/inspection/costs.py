"""What a model costs by the token: operations and memory, in training and in decoding.

Measured, not derived: a forward pass over three short lengths (weightless.py) is counted, and as
every cost here is a polynomial of the length T of at most second degree (maps: T, attention: T²),
three lengths give it for any. A variant of attention (windows, buckets, features) may cost
otherwise: it is counted at the length itself.

    training    3 × the forward pass (backward is two more; Kaplan et al. 2020, 2001.08361, 2.1);
                weights, gradients and Adam's two moments in float32; what autograd keeps by token
    decoding    one more token behind T others; keys and values, or a state, in the cache
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from everyhead.inspection.weightless import arguments, counting, has_variants

Polynomial = Callable[[int], int]
SHORT = (5, 6, 7)  # tokens
FLOAT32, ADAM = 4, 16  # bytes a parameter: alone; with gradient and two moments


class Decoding(NamedTuple):
    """Of one more token behind `length` others; cache in numbers, not bytes."""

    flops: int
    cache_per_token: int
    cache_fixed: int  # whatever the length: the memory's keys and values, a state


class Costs(NamedTuple):
    """For one row: `length` tokens on each side, or a picture and its text.

    tokens: into which the row is counted; 1 where it is a picture. forward: floating-point
    operations of the row. kept: bytes that autograd keeps of the row until backward, in float32.
    """

    length: int
    tokens: int
    parameters: int
    forward: int
    kept: int
    decoding: Decoding | None

    @property
    def training(self) -> int:
        """Operations a token: forward and backward."""
        return 3 * self.forward // self.tokens


def costs(model: nn.Module, length: int) -> Costs:
    """What `model` (made inside weightless.Unmade, or any) costs at this length.

    Raises:
        ValueError: a kind of input that is not known here.
    """
    forward, kept = [], []
    lengths = _lengths(model, length)
    for n in lengths:
        row = inputs(model, n)
        with counting(model) as counted:
            model.train()(**row)
        forward.append(counted.flops)
        kept.append(counted.kept)
    model.eval()
    return Costs(
        length=length,
        tokens=1 if "pixels" in inputs(model, 1) else length,
        parameters=sum(p.numel() for p in model.parameters()),
        forward=_through(lengths, forward)(length),
        kept=_through(lengths, kept)(length),
        decoding=_decoding(model, length) if hasattr(model, "cache") else None,
    )


def inputs(model: nn.Module, n: int, memory: int | None = None) -> dict[str, Tensor]:
    """One row of what the model's forward needs: n tokens (`memory` of them at the source).

    Raises:
        ValueError: a kind of input that is not known here.
    """
    config: Any = model.config
    end = getattr(config, "eos_id", None)  # where CLIP reads a text
    ids = torch.full((1, n), end if isinstance(end, int) else 0)
    known = {
        "ids": lambda: ids,
        "target": lambda: ids,
        "source": lambda: torch.zeros(1, memory or n, dtype=torch.long),
        "pixels": lambda: torch.zeros(1, config.n_channels, *config.image_size),
    }
    wanted = [name for name in known if name in arguments(model.forward)]
    if not wanted:
        raise ValueError(f"what {type(model).__name__} takes is not known here")
    return {name: known[name]() for name in wanted}


def _lengths(model: nn.Module, length: int) -> tuple[int, ...]:
    """At which lengths to count: three short ones, or the length alone where a variant attends."""
    return (length,) if has_variants(model) else SHORT


def _through(lengths: Sequence[int], values: Sequence[int]) -> Polynomial:
    """The polynomial of least degree through values at these lengths, exactly (Lagrange)."""

    def at(length: int) -> int:
        total = Fraction(0)
        for i, value in enumerate(values):
            term = Fraction(value)
            for j, x in enumerate(lengths):
                if j != i:
                    term *= Fraction(length - x, lengths[i] - x)
            total += term
        return int(total)

    return at


def _decoding(model: Any, length: int) -> Decoding:
    """One step with a cache that has room for just these tokens."""
    flops, sizes = [], []
    lengths = _lengths(model, length)
    for n in lengths:
        with counting(model) as counted, torch.no_grad():
            step, _ = _primed(model, n - 1, n, n)
            before = counted.flops
            step()
            flops.append(counted.flops - before)
    rooms = lengths if len(lengths) > 1 else (max(2, length // 2), max(3, length))
    for n in rooms:
        with counting(model), torch.no_grad():
            step, cache = _primed(model, n - 1, n, SHORT[0])
            step()
            sizes.append(held_numbers(cache))
    size = _through(rooms, sizes)
    fixed = size(0)
    if "source" in inputs(model, 1):
        with counting(model), torch.no_grad():
            step, cache = _primed(model, n - 1, n, SHORT[0] + 1)
            step()
        a_token = held_numbers(cache) - sizes[-1]  # a state is as large for any source
        fixed += a_token * (length - SHORT[0])
    return Decoding(_through(lengths, flops)(length), size(2) - size(1), fixed)


def _primed(model: Any, before: int, room: int, source: int) -> tuple[Callable[[], Any], Any]:
    """The next step, and the cache it uses, after `before` tokens."""
    row = inputs(model, before, source)
    if "source" in row:
        memory = model.encode(row["source"])
        cache = model.cache(memory, room)
        model.decode(row["target"], memory, cache=cache)
        one = row["target"][:, :1]
        return lambda: model.head(model.decode(one, memory, cache=cache)), cache
    cache = model.cache(room)
    model.hidden(**row, cache=cache)
    next_row: dict[str, Any] = {**row, "ids": row["ids"][:, :1]}
    if "pixels" in row:
        next_row["pixels"] = None
    return lambda: model.head(model.hidden(**next_row, cache=cache)), cache


def held_numbers(cache: Any) -> int:
    """Floating-point numbers in a cache, each memory once, as large as its room is.

    Where of the layers' caches the first alone was used, each is taken to be as large.
    """
    return sum(_memories(cache, frozenset()).values())


def _memories(held: Any, above: frozenset[int]) -> dict[int, int]:
    """Where each memory lies → numbers in it."""
    if id(held) in above:
        return {}
    above |= {id(held)}
    if isinstance(held, Tensor):
        storage = held.untyped_storage()
        n = storage.nbytes() // held.element_size()
        return {storage.data_ptr(): n} if held.is_floating_point() else {}
    if isinstance(held, dict):
        held = tuple(held.values())
    elif hasattr(held, "__dict__"):
        return _memories(vars(held), above)
    elif not isinstance(held, list | tuple):
        return {}
    found = [_memories(each, above) for each in held]
    first, others = (found[0], found[1:]) if found else ({}, [])
    shared = {place for other in others for place in other}
    if isinstance(held, list) and others and shared <= first.keys():
        return {place: n if place in shared else n * len(found) for place, n in first.items()}
    return {place: n for each in found for place, n in each.items()}
