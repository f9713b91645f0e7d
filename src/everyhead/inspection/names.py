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
COMPILED = "_orig_mod."  # torch.compile puts this into the paths of what it wraps
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


def walk(model: nn.Module) -> dict[str, nn.Module]:
    """Every module by its path, as `named_modules` tells them, in two thirds of its time."""
    found: dict[nn.Module, str] = {}

    def enter(path: str, module: nn.Module) -> None:
        found[module] = path
        start = f"{path}." if path else ""
        for name, child in module._modules.items():
            if child is not None and child not in found:
                enter(start + name, child)

    enter("", model)
    return {path: module for module, path in found.items()}


def spots(model: nn.Module, modules: dict[str, nn.Module]) -> list[Spot]:
    """Every attention of the model that can be looked at, in its order; its modules by path."""
    kinds = set(map(type, modules.values()))  # few: a module is told by its class
    own = {kind for kind in kinds if issubclass(kind, MultiHeadAttention)}
    asking = {kind for kind in kinds - own if asks_interface(kind)}
    found = [_own(module, path) for path, module in modules.items() if type(module) in own]
    foreign = {path: module for path, module in modules.items() if type(module) in asking}
    return found + _repeated(model, _named(foreign))


def plain(path: str) -> str:
    """A path of everyhead's as its public name, whether torch.compile has wrapped a part or not."""
    return path.replace(COMPILED, "").removesuffix(f".{COMPILED[:-1]}").replace(".blocks.", ".")


def _own(module: nn.Module, path: str) -> Spot:
    name = plain(path)
    kind = "cross" if name.endswith("cross_attn") else "self"
    layer_path = path.rpartition(".")[0].removesuffix(f".{COMPILED[:-1]}")
    return Spot(module, path, name, kind, name.rpartition(".")[0], layer_path)


def _named(foreign: dict[str, nn.Module]) -> list[Spot]:
    """By the first number of the path; where stages lie in stages (Swin), counted one by one."""
    found = _together([_spot(module, path, 0) for path, module in foreign.items()])
    halves: dict[str, list[int]] = {}
    for i, spot in enumerate(found):
        halves.setdefault(spot.layer.partition(".")[0], []).append(i)
    for half, of in halves.items():
        if len({found[i].name for i in of}) == len(of):
            continue
        deep = {i: _spot(found[i].module, found[i].path, -1) for i in of}
        order = list(dict.fromkeys(spot.layer_path for spot in deep.values()))
        for i, spot in deep.items():
            layer = f"{half}.{order.index(spot.layer_path)}"
            found[i] = spot._replace(name=f"{layer}.{found[i].kind}_attn", layer=layer)
    taken: set[str] = set()
    for i, spot in enumerate(found):  # what is still not told apart has its path
        found[i] = spot._replace(name=spot.path) if spot.name in taken else spot
        taken.add(spot.name)
    return found


def _together(found: list[Spot]) -> list[Spot]:
    """What reads a memory stands in the half of its layer's self-attention: no path need say so."""
    half_of = {spot.layer_path: spot.layer for spot in found if spot.kind == "self"}
    for i, spot in enumerate(found):
        layer = half_of.get(spot.layer_path, spot.layer)
        if layer != spot.layer:
            found[i] = spot._replace(name=f"{layer}.{spot.kind}_attn", layer=layer)
    return found


def _spot(module: nn.Module, path: str, which: int) -> Spot:
    """Named by the first number of its path (which 0) or by the last (−1)."""
    told = _told(path, which)
    crosses = told.crosses or bool(getattr(module, "is_cross_attention", False))
    kind = "cross" if crosses else "self"
    layer = f"{told.half or _half(module)}.{told.number}"
    return Spot(module, path, f"{layer}.{kind}_attn", kind, layer, told.layer_path)


class _Told(NamedTuple):
    """What a path says by itself; half "": the module has to say."""

    half: str
    number: str
    crosses: bool
    layer_path: str


@functools.lru_cache(4096)
def _told(path: str, which: int) -> _Told:
    words = path.split(".")
    numbers = [place for place, word in enumerate(words) if word.isdigit()]
    depth = numbers[which] if numbers else len(words)
    start = numbers[0] if numbers else len(words)
    before, after = path.lower().split(".")[:start], path.lower().split(".")[start:]
    crosses = any(mark in word for word in after for mark in CROSS)
    towers = (tower for word in before for mark, tower in TOWERS.items() if mark in word)
    half = next(towers, "decoder" if any("decoder" in word for word in before) else "")
    return _Told(half, words[depth] if numbers else "0", crosses, ".".join(words[: depth + 1]))


def _repeated(model: nn.Module, found: list[Spot]) -> list[Spot]:
    """One module may be several layers: ALBERT's (1909.11942 section 3.1) goes round in groups."""
    config = getattr(model, "config", None)
    if getattr(config, "model_type", "") != "albert" or config is None:
        return found
    each, inner = config.num_hidden_layers / config.num_hidden_groups, config.inner_group_num
    spots = []
    for i in range(config.num_hidden_layers * inner):
        spot = found[int(i // inner / each) * inner + i % inner]
        spots.append(spot._replace(name=f"encoder.{i}.self_attn", layer=f"encoder.{i}"))
    return spots


def _half(module: nn.Module) -> str:
    """Encoder or decoder."""
    causal = getattr(module, "is_causal", None)
    if causal is None:
        causal = getattr(getattr(module, "config", None), "is_decoder", False)
    return "decoder" if causal else "encoder"


def asks_interface(kind: type) -> bool:
    """Do modules of this class call transformers' attention interface themselves?"""
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


def hidden(modules: dict[str, nn.Module], seen: list[Spot]) -> dict[str, nn.Module]:
    """Attentions whose q and k cannot be had: modules called so, none of which asks or is seen."""
    paths = [spot.path for spot in seen]
    around = {path[:end] for path in paths for end, sign in enumerate(path) if sign == "."}
    found: list[tuple[str, nn.Module]] = []
    for path, module in modules.items():
        kind: Any = type(module)
        if not _called_attention(kind) or path in around or path in paths:
            continue
        inside = any(path.startswith(f"{one}.") for one in paths)
        if not inside and next(module.parameters(), None) is not None:
            found.append((path, module))
    return {
        path: module
        for path, module in found
        if not any(other.startswith(f"{path}.") for other, _ in found)
    }


@functools.cache
def _called_attention(kind: type) -> bool:
    return re.search(r"(Attention|Attn)(?![a-z])", kind.__name__) is not None


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
    base, bare = f"{getattr(model, 'base_model_prefix', '')}.", spot.path.replace(COMPILED, "")
    return [spot.name, spot.path, short, bare, bare.removeprefix(base)]
