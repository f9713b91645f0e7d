"""The pictures of `look`: what every head of a translator's cross-attention reads, or of any model.

Rows are the pieces that were written, each the query that produced it; columns the pieces read.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from everyhead.cli.look_over import over_picture
from everyhead.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from everyhead.cli.opened import Opened
    from everyhead.explorer.scene import Group, Scene
    from everyhead.generation.translate import Translation

FORMATS = (".png", ".svg", ".pdf")


class CrossAttention(NamedTuple):
    """One (H, T, S) array a layer, and the texts of its rows and columns."""

    layers: list[Any]
    written: list[str]
    read: list[str]


def translated(opened: "Opened", sentence: str, beam: int | None = None) -> "Translation":
    """The model's best translation of the sentence, searched as its recipe says."""
    from everyhead.generation.translate import Options, translate_stream

    settings = opened.evaluation
    options = Options(
        beam=settings.beam if beam is None else beam, length_penalty=settings.length_penalty
    )
    one_line = " ".join(sentence.split("\n"))
    return next(translate_stream(opened.model, opened.tokenizer, [one_line], options))[0]


def cross_attention_of(opened: "Opened", sentence: str, found: "Translation") -> CrossAttention:
    """What the model read while it wrote this translation, piece by piece as it wrote it."""
    return cross_attention(opened, sentence, found.hypothesis.ids, ended=found.hypothesis.ended)


def cross_attention(
    opened: "Opened", sentence: str, target: list[int], *, ended: bool = True
) -> CrossAttention:
    """Rows are the pieces written, each the query that produced it; columns the pieces read.

    Raises:
        UserError: a text that is too long for the model.
    """
    import torch

    from everyhead.inspection.trace import record

    model, tokenizer = opened.model, opened.tokenizer
    config = model.config
    source = tokenizer.source.encode(" ".join(sentence.split("\n")))
    longest = max(len(source) + 1, len(target) + ended)
    if longest > config.max_len:
        raise UserError(
            f"The text has {longest} pieces and the model takes {config.max_len}: look at a "
            "shorter one."
        )
    device = next(model.parameters()).device
    source_ids = torch.tensor([[*source, config.eos_id]], device=device)
    target_in = torch.tensor([[config.pad_id, *target][: len(target) + ended]], device=device)
    with torch.inference_mode(), record(model) as trace:
        model.hidden(source_ids, target_in)
    places = [f"decoder.{i}.cross_attn" for i in range(config.n_decoder_layers)]
    end = "(end)"
    return CrossAttention(
        [trace[place].weights()[0].cpu().numpy() for place in places],
        tokenizer.target.pieces_to_spans(target) + [end] * ended,
        [*tokenizer.source.pieces_to_spans(source), end],
    )


def cross_attention_figure(
    seen: CrossAttention, *, layer: int | None = None, head: int | None = None
) -> "Figure":
    """A grid, one row a layer and one panel a head; or the one layer, the one head.

    Raises:
        UserError: no such layer or head.
    """
    from everyhead.inspection.figures import attention_figure, attention_grid

    layers, written, read = seen
    chosen = _chosen("layer", layer, len(layers))
    heads = _chosen("head", head, layers[0].shape[0])
    if len(chosen) == 1:
        matrices = layers[chosen[0]][heads]
        title = f"decoder.{chosen[0]}.cross_attn"
        return attention_figure(
            matrices,
            written,
            read,
            title=title,
            heads=heads,
            query_name="written",
            key_name="read",
        )
    rows = [(f"decoder.{i}.cross_attn", layers[i][heads]) for i in chosen]
    return attention_grid(
        rows,
        written,
        read,
        title="cross-attention",
        heads=heads,
        query_name="written",
        key_name="read",
    )


def _chosen(what: str, number: int | None, n: int) -> list[int]:
    if number is None:
        return list(range(n))
    if not 0 <= number < n:
        raise UserError(f"There is no {what} {number}; the model has {n}, counted from 0.")
    return [number]


