"""everyhead translate: lines in, lines out, in order."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from everyhead.errors import UserError


def translate(
    run: Annotated[Path, typer.Argument(help="A run or model folder.")],
    sentence: Annotated[
        str | None, typer.Argument(help="One sentence; without it, lines from standard input.")
    ] = None,
    beam: Annotated[
        int | None, typer.Option(help="Beams; 1 is greedy. Default: the recipe's.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Scores are divided by length to this power.")
    ] = None,
    n_best: Annotated[
        int, typer.Option(help="Show so many: line number, score and text, apart by tabs.")
    ] = 1,
    max_len: Annotated[int | None, typer.Option(help="Longest translation, in pieces.")] = None,
    batch_tokens: Annotated[int, typer.Option(help="Source pieces searched together.")] = 4096,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Processor threads.")] = None,
) -> None:
    """Translate a sentence, or standard input line by line; a blank line stays blank."""
    from everyhead.cli.opened import open_run
    from everyhead.generation.translate import Options, translate_stream
    from everyhead.models.prepare import prepare

    if sentence is None and sys.stdin is not None and sys.stdin.isatty():
        print("Type a sentence and Enter; Ctrl-D ends.", file=sys.stderr)
    opened = open_run(run, device=device, threads=threads)
    settings = opened.evaluation
    width = max(settings.beam, n_best) if beam is None else beam
    options = Options(
        beam=width,
        length_penalty=settings.length_penalty if length_penalty is None else length_penalty,
        n_best=n_best,
        max_len=max_len,
        batch_tokens=batch_tokens,
        chunk_lines=1 if sentence is None and sys.stdin.isatty() else 4096,
    )
    lines = _stdin_lines() if sentence is None else iter(sentence.split("\n"))
    model = prepare(opened.model)
    found = translate_stream(model, opened.tokenizer, lines, options, on_cut=_cut)
    for number, translations in enumerate(found, 1):
        if n_best == 1:
            print(translations[0].text, flush=options.chunk_lines == 1)
            continue
        for each in translations:
            print(f"{number}\t{each.hypothesis.score:.4f}\t{each.text}")


def _stdin_lines() -> Iterator[str]:
    """Lines of standard input as UTF-8, split at \\n alone; a byte order mark is dropped.

    Raises:
        UserError: a line that is not UTF-8.
    """
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"Line {number} of standard input is not UTF-8 ({error.reason}): convert it, for "
                "example with iconv."
            ) from error
        yield text.removesuffix("\n").removesuffix("\r").lstrip("\ufeff")


def _cut(number: int, n_pieces: int, limit: int) -> None:
    print(
        f"everyhead: line {number} has {n_pieces} pieces and was cut to {limit}, the longest the "
        "model takes; split it into sentences.",
        file=sys.stderr,
    )
