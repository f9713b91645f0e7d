"""checkpoints/step-N/: all that a run needs to go on as if it had never stopped.

weights.safetensors, optimizer.safetensors, state.json (step, place in the data, sums, best score)
and the random generators' states. Each set is written beside, fsynced and committed by one rename;
then older ones go. Resume takes the highest complete one.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from everyhead.errors import UserError
from everyhead.files import json_text, read_json, remove_partial, write_set
from everyhead.tensors import read_safetensors, write_tensors
from everyhead.training.optimizers import optimizer_tensors, restore_optimizer

FOLDER = "checkpoints"
_NAME = re.compile(r"step-(\d+)\Z")


def save_checkpoint(
    run: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> Path:
    """Write checkpoints/step-N for N = state["step"], then remove the older ones."""
    folder = run / FOLDER / f"step-{state['step']}"

    def write(beside: Path) -> None:
        write_tensors(beside / "weights.safetensors", dict(model.named_parameters()))
        write_tensors(beside / "optimizer.safetensors", optimizer_tensors(model, optimizer))
        write_tensors(beside / "random.safetensors", random_states())
        (beside / "state.json").write_bytes(json_text(state).encode("utf-8"))

    write_set(folder, write)
    for other in complete_checkpoints(run):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def complete_checkpoints(run: Path) -> list[Path]:
    """The run's checkpoints, lowest step first. A folder with this name is always complete."""
    folder = run / FOLDER
    found = [p for p in folder.iterdir() if _NAME.match(p.name)] if folder.is_dir() else []
    return sorted(found, key=lambda p: int(_NAME.match(p.name).group(1)))  # type: ignore[union-attr]


def recover(run: Path) -> list[Path]:
    """Sweep up after a killed writer; what can be resumed. Call it where no other writes."""
    remove_partial(run)
    remove_partial(run / FOLDER)
    return complete_checkpoints(run)


def load_checkpoint(
    run: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Put back weights, optimizer and random states of the highest checkpoint; returns its state.

    Raises:
        UserError: there is none, it is broken, or it does not fit the recipe's model.
    """
    found = recover(run)
    if not found:
        raise UserError(
            f"{run} has no checkpoint to resume from: it stopped before the first one. "
            "Start again with --overwrite."
        )
    folder = found[-1]
    _fill(model, read_safetensors(folder / "weights.safetensors"), folder)
    tensors = read_safetensors(folder / "optimizer.safetensors")
    try:
        restore_optimizer(model, optimizer, tensors)
    except ValueError as error:
        raise UserError(f"{folder} does not fit the model of the recipe: {error}.") from error
    state = read_json(folder / "state.json")
    restore_random_states(read_safetensors(folder / "random.safetensors"))
    return state


def random_states() -> dict[str, Tensor]:
    """The states of the generators that training draws from."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda.{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    return states


def restore_random_states(states: dict[str, Tensor]) -> None:
    """Put back what `random_states` gave."""
    torch.set_rng_state(states["cpu"])
    for i in range(torch.cuda.device_count()):
        if f"cuda.{i}" in states:
            torch.cuda.set_rng_state(states[f"cuda.{i}"], i)


@torch.no_grad()
def _fill(model: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    parameters = dict(model.named_parameters())
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    if shapes != {name: tuple(p.shape) for name, p in parameters.items()}:
        raise UserError(
            f"{folder} does not fit the model of the recipe: names or shapes of its weights "
            "differ. Resume with the recipe that lies in the run."
        )
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
