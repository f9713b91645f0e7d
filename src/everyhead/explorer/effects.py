"""What every head does, measured: it is switched off, and how far the last states move is noted.

    effect(h) = mean over tokens of 1 − cos(x, x without h)         x after the last layer

One pass a head, so of short texts alone. Michel et al. 2019 (1905.10650) section 4 asks the loss;
here there is no label, so the model's own states are asked.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyhead.explorer.scene import Group, Scene
from everyhead.inspection.importance import head_effects
from everyhead.inspection.trace import record

MOST_HEADS, MOST_TOKENS = 256, 64


def with_effects(scene: Scene, model: nn.Module, run: Callable[[], object]) -> Scene:
    """The scene with each head's effect, as it is where the text is long or states are unknown.

    run: the pass that the scene shows, without changes.
    """
    heads = sum(layer.n_heads for group in scene.groups for layer in group.layers)
    longest = max(max(len(group.rows), len(group.columns)) for group in scene.groups)
    if not scene.states or heads > MOST_HEADS or longest > MOST_TOKENS:
        return scene
    half, known = list(scene.states.items())[-1]
    plain = torch.from_numpy(known)

    def moved() -> Tensor:
        with record(model) as trace:
            run()
        layer = [name for name in trace.layers() if name.partition(".")[0] == half][-1]
        states = trace.residual(layer)[0].float().cpu()
        return (1 - F.cosine_similarity(states, plain, dim=-1)).mean()

    effects = head_effects(model, moved)
    return replace(scene, groups=[_with(group, effects) for group in scene.groups])


def _with(group: Group, effects: dict[str, list[float]]) -> Group:
    values: list[list[float | None]] = [[*effects[layer.name]] for layer in group.layers]
    return replace(group, numbers={**group.numbers, "effect": values})
