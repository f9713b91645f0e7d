"""A model folder by its path, or by the name of a checkpoint that was fetched."""

from pathlib import Path

from everyhead.errors import UserError
from everyhead.weights.fetch import NICKNAMES, fetched


def located(folder: Path | str) -> Path:
    """The folder of a path, or of a fetched name such as `minilm` or `owner/model`.

    What is there as a path is taken as a path; the network is never asked.

    Raises:
        UserError: a short name of everyhead's that was not fetched yet.
    """
    path = Path(folder).expanduser()
    if path.exists() or isinstance(folder, Path):
        return path
    try:
        found = fetched(folder)
    except UserError:  # it cannot be a name
        return path
    if found is None and folder in NICKNAMES:
        raise UserError(f"{folder} is not on this machine yet: everyhead fetch {folder}")
    return path if found is None else found.folder
