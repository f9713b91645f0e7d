"""What a head or a weight matters: by switching it off, and by the loss's gradient.

    effect(h)      = L(without head h) − L                             two passes' difference
    dL/dA_hts      = dL/dO_ht · v_hs                                   O = A V, all else held
    A ∘ dL/dA      first-order guess of −(what setting the weight to 0 does to L)
    importance(h)  = | Σ_ts A_hts dL/dA_hts | = | Σ_t O_ht · dL/dO_ht |

Michel et al. 2019 (1905.10650) section 4: heads off and the gradient of their gates; Chefer et al.
2021 (2103.15679) equation 5: the positive part of A ∘ dL/dA, averaged over the heads. Only dL/dO is
kept, never a matrix: O(n) memory; rows of dL/dA are computed when asked, like rows of A.

A weight is association, not explanation: the effect says what the model does without it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from everyhead.inspection.changes import HeadOff
from everyhead.inspection.selection import Heads, Rows, heads_of, rows_of
from everyhead.inspection.trace import Trace, record
from everyhead.layers.attention import Parts, filled, grouped
from everyhead.layers.masks import Mask
from everyhead.layers.window import WindowParts, within

Loss = Callable[[], Tensor]


class Differentiated(Protocol):
    """What a `Place` has after a backward pass."""

    gradient: Tensor | None

    @property
    def name(self) -> str: ...

    @property
    def parts(self) -> Parts: ...

    @property
    def mask(self) -> Mask | None: ...

    def weights(self, heads: Heads = None, rows: Rows = None) -> Tensor: ...

    def output(self, rows: Rows = None) -> Tensor: ...


def head_effects(
    model: nn.Module, loss: Loss, places: Sequence[str] | None = None
) -> dict[str, list[float]]:
    """Each head's effect, L(without it) − L: positive where the model does worse without it.

    Args:
        model: in eval mode, or dropout is part of the differences.
        loss: runs the model and returns a scalar; called 1 + (number of heads) times.
        places: those to try, by name; by default all.

    Raises:
        ValueError: the loss is not one number, or not finite.
        LookupError: no such place.
    """
    with torch.no_grad(), record(model) as trace:
        whole = _number(loss())
        tried = {name: trace[name].n_heads for name in places or trace.places()}
    effects: dict[str, list[float]] = {}
    for name, n_heads in tried.items():
        effects[name] = []
        for head in range(n_heads):
            with torch.no_grad(), record(model, [HeadOff(name, [head])]):
                effects[name].append(_number(loss()) - whole)
    return effects


def gradients(model: nn.Module, loss: Loss) -> Trace:
    """The trace of one pass with dL/dO (B, H, T, D) kept at each place; parameters' .grad stay.

    Raises:
        ValueError: the loss is not one number, or depends on nothing that has a gradient.
    """
    parameters = list(model.parameters())
    before = [(p.requires_grad, p.grad) for p in parameters]
    try:
        for p in parameters:
            p.grad = None
            p.requires_grad_(p.is_floating_point())
        with torch.enable_grad(), record(model) as trace:
            value = loss()
            _number(value)
            if not value.requires_grad:
                raise ValueError(
                    "the loss has no gradient: run the model without no_grad or inference_mode"
                )
            value.backward()
    finally:
        for p, (wanted, grad) in zip(parameters, before, strict=True):
            p.requires_grad_(wanted)
            p.grad = grad
    return trace


def weight_gradients(
    place: Differentiated,
    heads: Heads = None,
    rows: Rows = None,
) -> Tensor:
    """dL/dA (B, h, t, S) of the heads and rows asked for, computed now; 0 where A may not look.

    Raises:
        LookupError: nothing was differentiated at this place, or only the last of several steps.
        ValueError: there is no such head or row.
    """
    gradient, parts = _gradient(place), place.parts
    heads = heads_of(slice(None) if heads is None else heads, parts.q.shape[1], place.name)
    rows = rows_of(slice(None) if rows is None else rows, parts.q.shape[2], place.name)
    v = filled(grouped(parts), place.mask).v[:, heads]  # (B, h, S, D)
    asked = gradient[:, heads][:, :, rows]  # (B, h, t, D)
    wide = torch.promote_types(v.dtype, torch.float32)
    seen = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=v.device)
    if place.mask is not None:
        seen = place.mask.rows(parts.q.shape[2], parts.k.shape[2], v.device, rows)
        seen = seen if seen.shape[1] == 1 else seen[:, heads]
    found = asked.to(wide) @ v.to(wide).transpose(-2, -1)  # (B, h, t, S)
    if isinstance(parts, WindowParts):  # rows of global tokens mix values of their own
        at, own = within(parts, rows, found.shape[2])
        v = filled(parts.of_globals, place.mask).v[:, heads].to(wide)
        far = asked[:, :, at].to(wide) @ v.transpose(-2, -1)  # (B, h, r, S)
        here = parts.marked[:, None, own, None]
        found = found.index_copy(2, at, torch.where(here, far, found[:, :, at]))
    return found.masked_fill(~seen, 0)


def gradient_weights(
    place: Differentiated,
    heads: Heads = None,
    rows: Rows = None,
) -> Tensor:
    """A ∘ dL/dA (B, h, t, S), signed; raises as `weight_gradients`.

    Positive: the loss would, to first order, fall if the weight fell.
    """
    return place.weights(heads, rows) * weight_gradients(place, heads, rows)


def relevance(place: Differentiated, rows: Rows = None) -> Tensor:
    """mean_h max(0, A ∘ dL/dA) (B, t, S): Chefer et al. 2021 equation 5; L is what to explain.

    Raises as `weight_gradients`.
    """
    return gradient_weights(place, None, rows).clamp_min(0).mean(1)


def head_importance(place: Differentiated) -> Tensor:
    """| Σ_t O_ht · dL/dO_ht | for each text and head, (B, H); Michel et al. 2019 equation 4.

    Raises as `weight_gradients`.
    """
    out, gradient = place.output(), _gradient(place)
    return (out.double() * gradient.double()).sum((-2, -1)).abs()


def _gradient(place: Differentiated) -> Tensor:
    if place.gradient is None:
        raise LookupError(
            f"nothing was differentiated at {place.name}: call backward() on a loss inside "
            "record(), or take the trace of gradients(model, loss)"
        )
    if place.gradient.shape[:3] != place.parts.q.shape[:3]:
        raise LookupError(
            f"what was differentiated at {place.name} is the last of several steps, "
            f"{place.gradient.shape[2]} of {place.parts.q.shape[2]} rows: run the whole text in "
            "one pass, without a cache"
        )
    return place.gradient


def _number(loss: Tensor) -> float:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"loss() must return one number as a tensor; got {shape}")
    if not torch.isfinite(loss).all():
        raise ValueError(f"the loss is {loss.item()}, so effects cannot be told")
    return float(loss.detach())
