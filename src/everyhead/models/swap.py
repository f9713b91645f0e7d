"""Another attention in the place of a model's own: its weights stay, its equation changes.

    for every self-attention:  block.self_attn ← method.of(block.self_attn)

A method is one of `Window`, `RandomFeatures`, `Lsh`, `Exact`. Parameters are shared and keep their
names, so the model is saved as what it was; who loads it says the method again. Cross-attention
stays exact: what it reads is another text. A method that cannot honour what a model adds to its
scores, or how it turns q and k, is refused here, before anything is changed.
"""

from typing import Protocol, TypeVar

from torch import nn

from everyhead.layers.exact import Exact, exact_of
from everyhead.layers.favor import RandomFeatures
from everyhead.layers.inference import JointAttention
from everyhead.layers.lsh_method import Lsh
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.relative_bias import RelativeBias
from everyhead.layers.rotary import Rotary
from everyhead.models.vision_text import VisionText

Model = TypeVar("Model", bound=nn.Module)
METHOD = "method_of_attention"


class Method(Protocol):
    """How attention is computed: everyhead.Window, RandomFeatures, Lsh or Exact."""

    def of(self, attention: MultiHeadAttention, /) -> MultiHeadAttention:
        """The method's attention with the parameters of `attention`, shared."""
        ...


def swap(model: Model, method: Method) -> Model:
    """The model itself, each self-attention replaced by the method's; `Exact()` undoes it.

    Raises:
        ValueError: the model has no self-attention, has one whose equation would be lost, or adds
            or turns what the method cannot honour. Nothing is changed then.
    """
    made = _made(model, method)
    for parent, attention in made:
        parent.self_attn = attention.train(parent.training)  # what stood aside kept an older mode
    model.__dict__[METHOD] = None if isinstance(method, Exact) else method
    return model


def _made(model: nn.Module, method: Method) -> list[tuple[nn.Module, MultiHeadAttention]]:
    """Each part that has a self-attention, and what takes its place."""
    _check(model, method)
    made = [
        (parent, method.of(exact_of(own)))
        for parent in model.modules()
        if isinstance(own := getattr(parent, "self_attn", None), MultiHeadAttention)
    ]
    if not made:
        raise ValueError(f"{type(model).__name__} has no self-attention that could be replaced")
    return made


def method_of(model: nn.Module) -> Method | None:
    """What `swap` put into the model last; None where its attention is its own."""
    return model.__dict__.get(METHOD)


def _check(model: nn.Module, method: Method) -> None:
    parts, name = list(model.modules()), type(model).__name__
    if any(isinstance(part, JointAttention) for part in parts):
        raise ValueError("a prepared model stays as it is: swap first, and prepare it then")
    if isinstance(model, VisionText) and not isinstance(method, Exact):
        raise ValueError(
            f"{name} reads a picture before its words, and {type(method).__name__} knows one text "
            "alone: leave its attention exact"
        )
    if isinstance(method, RandomFeatures | Lsh):
        what = type(method).__name__
        if any(isinstance(part, RelativeBias) for part in parts):
            raise ValueError(
                f"{what} cannot honour the relative positions that {name} adds to its scores: "
                "take Window, or a family without them"
            )
        if isinstance(method, Lsh) and any(isinstance(part, Rotary) for part in parts):
            raise ValueError(
                f"Lsh cannot honour the rotary positions of {name}: they would turn alike tokens "
                "into other buckets; take Window or RandomFeatures"
            )
