"""A run as the verbs need it: opened, on a device, with its recipe."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everyhead.errors import UserError
from everyhead.training.jobs.translate_recipe import EvaluateRecipe, TranslateRecipe
from everyhead.training.sections import Recipe

MOST_THREADS = 1024


@dataclass
class Opened:
    """Model in eval mode, tokenizer, and the recipe where the folder is a run."""

    folder: Path
    model: Any
    tokenizer: Any  # of pairs, of one text, or None
    recipe: Recipe | None

    @property
    def evaluation(self) -> EvaluateRecipe:
        recipe = self.recipe
        return recipe.evaluate if isinstance(recipe, TranslateRecipe) else EvaluateRecipe()


def open_run(folder: Path, *, device: str = "cpu", threads: int | None = None) -> Opened:
    """Load the weights to use from a run or a model folder.

    Raises:
        UserError: no such folder, nothing trained yet, or something broken in it.
    """
    from everyhead.training.run import RECIPE, is_run, run_recipe
    from everyhead.weights.folder import load
    from everyhead.weights.gguf import gguf_at

    choose_threads(threads)
    where = choose_device(device)
    if folder.exists() and (file := gguf_at(folder)) is not None:
        model, tokenizer = load(file)
        return Opened(folder, model.to(where).eval(), tokenizer, None)
    if not folder.exists():
        raise UserError(f"There is no run or model folder {folder}; check the path.")
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; give the folder of a run, like runs/demo.")
    if not (folder / "config.json").is_file():
        if is_run(folder):
            raise UserError(
                f"{folder} has no weights to use yet: training stopped before its first "
                f"evaluation. Go on with: {resume_command(folder)}"
            )
        raise UserError(
            f"{folder} is no run: it has neither a {RECIPE} nor a config.json. Give the folder "
            "that training wrote, like runs/demo."
        )
    model, tokenizer = load(folder)
    recipe = run_recipe(folder) if (folder / RECIPE).is_file() else None
    return Opened(folder, model.to(where).eval(), tokenizer, recipe)


def resume_command(folder: Path) -> str:
    """What to type to go on with this run."""
    recipe = folder / "recipe.toml"
    return shlex.join(["everyhead", "train", str(recipe), "--run", str(folder), "--resume"])


def choose_threads(threads: int | None) -> None:
    """Processor threads for the whole program.

    Raises:
        UserError: fewer than one, or more than any machine has.
    """
    import torch

    if threads is None:
        return
    if threads < 1:
        raise UserError(f"--threads must be 1 or more; got {threads}.")
    if threads > MOST_THREADS:
        raise UserError(f"--threads must be {MOST_THREADS} or fewer; got {threads}.")
    torch.set_num_threads(threads)


def choose_device(name: str) -> str:
    """The device of that name, if this machine has it.

    Raises:
        UserError: unknown, or not here.
    """
    import torch

    here = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # meta has no numbers to give back
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(
            f"--device {name} cannot be used here; there is {', '.join(here)}."
        ) from error
    return name
