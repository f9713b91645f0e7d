"""The program `everyhead`: its verbs, and what happens when one fails.

A mistake a person can mend is one sentence on stderr and exit code 2; `--debug` shows the
traceback. Ctrl-C is 130; a reader that goes away (`| head`) ends the program quietly.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from everyhead import __version__
from everyhead.cli import demo, evaluate, look, models, train, translate
from everyhead.errors import UserError

HELP = """Train a Transformer on sentence pairs, translate with it, see what it attends to.

\b
  everyhead demo                                    all of it, on the built-in sentences
  everyhead train --pairs my.tsv --run runs/mine
  everyhead translate runs/mine < in.txt > out.txt
  everyhead evaluate runs/mine
  everyhead look runs/mine "A sentence." --png look.png
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"everyhead {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if debug:
        os.environ["EVERYHEAD_DEBUG"] = "1"


app.command("train")(train.train)
app.command("translate")(translate.translate)
app.command("evaluate")(evaluate.evaluate)
app.command("look")(look.look)
app.command("demo")(demo.demo)
app.command("models")(models.models)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--debug" in arguments:  # before or after the verb
        os.environ["EVERYHEAD_DEBUG"] = "1"
        arguments.remove("--debug")
    _utf8_streams()
    try:
        result = app(arguments, prog_name="everyhead", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except UserError as error:
        return _failed(error, 2)
    except typer._click.exceptions.ClickException as error:
        error.show()
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print("everyhead: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if os.environ.get("EVERYHEAD_DEBUG"):
            raise
        name = type(error).__name__
        return _failed(f"unexpected {name}: {error} (--debug shows where)", 1)


def _failed(error: object, code: int) -> int:
    if os.environ.get("EVERYHEAD_DEBUG"):
        import traceback

        traceback.print_exc()
    print(f"everyhead: {error}", file=sys.stderr)
    return code


def _utf8_streams() -> None:
    """Text in and out is UTF-8 whatever the locale, with lines that end in a plain newline."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace", newline="\n")
