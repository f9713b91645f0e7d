"""The law of runs: 20 steps are 10, a resume and 10, bit for bit (DESIGN's law 8).

Both ways start from the run's last checkpoint and go on in copies in a temporary folder; the run
itself is only read.
"""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from everyhead.errors import UserError

if TYPE_CHECKING:
    from everyhead.inspection.verdicts import Finding
    from everyhead.training.job import Prepared
    from everyhead.training.loop import Trainer

LAW = "resume"
STEPS = 20
HOLDS = f"{STEPS} steps are {STEPS // 2}, a resume and {STEPS // 2} more, bit for bit."


def resumed(run: Path | None) -> "Finding":
    """The law's verdict on a run's folder."""
    from everyhead.inspection.verdicts import Finding

    if run is None:
        return Finding(LAW, "not applicable", "It is a model, not a run that training could go on.")
    try:
        prepared, start = _prepared(run)
    except (UserError, OSError) as error:
        return Finding(LAW, "not applicable", f"Its training cannot be set up here: {error}")
    try:
        changed = _changed(run, prepared, start)
    except UserError as error:
        return Finding(LAW, "fail", f"It cannot go on: {error}")
    if changed is None:
        return Finding(LAW, "pass", HOLDS)
    words = (
        f"{STEPS} steps are not {STEPS // 2}, a resume and {STEPS // 2} more: {changed} differs "
        "after them."
    )
    steps = {"from_step": start, "stopped_at": start + STEPS // 2, "compared_at": start + STEPS}
    return Finding(LAW, "fail", words, steps, changed)


def _prepared(run: Path) -> "tuple[Prepared, int]":
    """The run's data and recipe, to go 20 steps on from its last checkpoint."""
    from everyhead.cli.train import tools
    from everyhead.training import run as runs
    from everyhead.training.checkpoints import complete_checkpoints

    saved = complete_checkpoints(run)
    start = int(saved[-1].name.removeprefix("step-")) if saved else 0
    recipe = runs.run_recipe(run)
    steps = {
        "max_steps": start + STEPS,
        "save_every": start + STEPS // 2,
        "evaluate_every": start + STEPS,
    }
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update=steps)})
    return runs.prepare(recipe, run, tools()), start


def _changed(run: Path, prepared: "Prepared", start: int) -> str | None:
    """The first tensor that differs, or None."""
    with tempfile.TemporaryDirectory() as folder:
        straight, stopped = Path(folder) / "straight", Path(folder) / "stopped"
        for copy in (straight, stopped):
            _copy(run, copy)
        _train(prepared, straight)
        _train(prepared, stopped, until=start + STEPS // 2)
        _train(prepared, stopped)
        return _difference(straight, stopped, start + STEPS)


def _copy(run: Path, copy: Path) -> None:
    """What a resume reads of a run."""
    from everyhead.training import metrics
    from everyhead.training.checkpoints import FOLDER, complete_checkpoints

    copy.mkdir()
    for checkpoint in complete_checkpoints(run)[-1:]:
        shutil.copytree(checkpoint, copy / FOLDER / checkpoint.name)
    if (run / metrics.FILE).is_file():
        shutil.copyfile(run / metrics.FILE, copy / metrics.FILE)


def _train(prepared: "Prepared", copy: Path, until: int | None = None) -> None:
    """Go on from the copy's checkpoint to the end; or until this step, then as if killed."""
    trainer = _trainer(prepared, copy, until)
    trainer.resume()
    try:
        trainer.fit()
    except _Killed:
        return


class _Killed(Exception):
    """Training stops in the middle of a step, as a process that is gone."""


def _trainer(prepared: "Prepared", copy: Path, until: int | None) -> "Trainer":
    from everyhead.training.listener import Silent, State
    from everyhead.training.run import make_trainer
    from everyhead.training.step import StepReport

    class Killer(Silent):
        def stepped(self, state: State, report: StepReport, rate: float) -> None:
            if until is not None and state.step > until:
                raise _Killed

    trainer = make_trainer(prepared, copy, save=lambda model: None, listener=Killer())
    trainer.validation = trainer.validation[:1]  # the law is of training alone
    return trainer


def _difference(one: Path, two: Path, step: int) -> str | None:
    import torch

    from everyhead.tensors import read_safetensors
    from everyhead.training.checkpoints import FOLDER

    for name in ("weights.safetensors", "optimizer.safetensors"):
        first, second = (read_safetensors(c / FOLDER / f"step-{step}" / name) for c in (one, two))
        for key in sorted(first.keys() | second.keys()):
            if key not in first or key not in second or not torch.equal(first[key], second[key]):
                return f"{key} in {name}"
    return None
