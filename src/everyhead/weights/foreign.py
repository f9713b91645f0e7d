"""Any model that Hugging Face's transformers can load: a folder, or a name on the Hub.

The class is the one that config.json names under `architectures`; the model comes in eval mode, in
float32 unless told otherwise, with the attention that transformers would choose by itself. No code
of a checkpoint is run: custom classes are refused, a .bin is read as tensors alone.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from everyhead.errors import UserError
from everyhead.files import read_json
from everyhead.weights.fetch import Fetched, fetch, fetched
from everyhead.weights.files import read_tensors

CONFIG = "config.json"
HALVES = (torch.float16, torch.bfloat16)


class Foreign(NamedTuple):
    """A model of transformers', what turns text into its ids, what prepares images, its name.

    `tokenizer` and `images` are None where the folder has none.
    """

    model: nn.Module
    tokenizer: Any
    name: str
    folder: Path
    images: Any = None
    note: str | None = None


def open_foreign(
    name_or_folder: str | Path, *, dtype: torch.dtype | None = torch.float32
) -> Foreign:
    """Open a folder or a name of the Hugging Face Hub; what is on this machine goes first.

    Args:
        name_or_folder: a path, or a name like `sentence-transformers/all-MiniLM-L6-v2`.
        dtype: of the weights; None keeps the file's.

    Raises:
        UserError: no such folder or name, no network, transformers is not installed, or the
            checkpoint is one that it cannot load.
    """
    found = locate(name_or_folder)
    transformers = _transformers()
    config = _config(transformers, found)
    kind = _model_class(transformers, config, found)
    if found.note:
        warnings.warn(found.note, stacklevel=2)
    with _quiet(transformers):
        model = _loaded(kind, config, found, dtype)
        tokenizer = _companion(transformers.AutoTokenizer, found, "tokenizer")
        images = _companion(transformers.AutoImageProcessor, found, "preprocessor")
    return Foreign(model.eval(), tokenizer, found.name, found.folder, images, found.note)


def locate(name_or_folder: str | Path) -> Fetched:
    """The folder of a path or name; a name that is not on this machine is fetched.

    Raises:
        UserError: there is none.
    """
    folder = Path(name_or_folder).expanduser()
    if folder.is_dir():
        if not (folder / CONFIG).is_file():
            raise UserError(f"{folder} is no model folder: it has no {CONFIG}.")
        return Fetched(str(name_or_folder), folder)
    if folder.exists():
        raise UserError(f"{folder} is a file; give the folder that holds {CONFIG}.")
    name = str(name_or_folder)
    if _looks_like_path(name):
        raise UserError(f"There is no model folder {folder}; check the path.")
    local = fetched(name)
    if local is not None:
        return local
    try:
        return fetch(name)
    except UserError as error:
        raise UserError(f"There is no folder {folder}; as a name: {error}") from error


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1 or ":" in name


def _transformers() -> ModuleType:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise UserError(
            "Opening models of Hugging Face's needs transformers, which is not installed: "
            "pip install 'everyhead[hf]'."
        ) from error
    return transformers


def _config(transformers: ModuleType, found: Fetched) -> Any:
    values = read_json(found.folder / CONFIG)
    if "auto_map" in values and values.get("model_type") not in transformers.CONFIG_MAPPING:
        raise UserError(
            f"{found.name} brings code of its own (auto_map in {CONFIG}), and everyhead runs no "
            "code from a checkpoint; transformers itself does not know this kind of model."
        )
    with _load_errors(found, "config"):
        return transformers.AutoConfig.from_pretrained(
            found.folder, local_files_only=True, trust_remote_code=False
        )


def _model_class(transformers: ModuleType, config: Any, found: Fetched) -> Any:
    """The first architecture that the config names; without one, the bare model of its type."""
    names = config.architectures or []
    for name in names:
        kind = getattr(transformers, name, None)
        if isinstance(kind, type) and issubclass(kind, nn.Module):
            return kind
        if kind is not None:
            break
    if names:
        raise UserError(
            f"{found.name} is a {names[0]}, which transformers {transformers.__version__} does not "
            "have; install a newer one, or look at another checkpoint."
        )
    try:
        return transformers.AutoModel._model_mapping[type(config)]
    except KeyError as error:
        raise UserError(
            f"{found.name} names no architecture, and for model_type {config.model_type!r} there "
            f"is no bare model; add architectures to its {CONFIG}."
        ) from error


def _loaded(kind: Any, config: Any, found: Fetched, dtype: torch.dtype | None) -> nn.Module:
    wanted = "auto" if dtype is None else dtype
    shared = {"config": config, "dtype": wanted, "output_loading_info": True}
    shared["ignore_mismatched_sizes"] = True  # or it points to a report that nobody sees
    with _load_errors(found, "model"):
        if any(found.folder.glob("*.safetensors")):
            model, told = kind.from_pretrained(
                found.folder, use_safetensors=True, local_files_only=True, **shared
            )
        else:
            model, told = kind.from_pretrained(None, state_dict=_read_old(found), **shared)
    _check_filled(model, told, found)
    return model


def _read_old(found: Fetched) -> dict[str, Tensor]:
    """A .bin, as tensors alone: whatever else it holds is refused by our own reader."""
    return read_tensors(found.folder)


def _check_filled(model: nn.Module, told: Mapping[str, Any], found: Fetched) -> None:
    """Parameters that the file does not have start at random; only a head may, and it is told.

    Raises:
        UserError: part of the model's body is missing, or a shape is another.
    """
    odd = sorted(str(each[0]) for each in told.get("mismatched_keys") or ())
    if odd:
        raise UserError(f"{found.name}: {_listed(odd)} have other shapes than {CONFIG} says.")
    missing = sorted(told.get("missing_keys") or ())
    body = getattr(model, "base_model_prefix", "")
    headless = not body or not hasattr(model, body)
    lost = [
        name
        for name in missing
        if (headless or name.startswith(f"{body}.")) and "pooler" not in name
    ]
    if lost:
        raise UserError(
            f"{found.name} is not whole: its weights lack {_listed(lost)}, which "
            f"{type(model).__name__} needs. Fetch it again, or correct architectures in {CONFIG}."
        )
    if missing:
        warnings.warn(
            f"{found.name} has no weights for {_listed(missing)}: these start at random, so what "
            "comes out of them means nothing.",
            stacklevel=5,
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _companion(kind: Any, found: Fetched, stem: str) -> Any:
    """A tokenizer or an image processor, or None where the folder has no files of one."""
    files = {path.name for path in found.folder.iterdir()}
    if stem == "preprocessor":
        if not files & {"preprocessor_config.json", "processor_config.json"}:
            return None
    elif not any("token" in name or name.startswith(("vocab", "spiece")) for name in files):
        return None
    try:
        return kind.from_pretrained(found.folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        warnings.warn(
            f"The {stem} of {found.name} could not be opened ({_first_line(error)}); give ids "
            "or pixels instead.",
            stacklevel=3,
        )
        return None


@contextmanager
def _quiet(transformers: ModuleType) -> Iterator[None]:
    """No progress bar and no report: what matters is checked here and said as a sentence."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _load_errors(found: Fetched, what: str) -> Iterator[None]:
    """Whatever transformers raises becomes one sentence that names the checkpoint."""
    try:
        yield
    except UserError:
        raise
    except ImportError as error:
        raise UserError(
            f"{found.name} needs more than is installed: {_first_line(error)}"
        ) from error
    except Exception as error:
        raise UserError(
            f"transformers could not load the {what} of {found.name}: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
