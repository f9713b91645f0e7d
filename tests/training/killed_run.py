"""A small training run in a process of its own, begun or resumed as `everyhead train` does it."""

from multiprocessing.connection import Connection
from pathlib import Path

import torch

from everyhead.training.job import Tools
from everyhead.training.listener import Silent, State
from everyhead.training.run import is_run, make_trainer, prepare, run_recipe, write_beginnings
from everyhead.training.sections import Recipe
from everyhead.training.step import StepReport
from everyhead.weights.folder import load, save


class Progress(Silent):
    """Sends the number of each step that is done."""

    def __init__(self, to: Connection) -> None:
        self.to = to

    def stepped(self, state: State, report: StepReport, rate: float) -> None:
        self.to.send(state.step)


def train(run: Path, recipe: Recipe, to: Connection) -> None:
    """Go on with the run if it has begun, else begin it; to the end, if nobody kills it."""
    torch.set_num_threads(1)
    begun = is_run(run)
    used, tools = run_recipe(run) if begun else recipe, Tools(load, save)
    prepared = prepare(used, run if begun else None, tools)
    if not begun:
        run.mkdir(parents=True, exist_ok=True)
        prepared.write(run)
        write_beginnings(run, prepared)
    trainer = make_trainer(prepared, run, listener=Progress(to))
    if begun:
        trainer.resume()
    trainer.fit()
