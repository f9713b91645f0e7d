"""Adam as in the paper, and AdamW; one fused pass over all weights.

Kingma & Ba 2015 (1412.6980) with β = (0.9, 0.98), ε = 1e-9 (Vaswani et al. 2017, 1706.03762,
section 5.3); Loshchilov & Hutter 2019 (1711.05101) decays matrices only, not norms and biases.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

OPTIMIZERS = ("adam", "adamw")
STATE = ("step", "exp_avg", "exp_avg_sq")


def make_optimizer(
    model: nn.Module,
    kind: str,
    *,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-9,
    weight_decay: float = 0.0,
    factors: Mapping[str, float] | None = None,
) -> torch.optim.Optimizer:
    """The optimizer of that name over the model's parameters, rate 0 until the first step sets it.

    Parameters whose path begins with a key of `factors` (the longest counts) learn at that
    multiple of the rate; those with requires_grad off are left out.

    Raises:
        ValueError: a name that is not in OPTIMIZERS.
    """
    if kind not in OPTIMIZERS:
        raise ValueError(f"no optimizer {kind!r}; there are {', '.join(OPTIMIZERS)}")
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            factor, decays = _factor(name, factors or {}), parameter.dim() > 1
            new = {"params": [], "weight_decay": weight_decay * decays, "factor": factor}
            groups.setdefault((factor, decays), new)["params"].append(parameter)
    make = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
    return make(list(groups.values()), lr=0.0, betas=betas, eps=eps, fused=True)


def _factor(name: str, factors: Mapping[str, float]) -> float:
    beginnings = [key for key in factors if name.startswith(key)]
    return factors[max(beginnings, key=len)] if beginnings else 1.0


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the coming step, times each group's factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("factor", 1.0)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: `NAME/exp_avg`, `NAME/exp_avg_sq`, `NAME/step`."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    return {
        f"{names[p]}/{key}": value
        for p, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Put back what `optimizer_tensors` gave.

    Raises:
        ValueError: a name that the model does not have, or a tensor missing or of another shape.
    """
    parameters = dict(model.named_parameters())
    paths = {name.rpartition("/")[0] for name in tensors}
    for path in sorted(paths):
        if path not in parameters:
            raise ValueError(f"the optimizer's state has {path}, which the model lacks")
        for key in STATE:
            value, needed = tensors.get(f"{path}/{key}"), parameters[path].shape
            if value is None or value.shape != (() if key == "step" else needed):
                raise ValueError(f"the optimizer's state has no {path}/{key} for {tuple(needed)}")
    for path in paths:
        # The fused step wants its count beside the parameter.
        optimizer.state[parameters[path]] = {
            key: tensors[f"{path}/{key}"].to(parameters[path].device, copy=True) for key in STATE
        }


def clip(parameters: Iterable[nn.Parameter], limit: float | None) -> Tensor:
    """Scale the gradients so that their common norm is at most `limit`; returns the norm before.

    Pascanu et al. 2013 (1211.5063).
    """
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(grads)
    if limit is not None and bool(torch.isfinite(norm)):
        factor = float(limit / (norm + 1e-6))
        if factor < 1:
            torch._foreach_mul_(grads, factor)
    return norm
