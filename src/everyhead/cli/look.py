"""everyhead look: see every head of a model while it reads, translates or goes on with a text."""

from pathlib import Path
from typing import Annotated

import typer

from everyhead.cli.look_pictures import (
    FORMATS,
    check_suffix,
    compact,
    cross_attention,
    cross_attention_figure,
    cross_attention_of,
    first_view,
    made_of,
    scene_figure,
    scene_values,
    translated,
)
from everyhead.cli.options import Beam, Device, Threads, utf8
from everyhead.files import atomic_write_text

__all__ = ["cross_attention", "cross_attention_figure", "cross_attention_of", "look", "translated"]

PAGE = Path("look.html")


def look(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run's folder, like runs/demo; a Hugging Face folder or a name on its Hub.",
        ),
    ],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the model is to read.")],
    second: Annotated[
        str | None, typer.Argument(metavar="TEXT2", help="A second text, to compare with.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the page goes; by default look.html.")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the page here, so that it can be typed into.")
    ] = False,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a picture: .png, .svg or .pdf.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a picture: .svg.")] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the numbers as JSON.")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(metavar="N", help="One layer alone, counted from 0.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(metavar="N", help="One head alone, counted from 0.")
    ] = None,
    pair: Annotated[
        bool, typer.Option("--pair", help="TEXT2 is the second sentence of the same input.")
    ] = False,
    translation: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Look at this translation, not at the model's own."),
    ] = None,
    image: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The picture, for models that look at one.")
    ] = None,
    port: Annotated[int, typer.Option(metavar="N", help="Where --serve listens.")] = 8765,
    address: Annotated[
        str, typer.Option(metavar="IP", help="Where --serve listens; others may then ask, too.")
    ] = "127.0.0.1",
    beam: Beam = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Run a model on a text and see what every head of every layer looks at.

    By default one page is written that needs nothing else. What the model made of the text, if it
    writes any, and the paths of what was written are printed.
    """
    for option, path, suffixes in (
        ("--png", png, FORMATS),
        ("--svg", svg, (".svg",)),
        ("--json", json, (".json",)),
        ("--html", html, (".html", ".htm")),
    ):
        if path is not None:
            check_suffix(option, path, suffixes)
    from everyhead.cli.asked import Wanted, open_session
    from everyhead.explorer.page import write
    from everyhead.inspection.figures import save_figure

    wanted = Wanted(utf8(text), second and utf8(second), translation and utf8(translation), pair)
    wanted.check()
    session = open_session(model, image=image, beam=beam, device=device, threads=threads)
    scenes = wanted.scenes(session, serve=serve)
    state = first_view(scenes[0], layer, head)
    for scene in scenes:
        print(made_of(scene), end="")
    for path in (png, svg):
        if path is not None:
            print(save_figure(scene_figure(scenes[0], layer=layer, head=head), path))
    if json is not None:
        atomic_write_text(json, compact(scene_values(scenes, layer=layer, head=head)))
        print(json)
    if html is not None or not (png or svg or json or serve):
        print(write(scenes, html or PAGE, state=state))
    if serve:
        from everyhead.cli.serving import serve_page

        serve_page(session, scenes, state, address=address, port=port)
