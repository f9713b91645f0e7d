"""Named tensors in one file: safetensors, and PyTorch's older .bin read without running anything.

What is read is a copy of the file's content in memory of its own: the file may be replaced
afterwards, and alignment, which decides some kernels, does not depend on the file.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as deserialised
from safetensors.torch import save as serialised
from safetensors.torch import save_file
from torch import Tensor

from everyhead.errors import UserError


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors`, any shapes and dtypes, as safetensors; same tensors, same bytes.

    Not atomic by itself: call it in the writer of `files.write_set` or in `files.atomic_path`.

    Raises:
        OSError: the disk is full, the folder is read-only, or the like.
    """
    # One entry of metadata only: several would be written in a different order each time.
    told = {"format": "pt"}
    if not _is_utf8(path):
        path.write_bytes(serialised(_apart(tensors), metadata=told))
        return
    path.touch()  # who may read it is as for any new file; safetensors would let the owner alone
    rights = path.stat().st_mode
    try:
        save_file(_apart(tensors), path, metadata=told)
    except SafetensorError as error:  # it wraps the system's errors in a class of its own
        if (number := re.search(r"\(os error (\d+)\)", str(error))) is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(path)) from error
    path.chmod(rights)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of the file, on the CPU.

    Raises:
        UserError: there is no such file, or it is cut off or otherwise broken.
    """
    _check_present(path)
    try:
        if not _is_utf8(path):
            content = deserialised(path.read_bytes())
            return {name: tensor.clone() for name, tensor in content.items()}
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{path} is broken or cut off ({error}); "
            "copy it again from where it came, or use an earlier checkpoint."
        ) from error


def read_torch_file(path: Path) -> dict[str, Tensor]:
    """Every tensor of a .bin or .pt file that holds tensors by name and nothing else.

    Raises:
        UserError: no such file, broken, or it holds more than named tensors; nothing in it is run.
    """
    _check_present(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # its own text would advise to load the file in a way that runs code
        raise UserError(
            f"{path} is broken, or holds more than tensors; everyhead runs no code from a file. "
            "Ask whoever made it for model.safetensors instead."
        ) from None
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        raise UserError(
            f"{path} is no table of named tensors but something else, such as a training state; "
            "everyhead reads a folder with config.json and the weights alone."
        )
    return {name: tensor.detach().clone() for name, tensor in content.items()}


def _is_utf8(path: Path) -> bool:
    """Is its name text? safetensors opens no other; a file may be called anything."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _check_present(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"There is no file {path}; check the path.")


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Plain tensors on the CPU, no two in one memory, as safetensors demands."""
    apart: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().to("cpu").contiguous()
        storage = own.untyped_storage()
        if storage.data_ptr() in taken or storage.nbytes() != own.nbytes:
            own = own.clone()
        taken.add(own.untyped_storage().data_ptr())
        apart[name] = own
    return apart
