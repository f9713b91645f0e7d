"""everyhead look: which words each head of the decoder reads while it translates."""

from pathlib import Path
from typing import Annotated, Any

import typer

from everyhead.errors import UserError


def look(
    run: Annotated[Path, typer.Argument(help="A run or model folder.")],
    sentence: Annotated[str, typer.Argument(help="The sentence to translate.")],
    translation: Annotated[
        str | None, typer.Option(help="Look at this translation instead of the model's own.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Where the picture goes: .png, .svg or .pdf.")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="One decoder layer, counted from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="One head, counted from 0.")] = None,
    beam: Annotated[int | None, typer.Option(help="Beams; by default the recipe's.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
) -> None:
    """Draw the cross-attention of every head, or of one --layer or --head."""
    from everyhead.cli.opened import open_run
    from everyhead.inspection.figures import save_figure

    if not sentence.strip():
        raise UserError("The sentence is blank: there is nothing to look at.")
    opened = open_run(run, device=device)
    if translation is None:
        from everyhead.generation.translate import translate

        settings = opened.evaluation
        translation = translate(
            opened.model,
            opened.tokenizer,
            [sentence],
            beam=settings.beam if beam is None else beam,
            length_penalty=settings.length_penalty,
        )[0]
    figure = cross_attention_figure(opened, sentence, translation, layer=layer, head=head)
    print(translation)
    print(save_figure(figure, png or Path("look.png")))


def cross_attention_figure(
    opened: Any,
    sentence: str,
    translation: str,
    *,
    layer: int | None = None,
    head: int | None = None,
) -> Any:
    """A grid of the heads' matrices: rows are the pieces written, columns the pieces read.

    The row of a piece is the query that produced it.

    Raises:
        UserError: no such layer or head, or a text that is too long for the model.
    """
    from everyhead.inspection.figures import attention_figure, attention_grid

    layers, written, read = cross_attention(opened, sentence, translation)
    shown = [_chosen("layer", layer, len(layers))] if layer is not None else range(len(layers))
    n_heads = layers[0].shape[0]
    heads = [_chosen("head", head, n_heads)] if head is not None else list(range(n_heads))
    if len(shown) == 1:
        (only,) = shown
        title = f"decoder.{only}.cross_attn"
        return attention_figure(
            layers[only][heads],
            written,
            read,
            title=title,
            heads=heads,
            query_name="written",
            key_name="read",
        )
    rows = [(f"decoder.{i}.cross_attn", layers[i][heads]) for i in shown]
    return attention_grid(
        rows, written, read, title="cross-attention", query_name="written", key_name="read"
    )


def cross_attention(
    opened: Any, sentence: str, translation: str
) -> tuple[list[Any], list[str], list[str]]:
    """One (H, T, S) array a layer, and the texts of its rows and columns."""
    import torch

    from everyhead.inspection.trace import record

    model, tokenizer = opened.model, opened.tokenizer
    config = model.config
    source, target = (
        side.encode(text)
        for side, text in ((tokenizer.source, sentence), (tokenizer.target, translation))
    )
    if max(len(source), len(target)) + 1 > config.max_len:
        raise UserError(
            f"The text has {max(len(source), len(target)) + 1} pieces and the model takes "
            f"{config.max_len}: look at a shorter one."
        )
    device = next(model.parameters()).device
    source_ids = torch.tensor([[*source, config.eos_id]], device=device)
    target_in = torch.tensor([[config.pad_id, *target]], device=device)
    with torch.inference_mode(), record(model) as trace:
        model.hidden(source_ids, target_in)
    layers = [
        trace[f"decoder.{i}.cross_attn"].weights()[0].cpu().numpy()
        for i in range(config.n_decoder_layers)
    ]
    end = "(end)"
    written = [*tokenizer.target.spans(translation), end]
    return layers, written, [*tokenizer.source.spans(sentence), end]


def _chosen(what: str, number: int, n: int) -> int:
    if not 0 <= number < n:
        raise UserError(f"There is no {what} {number}; the model has {n}, counted from 0.")
    return number
