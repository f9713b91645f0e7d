"""What the attentions of a model are called: `encoder.3.self_attn`, whoever wrote the model.

everyhead's own are named by their path. A model of Hugging Face's has a path of its family's
(`bert.encoder.layer.3.attention.self`, `transformer.h.3.attn`); there the first number is the layer
and words of the path tell the half, the modality and whether it reads a memory. Which modules these
are is told by their code: they ask transformers' attention interface for the function that attends.
"""

import functools
import inspect
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from torch import nn

from everyhead.layers.multi_head import MultiHeadAttention

INTERFACE = "ALL_ATTENTION_FUNCTIONS"
CROSS = ("cross", "encdec", "encoder_attn", "multihead_attn")
TOWERS = {"text": "text", "language": "text", "vision": "vision", "visual": "vision"}
TOWERS |= {"image": "vision", "audio": "audio", "speech": "audio"}


class Spot(NamedTuple):
    """Where an attention stands: its module, path, public name, kind and the path of its layer."""

    module: nn.Module
    path: str
    name: str
    kind: str
    layer: str  # "encoder.3"
    layer_path: str


def spots(model: nn.Module) -> list[Spot]:
    """Every attention of the model that can be looked at, in its order."""
    found: list[Spot] = []
    for path, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            found.append(_own(module, path))
        elif asks_interface(module):
            found.append(spot_of(module, path, {spot.name for spot in found}))
    return found


def _own(module: nn.Module, path: str) -> Spot:
    name = path.replace(".blocks.", ".")
    kind = "cross" if name.endswith("cross_attn") else "self"
    layer_path = path.rpartition(".")[0]
    return Spot(module, path, name, kind, layer_path.replace(".blocks.", "."), layer_path)


def spot_of(module: nn.Module, path: str, taken: set[str]) -> Spot:
    """The spot of a Hugging Face model's attention; a name that is taken gets its path's."""
    words = path.split(".")
    numbers = [place for place, word in enumerate(words) if word.isdigit()]
    depth = numbers[0] if numbers else len(words)
    kind = "cross" if _reads_memory(module, words[depth:]) else "self"
    layer = f"{_half(module, words[:depth])}.{words[depth] if numbers else 0}"
    if f"{layer}.{kind}_attn" in taken and len(numbers) > 1:
        layer = ".".join([layer, *(words[place] for place in numbers[1:])])
        depth = numbers[-1]
    name = f"{layer}.{kind}_attn"
    return Spot(module, path, path if name in taken else name, kind, layer, _joined(words, depth))


def _joined(words: list[str], depth: int) -> str:
    return ".".join(words[: depth + 1])


def _reads_memory(module: nn.Module, words: list[str]) -> bool:
    spelled = [word.lower() for word in words]
    marked = any(mark in word for word in spelled for mark in CROSS)
    return marked or bool(getattr(module, "is_cross_attention", False))


def _half(module: nn.Module, words: list[str]) -> str:
    """Which of text, vision, audio, encoder and decoder."""
    for word in words:
        for mark, tower in TOWERS.items():
            if mark in word.lower():
                return tower
    if any("decoder" in word.lower() for word in words):
        return "decoder"
    causal = getattr(module, "is_causal", None)
    if causal is None:
        causal = getattr(getattr(module, "config", None), "is_decoder", False)
    return "decoder" if causal else "encoder"


def asks_interface(module: nn.Module) -> bool:
    """Does this module itself call transformers' attention interface?"""
    kind: Any = type(module)
    return INTERFACE in _names(kind)


@functools.cache
def _names(kind: type) -> frozenset[str]:
    """Global names that the methods of a class read."""
    if kind.__module__.startswith("torch."):
        return frozenset()
    return frozenset(_code_names(kind))


def _code_names(kind: type) -> Iterator[str]:
    for name in dir(kind):
        method = inspect.getattr_static(kind, name)
        method = inspect.unwrap(method) if callable(method) else method
        code = getattr(method, "__code__", None)
        defines = getattr(method, "__module__", "") == "transformers.modeling_utils"
        if isinstance(code, CodeType) and not defines:  # every model's base speaks of the table
            yield from code.co_names


def hidden(model: nn.Module, seen: list[Spot]) -> dict[str, nn.Module]:
    """Attentions whose q and k cannot be had: modules called so, none of which asks or is seen."""
    paths = [spot.path for spot in seen]
    found: list[tuple[str, nn.Module]] = []
    for path, module in model.named_modules():
        called = re.search(r"(Attention|Attn)(?![a-z])", type(module).__name__)
        inside = any(one.startswith(f"{path}.") or path.startswith(f"{one}.") for one in paths)
        if (
            called
            and path not in paths
            and not inside
            and next(module.parameters(), None) is not None
        ):
            found.append((path, module))
    return {
        path: module
        for path, module in found
        if not any(other.startswith(f"{path}.") for other, _ in found)
    }


def nothing_to_see(model: nn.Module, hidden: dict[str, nn.Module]) -> str:
    """The sentence for a model none of whose attentions can be seen."""
    if not hidden:
        return f"{type(model).__name__} has no attention that can be recorded"
    path, module = next(iter(hidden.items()))
    return (
        f"{type(model).__name__} has no attention that can be recorded: {why_hidden(path, module)}"
    )


def why_hidden(path: str, module: nn.Module) -> str:
    """The sentence for an attention that does not show its q and k."""
    return (
        f"{type(module).__name__} at {path} computes its scores inside its own code and does not "
        "ask transformers' attention interface, so its q and k are hidden"
    )


def paths(model: nn.Module, spot: Spot) -> list[str]:
    """Every spelling of a place: its name, its module's path, with and without the base model."""
    short = spot.path.replace(".blocks.", ".")
    base = f"{getattr(model, 'base_model_prefix', '')}."
    return [spot.name, spot.path, short, spot.path.removeprefix(base)]
