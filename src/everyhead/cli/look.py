"""everyhead look: see every head of a model while it reads, translates or goes on with a text."""

from pathlib import Path

from everyhead.cli.look_options import (
    Address,
    HeadNumber,
    Html,
    Image,
    Json,
    LayerNumber,
    Model,
    Pair,
    Png,
    Port,
    Second,
    Serve,
    Svg,
    Text,
    TranslationText,
)
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
    model: Model,
    text: Text = None,
    second: Second = None,
    html: Html = None,
    serve: Serve = False,
    png: Png = None,
    svg: Svg = None,
    json: Json = None,
    layer: LayerNumber = None,
    head: HeadNumber = None,
    pair: Pair = False,
    translation: TranslationText = None,
    image: Image = None,
    port: Port = 8765,
    address: Address = "127.0.0.1",
    beam: Beam = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Run a model on a text and see what every head of every layer looks at.

    By default one page is written that needs nothing else. What the model made of the text, if it
    writes any, and the paths of what was written are printed.
    """
    check_suffix("--png", png, FORMATS)
    check_suffix("--svg", svg, (".svg",))
    check_suffix("--json", json, (".json",))
    check_suffix("--html", html, (".html", ".htm"))
    from everyhead.cli.asked import Wanted, open_session
    from everyhead.cli.serving import check_address, serve_page
    from everyhead.explorer.page import write
    from everyhead.inspection.figures import save_figure

    wanted = Wanted(
        text and utf8(text), second and utf8(second), translation and utf8(translation), pair
    )
    wanted.check(drawn=bool(png or svg))
    if serve:
        check_address(address)
    session = open_session(model, image=image, beam=beam, device=device, threads=threads)
    saved = bool(html or png or svg or json)
    paged = html is not None or not (saved or serve)
    scenes = wanted.scenes(session, serve=serve and not saved, measured=paged)
    state = first_view(scenes[0], layer, head)
    for scene in scenes:
        print(made_of(scene), end="")
    for path in (png, svg):
        if path is not None:
            print(save_figure(scene_figure(scenes[0], layer=layer, head=head), path))
    if json is not None:
        atomic_write_text(json, compact(scene_values(scenes, layer=layer, head=head)))
        print(json)
    if paged:
        print(write(scenes, html or PAGE, state=state))
    if serve:
        serve_page(session, scenes, state, address=address, port=port)
