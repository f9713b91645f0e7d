"""everyhead look: which words each head of the decoder reads while it translates."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from everyhead.cli.options import Beam, Device, Run, Threads, utf8
from everyhead.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from everyhead.cli.opened import Opened
    from everyhead.generation.translate import Translation

FORMATS = (".png", ".svg", ".pdf")


class CrossAttention(NamedTuple):
    """One (H, T, S) array a layer, and the texts of its rows and columns."""

    layers: list[Any]
    written: list[str]
    read: list[str]


def look(
    run: Run,
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="The sentence to translate.")],
    translation: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Look at this translation, not at the model's own."),
    ] = None,
    png: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the picture goes: .png, .svg or .pdf.")
    ] = Path("look.png"),
    layer: Annotated[
        int | None, typer.Option(metavar="N", help="One decoder layer alone, counted from 0.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(metavar="N", help="One head alone, counted from 0.")
    ] = None,
    beam: Beam = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Translate a sentence and draw what every head of the cross-attention reads.

    One row a decoder layer, one panel a head; --layer and --head choose. The translation and the
    picture's path are printed.
    """
    from everyhead.cli.opened import open_run
    from everyhead.inspection.figures import save_figure

    sentence = utf8(sentence)
    if not sentence.strip():
        raise UserError("The sentence is blank: there is nothing to look at.")
    if png.suffix.lower() not in FORMATS:
        raise UserError(f"--png {png} must end in {', '.join(FORMATS)}.")
    opened = open_run(run, device=device, threads=threads)
    text = translation
    if translation is not None:
        ids = opened.tokenizer.target.encode(utf8(translation))
        seen = cross_attention(opened, sentence, ids)
    else:
        found = translated(opened, sentence, beam)
        text, seen = found.text, cross_attention_of(opened, sentence, found)
    figure = cross_attention_figure(seen, layer=layer, head=head)
    print(text)
    print(save_figure(figure, png))


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
