"""The logit lens: what the states between the layers would say, read by the last norm and the head.

    logits(x) = head(norm(x))

nostalgebraist 2020, "interpreting GPT: the logit lens".
"""

from collections.abc import Callable

from torch import Tensor, nn

from everyhead.inspection.names import Spot


class Lens:
    """The last norm and the head of a model, where they can be told."""

    def __init__(self, model: nn.Module, spots: list[Spot]) -> None:
        self.model, self.spots = model, spots

    def hooks(self) -> list[Callable[[], None]]:
        return []

    def logits(self, layer: str, states: Tensor) -> Tensor:
        """States (B, t, C) of a layer → (B, t, V)."""
        raise LookupError(f"the head above {layer} is not known")
