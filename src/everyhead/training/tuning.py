"""Going on from published weights: what stays as it is, and which layer learns how fast.

    rate of layer i = decay^(n − 1 − i) · rate      the top layer at 1, the embeddings at decay^n

Of two halves the encoder's layers come first, the decoder's above them. Howard & Ruder 2018
(1801.06146) section 3.2 (discriminative fine-tuning).
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
    layers = _layers_of(model)
    n = len(layers)
    if recipe.freeze_layers > n:
        raise UserError(
            f"train.freeze_layers is {recipe.freeze_layers} and the model has {n} layers; freeze "
            f"at most {n}."
        )
    apart = (*layers, *new)
    names = (name for name, _ in model.named_parameters() if not name.startswith(apart))
    below = [name for name in names if _is_below(name)]
    factors = dict.fromkeys(below, recipe.layer_decay**n)
    factors |= {layer: recipe.layer_decay ** (n - 1 - i) for i, layer in enumerate(layers)}
    frozen = below if recipe.freeze_embeddings or recipe.freeze_layers else []
    frozen += layers[: recipe.freeze_layers]
    for name, parameter in model.named_parameters():
        if frozen and name.startswith(tuple(frozen)):
            parameter.requires_grad_(False)
    return factors | dict.fromkeys(new, recipe.head_rate)


def _layers_of(model: nn.Module) -> list[str]:
    """How the paths of each layer's parameters begin, from the lowest up."""
    stacks = [(name, part) for name, part in model.named_modules() if isinstance(part, Stack)]
    if not stacks:
        raise UserError(f"A {type(model).__name__} has no layers in a row to be tuned.")
    return [f"{name}.blocks.{i}." for name, stack in stacks for i in range(len(stack.blocks))]


def _is_below(name: str) -> bool:
    """Is it of what stands below the first layer: embeddings, positions, biases by distance?"""
    return any(
        mark in part for part in name.split(".")[:-1] for mark in ("embed", "positions", "_bias")
    )
