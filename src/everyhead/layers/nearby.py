"""Who is near: less than w places away, or one of the first f tokens of its text.

    |i − j| < w   or   j < f          and what else the mask says (causal, padding, documents)

Beltagy et al. 2020 (2004.05150) section 3.1; the first tokens, which a window must not lose: Xiao
et al. 2023 (2309.17453) section 3. w counts the token itself and holds on each side, so a decoder
sees its w last tokens and w ≥ n is full attention; Longformer's window is both sides together.
"""

from torch import Tensor

from everyhead.layers.masks import Mask
from everyhead.layers.positions import places_within
from everyhead.layers.rules import AnyOf, Documents, Globals, Prefix, Rule, Window


def near(mask: Mask | None, size: int, first: int) -> Mask:
    """The mask, and besides only what is near. Padding may be left or right, not inside a text."""
    mask = mask or Mask()
    window = Window(size - 1, size - 1)
    rule: Rule = window
    if first:
        kept = _first(mask, first)
        if kept is None:
            rule = Prefix(first, (window,))
        else:
            rule = AnyOf((window, Globals(kept, sees=False)))
    return Mask((*mask.rules, rule))


def _first(mask: Mask, first: int) -> Tensor | None:
    """(B, S) which keys are the first tokens of their text; None: those with numbers below it."""
    real = mask.key_mask
    for rule in mask.rules:
        if isinstance(rule, Documents):
            found = places_within(rule.keys, real) < first
            return found if real is None else found & real
    return None if real is None else real & (real.cumsum(1) <= first)
