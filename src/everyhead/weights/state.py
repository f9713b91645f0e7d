"""From a model to named tensors and back, strictly: every tensor placed, every parameter filled.

Tied tensors have several names and are stored once, under the first; on the way back any of the
names fills all of them, and they are one Parameter still.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from everyhead.errors import UserError
from everyhead.weights.names import Change, unchanged

SHOWN = 12  # names of one kind in an error


class Slot(NamedTuple):
    """One tensor of a model: what it is called in the model and in the file, most usual first."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    to_theirs: Change = unchanged
    to_ours: Change = unchanged


class Undrawn(TorchFunctionMode):
    """Inside, what would be filled with random numbers keeps whatever its memory holds.

    The meta device would do the same, but it loads PyTorch's compiler, which takes seconds.
    """

    names = ("normal_", "uniform_", "trunc_normal_")  # of torch.nn.init and of Tensor

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self.names:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def own_slots(model: nn.Module) -> list[Slot]:
    """A slot for each parameter and saved buffer, the file's names being the model's own."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    return [Slot(tuple(group), tuple(group)) for group in names.values()]


def collect(model: nn.Module, slots: Collection[Slot]) -> dict[str, Tensor]:
    """The tensors under the file's first names: copies, float32, on the CPU."""
    state = model.state_dict()
    return {
        slot.theirs[0]: slot.to_theirs(state[slot.ours[0]].to("cpu", torch.float32, copy=True))
        for slot in slots
    }


def aliases(slots: Collection[Slot]) -> dict[str, str]:
    """The names that are not stored → the name they are stored under."""
    return {alias: slot.theirs[0] for slot in slots for alias in slot.theirs[1:]}


def fill(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    slots: Collection[Slot],
    *,
    known: Collection[str] = (),
    where: object = "the file",
    described: str = "its config.json",
) -> None:
    """Copy the file's tensors into the model; `known` names the file may hold besides.

    Nothing is changed if anything does not fit. described: by what the model was made.

    Raises:
        UserError: missing, unexpected, wrongly shaped or contradicting tensors, all of them listed.
    """
    fits = _Fits(model, tensors)
    chosen = [(slot, fits.tensor_for(slot)) for slot in slots]
    expected = {name for slot in slots for name in slot.theirs} | set(known)
    fits.faults["unexpected"] = sorted(tensors.keys() - expected)
    fits.raise_if_any(where, described)
    with torch.no_grad():
        for slot, tensor in chosen:
            assert tensor is not None
            fits.state[slot.ours[0]].copy_(tensor)


class _Fits:
    """Finds the tensor of each slot and keeps a list of what is wrong."""

    def __init__(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        self.state, self.tensors = model.state_dict(), tensors
        self.faults: dict[str, list[str]] = {
            "missing": [],
            "wrong shape": [],
            "no floating-point numbers": [],
            "tied, but different in the file": [],
        }

    def tensor_for(self, slot: Slot) -> Tensor | None:
        found = [name for name in slot.theirs if name in self.tensors]
        if not found:
            self.faults["missing"].append(slot.theirs[0])
            return None
        name, tensor = found[0], self.tensors[found[0]]
        if not tensor.is_floating_point():
            self.faults["no floating-point numbers"].append(f"{name} ({tensor.dtype})")
            return None
        if any(not torch.equal(tensor, self.tensors[other]) for other in found[1:]):
            self.faults["tied, but different in the file"].append(" and ".join(found))
        needed = slot.to_theirs(self.state[slot.ours[0]]).shape
        if tensor.shape != needed:
            shapes = f"{name} is {tuple(tensor.shape)}, not {tuple(needed)}"
            self.faults["wrong shape"].append(shapes)
            return None
        return slot.to_ours(tensor)

    def raise_if_any(self, where: object, described: str) -> None:
        parts = [f"{kind}: {listed(names)}" for kind, names in self.faults.items() if names]
        if parts:
            raise UserError(
                f"The weights in {where} do not fit {described} — {'; '.join(parts)}. "
                "Both must come from the same save of the same model."
            )


def listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
