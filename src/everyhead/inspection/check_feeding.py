"""What check hands a model of transformers, and whether it is at fault itself when that stops.

A plain call gives token ids with their mask, a target, noise as pictures. Some classes want more
and stop: several choices a row, places for a picture among the tokens, patches that a processor
cut. Whose fault it is, a new model says, random weights in transformers' own class after the same
config: if that one stops too, check cannot feed the class; else the model at hand is broken.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from everyhead.errors import UserError
from everyhead.inspection.check_cases import ordinary
from everyhead.inspection.subjects import Subject

USUAL_SIZE = 224  # of pictures, where no config says one
OWN = ("transformers.models.",)


def check_fed(subject: Subject) -> None:
    """Raises UserError: neither this model nor a new one of its class can read what it is given."""
    error = stopped(subject)
    if error is None:
        return
    new = new_of_its_class(subject.model)
    if new is None or stopped(subject.with_model(new)) is None:
        return  # the laws say of the model what is broken
    given = " and ".join(_said(side.name) for side in subject.sides)
    words = " ".join(str(error).split())[:200].rstrip(".")
    raise UserError(
        f"check does not know how to feed a {subject.name}: given {given}, a new one stops as this "
        f"one does ({type(error).__name__}: {words}). Give a Subject "
        "(everyhead.inspection.subjects) that says how it is read."
    )


def _said(side: str) -> str:
    return {"picture": "noise as a picture"}.get(side, f"{side} ids" if side != "tokens" else "ids")


def stopped(subject: Subject) -> Exception | None:
    """What the model stops with at three ordinary rows without padding; None where it reads."""
    try:
        subject.read(subject.batch(ordinary(subject)))
    except Exception as error:  # a model may stop with anything at all
        return error
    return None


def new_of_its_class(model: Any) -> Any:
    """Random weights in transformers' own class and attention; None where there is no such class.

    What a subclass, a hook or an attention of one's own does is not in it.
    """
    kind = next((k for k in type(model).__mro__ if k.__module__.startswith(OWN)), None)
    if kind is None:
        return None
    try:
        config = type(model.config).from_dict(copy.deepcopy(model.config.to_dict()))
        first = next(model.parameters())
        return kind(config).eval().to(first.device, first.dtype)
    except Exception:  # a class that cannot be made anew says nothing about the model
        return None


# ----------------------------------------------------------------------------------------- inputs


def vocabulary_of(model: Any, text: Any) -> int:
    """How many token ids a model knows: its config says, else its table of embeddings.

    Raises:
        UserError: neither does.
    """
    size = getattr(text, "vocab_size", None)
    if isinstance(size, int):
        return size
    try:
        return int(model.get_input_embeddings().weight.shape[0])
    except (NotImplementedError, AttributeError):
        raise UserError(
            f"check does not know which ids a {type(model).__name__} reads: its config has no "
            "vocab_size, and it has no table of embeddings. Give a Subject "
            "(everyhead.inspection.subjects) that says how it is read."
        ) from None


def noise(config: Any, numbers: Iterable[int], like: tuple[torch.device, torch.dtype]) -> Tensor:
    """Pictures (B, C, H, W), the same for the same numbers, of the size that its config says."""
    inside = ("encoder", "backbone_config", "text_config")
    configs = [getattr(config, "vision_config", None), config]
    configs += [getattr(config, name, None) for name in inside]
    size = _first(configs, "image_size", USUAL_SIZE)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    shape = _first(configs, "num_channels", 3), height, width
    made = [torch.randn(*shape, generator=torch.Generator().manual_seed(n)) for n in numbers]
    return torch.stack(made).to(*like)  # (B, C, H, W)


def _first(configs: Iterable[Any], name: str, default: Any) -> Any:
    found = (getattr(config, name, None) for config in configs)
    return next((value for value in found if value is not None), default)