def chosen_group(scene: "Scene", layer: int | None = None) -> "Group":
    """Where a scene has cross-attention, that; else its first group; or one that has the layer."""
    usual = [*sorted(scene.groups, key=lambda group: group.kind != "cross")]
    deep = [group for group in usual if layer is None or layer < len(group.layers)]
    return (deep or sorted(usual, key=lambda group: -len(group.layers)))[0]


def scene_figure(scene: "Scene", *, layer: int | None, head: int | None) -> "Figure":
    """One panel a head of the scene's chosen group, as `cross_attention_figure`.

    Raises:
        UserError: no such layer or head.
    """
    import numpy as np

    from everyhead.inspection.figures import attention_figure, attention_grid

    group = chosen_group(scene, layer)
    layers = _chosen("layer", layer, len(group.layers))
    heads = _chosen("head", head, group.layers[0].n_heads)
    if group.picture is not None:
        return over_picture(group, layers, heads, title=scene.title)
    crossing = group.kind == "cross"
    axes = {"query_name": "written", "key_name": "read"} if crossing else {}
    texts: Any = {"queries": group.rows, "keys": group.columns, "heads": heads, **axes}
    rows = []
    for i in layers:
        one = group.layers[i]
        panels = [np.where(one.visible(h), one.head(h), np.nan) for h in heads]
        rows.append((one.name, np.stack(panels)))
    if len(rows) == 1:
        return attention_figure(rows[0][1], title=rows[0][0], **texts)
    return attention_grid(rows, title="cross-attention" if crossing else scene.title, **texts)


def scene_values(
    scenes: "Sequence[Scene]", *, layer: int | None, head: int | None
) -> dict[str, Any]:
    """The numbers of every scene: tokens, and for every head its rows, None where hidden.

    Raises:
        UserError: no such layer or head.
    """
    return {"scenes": [_values(scene, layer, head) for scene in scenes]}


def _values(scene: "Scene", layer: int | None, head: int | None) -> dict[str, Any]:
    groups = []
    _chosen("layer", layer, max(len(group.layers) for group in scene.groups))
    for group in scene.groups:
        if layer is not None and layer >= len(group.layers):
            continue  # halves may be of different depth
        places = [
            {"place": group.layers[i].name, "head": h, "weights": _rows(group, i, h)}
            for i in _chosen("layer", layer, len(group.layers))
            for h in _chosen("head", head, group.layers[0].n_heads)
        ]
        tokens = {"queries": group.rows, "keys": group.columns}
        groups.append({"name": group.name, "kind": group.kind, **tokens, "heads": places})
    return {"model": scene.model, "texts": scene.texts, "output": scene.output, "groups": groups}


def _rows(group: "Group", layer: int, head: int) -> list[list[float | None]]:
    weights = group.layers[layer].head(head).tolist()
    seen = group.layers[layer].visible(head).tolist()
    return [
        [w if may else None for w, may in zip(row, marks, strict=True)]
        for row, marks in zip(weights, seen, strict=True)
    ]


def compact(value: Any) -> str:
    """JSON in one line of ASCII."""
    return json.dumps(value, allow_nan=False) + "\n"


def first_view(scene: "Scene", layer: int | None, head: int | None) -> dict[str, Any]:
    """What the page shows first: the overview, or the head that was asked for.

    Raises:
        UserError: no such layer or head.
    """
    group = chosen_group(scene, layer)
    _chosen("layer", layer, len(group.layers))
    _chosen("head", head, group.layers[0].n_heads)
    if layer is None and head is None:
        return {}
    place = {"group": scene.groups.index(group), "layer": layer or 0, "head": head or 0}
    return {"view": "head", **place}


def made_of(scene: "Scene") -> str:
    """What the model wrote, one line; nothing where it wrote nothing."""
    text = (scene.output or {}).get("text")
    return "" if text is None else f"{text}\n"


def check_suffix(option: str, path: Path | None, suffixes: tuple[str, ...]) -> None:
    """
    Raises:
        UserError: the path has another suffix.
    """
    if path is not None and path.suffix.lower() not in suffixes:
        raise UserError(f"{option} {path} must end in {', '.join(suffixes)}.")
