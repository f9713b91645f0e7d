"""What a row goes through in a model: each step with the shape that leaves it, and its parameters.

Watched, not written down: a forward pass without weights (weightless.py) says which parts are used
in which order. Of blocks that are alike the first is shown, with how many there are.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from everyhead.inspection.costs import inputs
from everyhead.inspection.weightless import counting, stacks

PRIMES = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)
Shape = tuple[int | str, ...]


class Step(NamedTuple):
    """One part that a row goes through.

    name: its path in the model, `*` for the number of a block. kind: its class and widths. shape:
    of what leaves it, B rows, T tokens, S of the source. parameters: its own, of one block; those
    that an earlier step has already (tied), or that all blocks share, are not counted. times:
    blocks in a row.
    """

    name: str
    kind: str
    shape: Shape
    parameters: int
    times: int


class Part(NamedTuple):
    """A part of the model and its parameters; tied ones count where they come first."""

    name: str
    parameters: int


@torch.no_grad()
def steps(model: nn.Module) -> list[Step]:
    """The steps of a forward pass, in the order in which they end.

    Raises:
        ValueError: what the model takes is not known here (costs.inputs).
    """
    tokens, source = _unused(model)
    letters: dict[int, str] = {tokens: "T", source: "S"}
    found: list[Step] = []
    watched = _watched(model)
    seen = shared(model)

    def watch(name: str, part: nn.Module, times: int) -> Any:
        def leave(module: nn.Module, given: Any, out: Any) -> None:
            if any(step.name == name for step in found):
                return
            shape = _shape(out, letters)
            found.append(Step(name, _kind(part), shape, _own(part, seen), times))

        return part.register_forward_hook(leave)

    row = inputs(model, tokens, source)
    with counting(model):
        hooks = [watch(*each) for each in watched]
        try:
            model.eval()(**row)
        finally:
            for hook in hooks:
                hook.remove()
    return found


def parts(model: nn.Module) -> list[Part]:
    """The model's children and own parameters, with how many numbers each holds."""
    seen: set[int] = set()
    found = []
    for name, child in model.named_children():
        found.append(Part(name, _own(child, seen)))
    for name, parameter in model.named_parameters(recurse=False):
        found.append(Part(name, parameter.numel()))
    return [part for part in found if part.parameters or part.name.endswith("head")]


def shared(model: nn.Module) -> set[int]:
    """Parameters (by id) that stand in more than one block of a stack."""
    found: set[int] = set()
    for stack, _ in stacks(model):
        before: set[int] = set()
        for block in getattr(stack, "blocks"):  # noqa: B009
            own = {id(parameter) for parameter in block.parameters()}
            found |= own & before
            before |= own
    return found


def _watched(model: nn.Module) -> list[tuple[str, nn.Module, int]]:
    """Parts worth a line: children of the model, and inside a stack those of its first block."""
    alike = {id(stack): n for stack, n in stacks(model)}
    found: list[tuple[str, nn.Module, int]] = []

    def walk(name: str, part: nn.Module, times: int) -> None:
        blocks = getattr(part, "blocks", None)
        if isinstance(blocks, nn.ModuleList):
            n = alike.get(id(part))
            inner = list(blocks)[:1] if n else list(blocks)
            for number, block in enumerate(inner):
                for child, module in block.named_children():
                    walk(f"{name}.{'*' if n else number}.{child}", module, n or 1)
            for child, module in part.named_children():
                if child != "blocks":
                    walk(f"{name}.{child}", module, times)
        elif any(True for _ in part.parameters()):
            found.append((name, part, times))

    for name, child in model.named_children():
        walk(name, child, 1)
    return found


def _kind(part: Any) -> str:
    """Class and widths: `MultiHeadAttention, 12 heads of 64`."""
    words = [type(part).__name__]
    if hasattr(part, "n_heads") and hasattr(part, "d_head"):
        words.append(f"{part.n_heads} heads of {part.d_head}")
        if getattr(part, "n_kv_heads", part.n_heads) != part.n_heads:
            words.append(f"{part.n_kv_heads} of keys and values")
    elif hasattr(part, "up_proj"):
        words.append(f"{part.up_proj.weight.shape[0]:,} wide")
    return ", ".join(words)


def _own(part: nn.Module, seen: set[int]) -> int:
    total = 0
    for parameter in part.parameters():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            total += parameter.numel()
    return total


def _shape(out: Any, letters: dict[int, str]) -> Shape:
    """Of a tensor, or of the first in a tuple; rows are B."""
    while isinstance(out, tuple | list) and out:
        out = out[0]
    if not isinstance(out, Tensor):
        return ()
    sizes = [letters.get(size, size) for size in out.shape]
    return tuple("B" if i == 0 and size == 1 else size for i, size in enumerate(sizes))


def _unused(model: nn.Module) -> tuple[int, int]:
    """Two lengths that are no width of the model, so that they are known again in a shape."""
    widths = {size for parameter in model.parameters() for size in parameter.shape}
    longest = getattr(getattr(model, "config", None), "max_len", None) or max(PRIMES)
    free = [n for n in PRIMES if n not in widths and n <= longest]
    if len(free) < 2:
        return 2, 3
    return free[0], free[1]
