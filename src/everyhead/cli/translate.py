"""everyhead translate: lines in, lines out, in order."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from everyhead.cli.lines import stdin_lines, typed_lines
from everyhead.cli.options import Beam, Device, LengthPenalty, Run, Threads, utf8


def translate(
    run: Run,
    sentence: Annotated[
        str | None,
        typer.Argument(metavar="SENTENCE", help="Without it: standard input, line by line."),
    ] = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    n_best: Annotated[
        int,
        typer.Option(
            metavar="N", help="Show so many of each line: line number TAB score TAB translation."
        ),
    ] = 1,
    max_len: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Longest translation in pieces; by default twice the source and 16."
        ),
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(metavar="N", help="Source pieces that are searched at once.")
    ] = 4096,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Translate a sentence, or standard input line by line.

    Each line gives one line, in the same order; a blank line stays blank.
    """
    from everyhead.cli.opened import open_run
    from everyhead.generation.translate import Options, translate_stream
    from everyhead.models.prepare import prepare

    by_hand = sentence is None and sys.stdin is not None and sys.stdin.isatty()
    lines = stdin_lines() if sentence is None else iter(_argument_lines(sentence, run))
    opened = open_run(run, device=device, threads=threads)
    settings = opened.evaluation
    options = Options(
        beam=max(settings.beam, n_best) if beam is None else beam,
        length_penalty=settings.length_penalty if length_penalty is None else length_penalty,
        n_best=n_best,
        max_len=max_len,
        batch_tokens=batch_tokens,
        chunk_lines=1 if by_hand else 4096,
    )
    if by_hand:
        print("Type a sentence and Enter; Ctrl-D ends.", file=sys.stderr)
    model = prepare(opened.model)
    found = translate_stream(model, opened.tokenizer, lines, options, on_cut=_cut)
    for number, translations in enumerate(found, 1):
        if n_best == 1:
            print(translations[0].text, flush=by_hand)
            continue
        for each in translations:
            print(f"{number}\t{each.hypothesis.score:.4f}\t{each.text}", flush=by_hand)


def _argument_lines(sentence: str, run: Path) -> list[str]:
    sentence = utf8(sentence)
    if os.path.isfile(sentence):
        command = f"{shlex.join(['everyhead', 'translate', str(run)])} < {shlex.quote(sentence)}"
        _note(
            f"{sentence!r} is translated as a sentence; to translate that file's lines: {command}"
        )
    return typed_lines(sentence)


def _cut(number: int, n_pieces: int, limit: int) -> None:
    _note(
        f"line {number} has {n_pieces} pieces and was cut to {limit}, the longest that the model "
        "takes; split it into sentences."
    )


def _note(sentence: str) -> None:
    print(f"everyhead: {sentence}", file=sys.stderr)
