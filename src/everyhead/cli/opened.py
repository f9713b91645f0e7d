"""A run as the verbs need it: opened, on a device, with its recipe and its held-out pairs."""

from dataclasses import dataclass
from pathlib import Path

from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.errors import UserError
from everyhead.models.transformer import Transformer
from everyhead.training.recipe import Recipe
from everyhead.training.sections import EvaluateRecipe


@dataclass
class Opened:
    """Model in eval mode, tokenizer, and the recipe where the folder is a run."""

    folder: Path
    model: Transformer
    tokenizer: PairTokenizer
    recipe: Recipe | None

    @property
    def evaluation(self) -> EvaluateRecipe:
        return self.recipe.evaluate if self.recipe else EvaluateRecipe()


def open_run(folder: Path, *, device: str = "cpu", threads: int | None = None) -> Opened:
    """Load the weights to use from a run or a model folder.

    Raises:
        UserError: no such folder, nothing trained yet, or something broken in it.
    """
    from everyhead.training.checkpoints import complete_checkpoints
    from everyhead.training.run import RECIPE, run_recipe
    from everyhead.weights.folder import load

    choose_threads(threads)
    if not folder.is_dir():
        raise UserError(f"There is no run or model folder {folder}; check the path.")
    if not (folder / "config.json").is_file() and (
        complete_checkpoints(folder) or (folder / RECIPE).is_file()
    ):
        raise UserError(
            f"{folder} has no weights to use yet: training stopped before its first evaluation. "
            f"Go on with: everyhead train {folder / RECIPE} --run {folder} --resume"
        )
    model, tokenizer = load(folder)
    recipe = run_recipe(folder) if (folder / RECIPE).is_file() else None
    return Opened(folder, model.to(choose_device(device)).eval(), tokenizer, recipe)


def choose_threads(threads: int | None) -> None:
    """Processor threads for the whole program.

    Raises:
        UserError: fewer than one.
    """
    import torch

    if threads is None:
        return
    if threads < 1:
        raise UserError(f"--threads must be 1 or more; got {threads}.")
    torch.set_num_threads(threads)


def choose_device(name: str) -> str:
    """The device of that name, if this machine has it.

    Raises:
        UserError: unknown, or not here.
    """
    import torch

    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        here = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        raise UserError(
            f"Device {name!r} cannot be used here; there is {' and '.join(here)}."
        ) from error
    return name
