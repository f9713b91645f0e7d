"""What `everyhead train` was asked for: which recipe, and in which folder."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from everyhead.errors import UserError

if TYPE_CHECKING:
    from everyhead.training.sections import Recipe

RECIPE = "recipe.toml"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A recipe by name or path, with or without files for its data; or a file of pairs, or two.

    And the run's folder.
    """

    recipe: str | None
    files: tuple[Path, ...] = ()
    pairs: Path | None
    source: Path | None
    target: Path | None
    run: Path | None
    resume: bool
    overwrite: bool

    def check(self) -> None:
        """Raises UserError: too much is given, or too little, or what can be read only once."""
        own = any(file is not None for file in (self.pairs, self.source, self.target))
        if self.files and self.recipe is None and not own:
            command = ["everyhead", "train", "pretrain-gpt2", "--data", str(self.files[0])]
            command += ["--run", str(self.run or "runs/mine")]
            raise UserError(
                "--data needs a recipe beside it, which says what is to be learnt, for example: "
                + shlex.join(command)
            )
        if (self.recipe is None) == (not own):
            raise UserError(
                "Give either a recipe (like translate-en-zh) or your own --pairs (or --source and "
                "--target)."
            )
        if self.files and (own or self.resume):
            raise UserError(
                "--data takes the place of a recipe's data when a run begins: leave it out with "
                "--pairs, --source, --target and --resume."
            )
        if (own or self.files) and self.run is None:
            raise UserError("Say where the run shall lie, for example --run runs/mine.")
        if self.resume and self.overwrite:
            raise UserError("--resume goes on and --overwrite begins anew: give one of them.")
        if Path(self.recipe or "").suffix in (".tsv", ".txt", ".csv", ".gz", ".xz"):
            run = self.run or Path("runs") / Path(str(self.recipe)).stem
            command = ["everyhead", "train", "--pairs", str(self.recipe), "--run", str(run)]
            raise UserError(
                f"{self.recipe} is no recipe; if it holds pairs, say: {shlex.join(command)}"
            )
        for path in (self.pairs, self.source, self.target, *self.files):
            if path is not None and path.exists() and not (path.is_file() or path.is_dir()):
                raise UserError(
                    f"{path} is a pipe and can be read only once; a run must be able to read its "
                    "data again: save them to a file."
                )

    @property
    def folder(self) -> Path:
        """--run, else runs/NAME; but the recipe.toml that lies in a run goes on with that run."""
        if self.run is not None:
            return self.run
        path = Path(str(self.recipe))
        if path.name != RECIPE:
            return Path("runs") / path.stem
        return path.parent if self.resume else Path("runs") / path.resolve().parent.name

    def read(self, changes: list[str]) -> "Recipe":
        """The recipe named or chosen; on resume the run's own, with what was overridden then.

        Raises:
            UserError: no such recipe, something wrong in it, or in the pairs; or a change of the
                tokenizer that a run has learnt.
        """
        from everyhead.data.translation import PairSource
        from everyhead.training.choice import choose_recipe
        from everyhead.training.recipe import load_recipe, placed

        if self.resume:
            began = load_recipe(str(self.folder / RECIPE))
            recipe = load_recipe(str(self.folder / RECIPE), changes)
            if getattr(recipe, "tokenizer", None) != getattr(began, "tokenizer", None):
                raise UserError(
                    f"{self.folder} has learnt its tokenizer, which cannot be changed any more: "
                    "leave the changes of [tokenizer] out, or begin anew with --overwrite."
                )
            return placed(recipe) if changes else recipe
        if self.recipe is not None:
            return placed(load_recipe(self.recipe, changes, files=self.files))
        origin = PairSource(pairs=self.pairs, source=self.source, target=self.target)
        files = {"pairs": self.pairs, "source": self.source, "target": self.target}
        data = {key: str(path.resolve()) for key, path in files.items() if path is not None}
        pairs = origin.read()[0]
        return placed(choose_recipe(self.folder.resolve().name, pairs, data, changes))


def refuse(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Raises UserError: something lies in the folder that training would replace; or nothing does.

    --resume needs a run there, --overwrite allows one, and without either there must be none.
    """
    from everyhead.training.run import is_run

    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; a run needs a folder.")
    if resume and not is_run(folder):
        raise UserError(f"There is no run in {folder} to resume; leave --resume out to begin one.")
    if resume or overwrite:
        return
    if is_run(folder):
        raise UserError(
            f"{folder} holds a run already: --resume goes on with it, --overwrite begins anew, "
            "or give another --run."
        )
    if (folder / "config.json").exists():
        raise UserError(
            f"{folder} holds a model already, which training would replace: give another --run, "
            "or --overwrite."
        )
