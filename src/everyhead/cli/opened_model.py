"""A model of any family as the verbs need it: opened by folder, file or name, on a device."""

from typing import Any, NamedTuple

from everyhead.cli.opened import choose_device, choose_threads, resume_command
from everyhead.errors import UserError


class OpenedModel(NamedTuple):
    """A model in eval mode and what belongs to it: its tokenizer, None where it reads no text."""

    place: str
    model: Any
    tokenizer: Any


def open_model(place: str, *, device: str = "cpu", threads: int | None = None) -> OpenedModel:
    """What everyhead.load opens: a run, a model folder, a .gguf file or a fetched name.

    Raises:
        UserError: there is no such model, nothing trained yet, or something broken in it.
    """
    from everyhead.training.run import is_run
    from everyhead.weights.folder import load
    from everyhead.weights.named import located

    choose_threads(threads)
    where = choose_device(device)
    folder = located(place)
    if not folder.exists():
        raise UserError(
            f"There is no run, model folder or file {place}, and nothing of that name on this "
            "machine: check the path, or see `everyhead fetch --help`."
        )
    if folder.is_dir() and not (folder / "config.json").is_file() and is_run(folder):
        raise UserError(
            f"{folder} has no weights to use yet: training stopped before its first evaluation. "
            f"Go on with: {resume_command(folder)}"
        )
    model, tokenizer = load(place)
    return OpenedModel(place, model.to(where).eval(), tokenizer)
