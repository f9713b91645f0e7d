"""Methods of attention as they are typed: window:512, window:512+4, features:256, lsh:32, exact."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from everyhead.errors import UserError

if TYPE_CHECKING:
    from everyhead.models.swap import Method

FORMS = "window:512, window:512+4 (with the 4 first tokens kept), features:256, lsh:32 or exact"
MOST_DIGITS = 9
Attention = Annotated[
    str | None,
    typer.Option(
        "--attention",
        metavar="METHOD",
        help=f"What it costs to compute self-attention otherwise: {FORMS}.",
    ),
]


def method(text: str) -> "Method":
    """The method that a text names.

    Raises:
        UserError: none of the forms, or a number that makes no sense.
    """
    from everyhead.layers.exact import Exact
    from everyhead.layers.favor import RandomFeatures
    from everyhead.layers.lsh_method import Lsh
    from everyhead.layers.sliding import Window

    name, colon, rest = text.partition(":")
    numbers = rest.split("+") if colon else []
    kinds: dict[str, tuple[Any, int]] = {
        "window": (Window, 2),
        "features": (RandomFeatures, 1),
        "lsh": (Lsh, 1),
        "exact": (Exact, 0),
    }
    kind, most = kinds.get(name, (None, 0))
    few = kind is not None and min(most, 1) <= len(numbers) <= most
    if not few or not all(number.isdecimal() and number.isascii() for number in numbers):
        raise UserError(f"--attention {text!r} is no method; give {FORMS}.")
    if any(len(number) > MOST_DIGITS for number in numbers):
        raise UserError(f"--attention {text}: a number has at most {MOST_DIGITS} digits.")
    try:
        return kind(*map(int, numbers))
    except ValueError as error:
        raise UserError(f"--attention {text}: {error}.") from error


def swapped(model: Any, text: str) -> Any:
    """The model with another attention in its place.

    Raises:
        UserError: no such method, or one that this model cannot be computed by.
    """
    from everyhead.models.swap import swap

    try:
        return swap(model, method(text))
    except ValueError as error:
        raise UserError(f"--attention {text} does not go with this model: {error}.") from error


def side_by_side(text: str, plain: dict[str, Any], changed: dict[str, Any]) -> str:
    """Scores without and with the method; what counts the data stands once."""
    from everyhead.cli.progress import named, shown

    def said(metric: str, value: Any) -> str:
        if metric.endswith("loss") and value is not None:
            return f"{value:.4f}"  # what is compared is often little
        return shown(metric, value) if isinstance(value, int | float) else value or "not finite"

    shared = [m for m, value in plain.items() if isinstance(value, int) and changed[m] == value]
    columns = [("", "exact", text)]
    columns += [
        (named(m), said(m, plain[m]), said(m, changed[m])) for m in plain if m not in shared
    ]
    widths = [max(len(row[i]) for row in columns) + 2 for i in range(3)]
    lines = [
        "".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)) for row in columns
    ]
    lines += [f"{said(m, plain[m])} {named(m)}" for m in shared]
    return "\n".join(line.rstrip() for line in lines)
