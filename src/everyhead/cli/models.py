"""everyhead models: the families and their presets, with what they weigh."""

from typing import Annotated

import typer

from everyhead.errors import UserError


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One family; without it all of them.")
    ] = None,
    vocab_size: Annotated[
        int, typer.Option(metavar="N", min=2, help="Pieces in the vocabulary to count with.")
    ] = 37_000,
) -> None:
    """List the models that can be trained, their presets and their numbers of parameters."""
    import torch

    from everyhead.models import MODELS

    if name is not None and name not in MODELS:
        raise UserError(f"There is no family {name!r}; there is {', '.join(MODELS)}.")
    for family in MODELS if name is None else [name]:
        make, config, presets = MODELS[family]
        print(f"{family}, counted with one vocabulary of {vocab_size:,} pieces")
        for preset, numbers in presets.items():
            with torch.device("meta"):
                model = make(config(**{"vocab_size": vocab_size, **numbers}))
            size = sum(p.numel() for p in model.parameters())
            facts = ", ".join(f"{key} {value}" for key, value in numbers.items())
            print(f"  {preset:<6} {size:>12,} parameters   {facts}")
