"""The weights of a model folder, in whichever of the published layouts they lie.

model.safetensors                 one file
model.safetensors.index.json      the names of several, {"weight_map": {tensor: file}}
pytorch_model.bin, …index.json    the same before safetensors; read, never written
"""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from everyhead.errors import UserError
from everyhead.files import read_json
from everyhead.tensors import read_safetensors, read_torch_file

WEIGHTS_FILE = "model.safetensors"
Reader = Callable[[Path], dict[str, Tensor]]
LAYOUTS: tuple[tuple[str, Reader], ...] = (
    (WEIGHTS_FILE, read_safetensors),
    ("pytorch_model.bin", read_torch_file),
)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor in the folder by its name in the file, on the CPU; safetensors go first.

    Raises:
        UserError: there are no weights, a file is missing or broken, or an index does not fit.
    """
    for name, read in LAYOUTS:
        if (folder / name).is_file():
            return read(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _read_shards(index, read)
    raise UserError(
        f"There are no weights in {folder}: neither {' nor '.join(name for name, _ in LAYOUTS)}. "
        "Name the folder that holds config.json and the weights."
    )


def _read_shards(index: Path, read: Reader) -> dict[str, Tensor]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise UserError(f"{index} is broken: it has no weight_map from tensors to files.")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(places.values())):
        if Path(file).name != file or "\\" in file:
            raise UserError(f"{index} names {file!r}, which is not a file of the same folder.")
        tensors |= read(index.parent / file)
    absent = sorted(places.keys() - tensors.keys())
    if absent:
        raise UserError(
            f"{index} promises {', '.join(absent[:12])}, which the files do not hold; "
            "copy the whole folder again."
        )
    return tensors
