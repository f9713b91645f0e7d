"""The program `everyhead`: its verbs, and what happens when one fails.

A mistake a person can mend is one sentence on stderr and exit code 2; `--debug` shows the
traceback. Ctrl-C is 130; a reader that goes away (`| head`) ends the program quietly.
"""

import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

from everyhead.cli import (
    check,
    demo,
    embed,
    evaluate,
    fetch,
    fill,
    generate,
    look,
    models,
    predict,
    train,
    translate,
)
from everyhead.errors import UserError

HELP = """Open a Transformer and see, test and change every head; train one from your own data.

\b
  everyhead demo                                    all of it, on the built-in sentences
  everyhead train --pairs my.tsv --run runs/mine    learn from your own pairs
  everyhead translate runs/mine < in.txt > out.txt
  everyhead evaluate runs/mine
  everyhead look runs/mine "A sentence." --png look.png
  everyhead check runs/mine                         does it keep the laws?
  everyhead generate smollm2 "Once upon a time"     go on with a text, or --chat
  everyhead train classify-questions                other jobs: docs/jobs.md

everyhead VERB --help tells more about each.
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Typer has click inside or beside it, depending on its version; this is click's ClickException.
WrongCommand: Any = typer.BadParameter.__mro__[2]


def _version(wanted: bool) -> None:
    if wanted:
        # Nothing inside the house imports the front door; it is open already.
        print(f"everyhead {sys.modules['everyhead'].__version__}")
        raise typer.Exit


@app.callback()
def _program(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """`debug` is here for --help alone: `main` takes it before or after the verb."""


for verb, short in (
    (train.train, "Learn a job from a recipe, or to translate from pairs."),
    (translate.translate, "Translate a sentence or a file."),
    (evaluate.evaluate, "Score a run on what it did not learn from."),
    (look.look, "Draw what each head attends to."),
    (check.check, "Try the laws on a model: padding, cache, future …"),
    (generate.generate, "Go on with a text, converse, choose labels by examples."),
    (embed.embed, "Sentence vectors, and how alike sentences are."),
    (fill.fill, "The likeliest words for the gaps of a sentence."),
    (predict.predict, "Classes, names, answers: what a run says of texts or pictures."),
    (demo.demo, "The whole tour in minutes."),
    (models.models, "List the models and their sizes."),
    (fetch.fetch, "Put a published checkpoint or data into the cache."),
):
    app.command(verb.__name__, short_help=short)(verb)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given or bool(os.environ.get("EVERYHEAD_DEBUG"))
    with _plain_warnings(), _finished_output():
        try:
            result = app(
                [each for each in given if each != "--debug"],
                prog_name="everyhead",
                standalone_mode=False,
            )
            if sys.stdout is not None:
                sys.stdout.flush()
        except BaseException as error:
            if debug:
                traceback.print_exc()
            return _failed(error)
        return result if isinstance(result, int) else 0


def _failed(error: BaseException) -> int:
    """Say what went wrong; returns the exit code."""
    if isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError):
        return 141  # click makes an exit of it
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return 130
    if isinstance(error, UserError):
        return _say(str(error), 2)
    if isinstance(error, WrongCommand):
        error.show()
        return 2
    if isinstance(error, OSError):
        place = "standard output" if error.filename is None else error.filename
        return _say(f"{place}: {error.strerror or error}; check the path and the free space.", 2)
    if isinstance(error, Exception):
        name = type(error).__name__
        return _say(f"unexpected {name}: {error} (--debug shows where)", 1)
    raise error


def _say(sentence: str, code: int) -> int:
    with suppress(OSError):
        print(f"everyhead: {sentence}", file=sys.stderr)
    return code


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """A warning is one sentence on stderr, said once, without the line of code that gave it."""
    said: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in said:
            _say(str(message), 0)
        said.add(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def _finished_output() -> Iterator[None]:
    """Text out is UTF-8 whatever the locale, its lines end in a plain newline.

    What cannot be written when all is done goes nowhere, or Python would complain at its exit.
    """
    streams = [stream for stream in (sys.stdout, sys.stderr) if hasattr(stream, "reconfigure")]
    for stream in streams:
        stream.reconfigure(encoding="utf-8", errors="replace", newline="\n")
    try:
        yield
    finally:
        for stream in streams:
            try:
                stream.flush()
            except OSError:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
