"""Who sees whom where some tokens are global, as rules: they themselves, and all others.

    others:   in the window, or the key is global      global tokens: whatever else the mask says

Beltagy et al. 2020 (2004.05150) section 3.1. The two are attended apart (layers/window.py), since
global tokens have maps of their own.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from everyhead.layers.masks import Mask
from everyhead.layers.rules import AnyOf, Globals, Keys, Rule


class Rows(NamedTuple):
    """A mask rule: the rows `at` of another mask, over as many queries as keys."""

    mask: Mask
    at: Tensor  # (R,)

    def visible(self, i: Tensor, j: Tensor, offset: int) -> Tensor:
        i = self.at[i[:, 0]][:, None]  # (t, 1)
        seen = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=i.device)
        for rule in self.mask.rules:
            seen = seen & rule.visible(i, j, 0)
        return seen


def marks_of(mask: Mask | None) -> Globals | None:
    """The rule of global tokens that stands beside a window, None where there is none."""
    for rule in () if mask is None else mask.rules:
        if isinstance(rule, AnyOf):
            return next((each for each in rule.rules if isinstance(each, Globals)), None)
    return None


def of_globals(mask: Mask, rows: Tensor) -> Mask:
    """What the global tokens in these rows see; the key mask stays a rule, which fills."""
    keys = tuple(rule for rule in mask.rules if isinstance(rule, Keys))
    return Mask((Rows(mask, rows), *keys))


def of_others(mask: Mask) -> Mask:
    """The mask as if global tokens saw no more than others: their rows are made apart."""

    def changed(rule: Rule) -> Rule:
        if isinstance(rule, AnyOf):
            return AnyOf(tuple(changed(each) for each in rule.rules))
        return rule._replace(sees=False) if isinstance(rule, Globals) else rule

    return Mask(tuple(changed(rule) for rule in mask.rules))
