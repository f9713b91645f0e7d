"""From config.json and the weights to a model, strictly (law 7).

Every tensor of the file is used or known by name, every parameter filled or named as a new head.
What a person should know besides (a head that starts at random, one that is not needed) is a
warning of one sentence.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from torch import Tensor, nn

from everyhead.errors import UserError
from everyhead.files import read_json
from everyhead.models import MODELS
from everyhead.weights.config_table import validated
from everyhead.weights.ends import as_generated
from everyhead.weights.files import read_tensors
from everyhead.weights.kind import Kind, Tidied
from everyhead.weights.kinds import KINDS
from everyhead.weights.own import PREFIX, own_kind
from everyhead.weights.state import Slot, Undrawn, fill, listed

MODEL_CONFIG = "config.json"


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json.

    Raises:
        UserError: no folder, or no config in it.
    """
    if folder.is_file():
        raise UserError(
            f"{folder} is no model folder but a file; give the folder with {MODEL_CONFIG}."
        )
    if not folder.is_dir():
        raise UserError(f"There is no model folder {folder}; check the path.")
    if not (folder / MODEL_CONFIG).is_file():
        raise UserError(f"{folder} is no model folder: it has no {MODEL_CONFIG}.")
    return read_json(folder / MODEL_CONFIG)


def kind_for(values: Mapping[str, Any], where: object) -> Kind:
    """The kind of this config.json, by model_type and, where several share it, architectures.

    Raises:
        UserError: a family that everyhead does not have.
    """
    name = values.get("model_type")
    if isinstance(name, str) and name.startswith(PREFIX):
        family = name.removeprefix(PREFIX)
        if family in MODELS:
            return own_kind(family, kind_of_family(family))
    kinds = [kind for kind in KINDS if name in kind.model_types]
    theirs = {str(each) for each in values.get("architectures") or ()}
    for kind in sorted(kinds, key=lambda kind: not kind.architectures):
        if not kind.architectures or theirs & set(kind.architectures):
            return kind
    if kinds:
        known = sorted({each for kind in kinds for each in kind.architectures})
        raise UserError(
            f"{where} says architectures {', '.join(sorted(theirs)) or 'none'}; of {name} "
            f"everyhead opens {', '.join(known)}."
        )
    known = [each for kind in KINDS for each in kind.model_types]
    known += [PREFIX + family for family in MODELS]
    raise UserError(f"{where} says model_type {name!r}; everyhead opens {', '.join(known)}.")


def hidden_there(folder: Path) -> bool:
    """Can this folder's attention be seen in our model alone, not in Hugging Face's?"""
    name = read_config(folder).get("model_type")
    return any(kind.hidden_there and name in kind.model_types for kind in KINDS)


def kind_of_family(family: str) -> Kind | None:
    """Hugging Face's kind of folder for one of MODELS, None where it has no such family."""
    return next((kind for kind in KINDS if kind.family == family), None)


def opened(
    folder: Path, values: Mapping[str, Any], changes: Mapping[str, Any] | None = None
) -> nn.Module:
    """The model of this folder, float32, on the CPU, in eval mode; see folder.load_model."""
    where = folder / MODEL_CONFIG
    kind = kind_for(values, where)
    config = as_generated(_config(kind, values, where), folder)
    if changes:
        if "eos_id" in changes and "more_eos_ids" in type(config).model_fields:
            changes = {"more_eos_ids": (), **changes}  # one end is asked for
        config = validated(type(config), config.model_dump() | dict(changes), f"{where}, changed,")
    model = _built(kind.family, config, where, drawn=False)
    tensors, notes = _tidied(folder, values, kind)
    slots = kind.slots(model)
    fresh = _heads_that_start(model, slots, tensors, kind, changed=bool(changes))
    if fresh:
        model = _built(kind.family, config, where, drawn=True)
        slots = [slot for slot in slots if slot not in fresh]
    spare = _spare(tensors, slots, kind)
    left = {name: tensor for name, tensor in tensors.items() if name not in spare}
    fill(model, left, slots, where=folder)
    kind.finish(model)
    for sentence in (*notes, *_told(folder, model, fresh, spare)):
        warnings.warn(sentence, stacklevel=4)
    return model.eval()


def _config(kind: Kind, values: Mapping[str, Any], where: object) -> BaseModel:
    try:
        return kind.config(values, where)
    except (TypeError, AttributeError) as error:
        raise UserError(
            f"{where} has a value of another form than a published {kind.family}'s ({error}); "
            "compare it with one."
        ) from error


def _tidied(folder: Path, values: Mapping[str, Any], kind: Kind) -> Tidied:
    tensors = read_tensors(folder)
    try:
        return kind.tidy(tensors, values)
    except UserError as error:
        raise UserError(f"The weights in {folder}: {error}") from error


def _built(family: str, config: BaseModel, where: Path, *, drawn: bool) -> Any:
    """The model; where nothing of its start is kept, time is saved and nothing is drawn."""
    make = MODELS[family].model
    try:
        if drawn:
            return make(config)
        with Undrawn():
            return make(config)
    except (ValueError, RuntimeError, ArithmeticError, MemoryError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{where} describes no {make.__name__} that fits here: {reason}."
        ) from error


def _heads_that_start(
    model: nn.Module, slots: list[Slot], tensors: dict[str, Tensor], kind: Kind, *, changed: bool
) -> list[Slot]:
    """The slots of heads that the file lacks, or has in another size than was asked for.

    Tensors of another size are taken out of `tensors`.
    """
    state, fresh = model.state_dict(), []
    for slot in slots:
        if not all(name.startswith(kind.heads) for name in slot.ours) or not kind.heads:
            continue
        names = [name for name in slot.theirs if name in tensors]
        needed = slot.to_theirs(state[slot.ours[0]]).shape
        if names and changed and any(tensors[name].shape != needed for name in names):
            for name in names:
                del tensors[name]
            names = []
        if not names:
            fresh.append(slot)
    return fresh


def _spare(tensors: Mapping[str, Tensor], slots: list[Slot], kind: Kind) -> list[str]:
    """Tensors of heads that this model has no use for."""
    needed = {name for slot in slots for name in slot.theirs}
    return [name for name in tensors if name not in needed and name.startswith(kind.spare)]


def _told(folder: Path, model: nn.Module, fresh: list[Slot], spare: list[str]) -> list[str]:
    sentences = []
    if fresh:
        names = listed([slot.ours[0] for slot in fresh])
        sentences.append(
            f"{folder} has no weights for {names}: this new head starts at random, and what comes "
            "out of it means nothing before it is trained."
        )
    if spare:
        sentences.append(
            f"{folder} also holds {listed(sorted(spare))}, which {type(model).__name__} as it is "
            "opened here has no use for; they are left out."
        )
    return sentences
