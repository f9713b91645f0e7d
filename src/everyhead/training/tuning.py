"""Going on from published weights: what stays as it is, and which layer learns how fast.

    rate of layer i = decay^(n − 1 − i) · rate      the top layer at 1, the embeddings at decay^n

Howard & Ruder 2018 (1801.06146) section 3.2 (discriminative fine-tuning).
"""

from torch import nn

from everyhead.errors import UserError
from everyhead.layers.blocks import Stack
from everyhead.training.sections import FineTuneRecipe


def tuned(
    model: nn.Module, recipe: FineTuneRecipe, *, new: tuple[str, ...] = ()
) -> dict[str, float]:
    """Freeze what the recipe says; returns each path's multiple of the rate (`Job.factors`).

    new: beginnings of paths that were not in the published weights; they learn at head_rate.

    Raises:
        UserError: more layers are to be frozen than there are.
    """
    place, stack = _stack_of(model)
    n = len(stack.blocks)
    if recipe.freeze_layers > n:
        raise UserError(
            f"train.freeze_layers is {recipe.freeze_layers} and the model has {n} layers; freeze "
            f"at most {n}."
        )
    whole = place.rpartition(".")[0]
    below = [
        name
        for name, _ in model.named_parameters()
        if name.startswith(whole) and not name.startswith((f"{place}.", *new)) and _is_below(name)
    ]
    factors = dict.fromkeys(below, recipe.layer_decay**n)
    for i in range(n):
        factors[f"{place}.blocks.{i}."] = recipe.layer_decay ** (n - 1 - i)
    frozen = below if recipe.freeze_embeddings or recipe.freeze_layers else []
    frozen += [f"{place}.blocks.{i}." for i in range(recipe.freeze_layers)]
    for name, parameter in model.named_parameters():
        if frozen and name.startswith(tuple(frozen)):
            parameter.requires_grad_(False)
    return factors | dict.fromkeys(new, recipe.head_rate)


def _stack_of(model: nn.Module) -> tuple[str, Stack]:
    """The first stack of the model, and its path."""
    for name, part in model.named_modules():
        if isinstance(part, Stack):
            return name, part
    raise UserError(f"A {type(model).__name__} has no layers in a row to be tuned.")


def _is_below(name: str) -> bool:
    """Is it of the embeddings?"""
    return any("embed" in part for part in name.split("."))
