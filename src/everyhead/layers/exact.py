"""Exact attention in the place of another method, and how a method takes a model's parameters.

    the same W^Q, W^K, W^V, W^O; another function of what they make

Nothing is copied: both attentions train, move and save the same tensors.
"""

from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from everyhead.layers.multi_head import MultiHeadAttention

Kind = TypeVar("Kind", bound=MultiHeadAttention)


def exact_of(attention: MultiHeadAttention) -> MultiHeadAttention:
    """What an attention was before a method took its place; itself where none did."""
    before: tuple[MultiHeadAttention, ...] = attention.__dict__.get("in_place_of", ())
    return before[0] if before else attention


def check_exact(attention: MultiHeadAttention, who: str) -> None:
    """
    Raises:
        ValueError: it is a variant, whose equation would be lost.
    """
    if type(attention) is not MultiHeadAttention:
        name = type(attention).__name__
        raise ValueError(
            f"{who} takes the place of exact attention, not of {name}, whose equation would be lost"
        )


def with_maps_of(plain: MultiHeadAttention, kind: type[Kind]) -> Kind:
    """An attention of that kind with the maps, heads and scale of `plain`, which it remembers."""
    made = kind.__new__(kind)
    nn.Module.__init__(made)
    made.n_heads, made.n_kv_heads, made.d_head = plain.n_heads, plain.n_kv_heads, plain.d_head
    made.scale, made.dropout = plain.scale, plain.dropout
    for name, part in plain.named_children():
        made.add_module(name, part)
    made.__dict__["in_place_of"] = (plain,)  # no child: its tensors would have two names
    return made.train(plain.training)


@dataclass(frozen=True)
class Exact:
    """The method: full attention, as a model has it that was never changed."""

    def of(self, attention: MultiHeadAttention) -> MultiHeadAttention:
        """What the attention was before another method took its place.

        Raises:
            ValueError: it is a variant that was never exact.
        """
        plain = exact_of(attention)
        check_exact(plain, "Exact")
        return plain
