"""The options of `look`, each said once."""

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A run's folder, like runs/demo; a Hugging Face folder or a name on its Hub.",
    ),
]
Text = Annotated[
    str | None,
    typer.Argument(
        metavar="TEXT", help="What the model is to read; none for one that looks at --image alone."
    ),
]
Second = Annotated[
    str | None, typer.Argument(metavar="TEXT2", help="A second text, to compare with.")
]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Where the page goes; by default look.html.")
]
Serve = Annotated[
    bool, typer.Option("--serve", help="Serve the page here, so that it can be typed into.")
]
Png = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw a picture: .png, .svg or .pdf.")
]
Svg = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a picture: .svg.")]
Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the numbers as JSON.")]
LayerNumber = Annotated[
    int | None, typer.Option(metavar="N", help="One layer alone, counted from 0.")
]
HeadNumber = Annotated[
    int | None, typer.Option(metavar="N", help="One head alone, counted from 0.")
]
Pair = Annotated[
    bool, typer.Option("--pair", help="TEXT2 is the second sentence of the same input.")
]
TranslationText = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Look at this translation, not at the model's own."),
]
Image = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The picture, for models that look at one.")
]
Port = Annotated[int, typer.Option(metavar="N", help="Where --serve listens; 0: any free one.")]
Address = Annotated[
    str, typer.Option(metavar="IP", help="Where --serve listens; others may then ask, too.")
]
