"""Pages of real models, of every kind there is, in Chromium: live ones and saved ones."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.explorer.pictures import PictureReader
from everyhead.explorer.readers import reader
from everyhead.explorer.sessions import Asked, Session
from everyhead.explorer.translators import Translator
from everyhead.generation.translate import Options
from everyhead.models.transformer import Transformer, TransformerConfig
from everyhead.weights.foreign import open_foreign
from tests.explorer import models
from tests.explorer.conftest import Served, Tab

pytestmark = pytest.mark.slow
TEXT = "the bank of the river"


def session_of(kind: str, folder: Path) -> Session:
    if kind in ("bert", "gpt2", "t5"):
        model = {"bert": models.bert, "gpt2": models.gpt2, "t5": models.t5}[kind]()
        return reader(open_foreign(models.saved(model, folder, ended=kind == "t5")))
    if kind == "vit":
        foreign = open_foreign(models.saved(models.vit(), folder))
        return PictureReader(foreign, models.picture(folder / "picture.png"))
    pairs = [TEXT, "the cat sat"], ["河岸", "猫坐着"]
    tokenizer = PairTokenizer.train(*pairs, vocab_size=300, min_count=1)
    config = TransformerConfig(
        vocab_size=tokenizer.target.vocab_size,
        source_vocab_size=None if tokenizer.shared else tokenizer.source.vocab_size,
        d_model=32,
        n_heads=2,
        n_encoder_layers=2,
        n_decoder_layers=2,
        d_ff=32,
        max_len=32,
    )
    model = models.lively(Transformer(config))
    options = Options(beam=1)
    return Translator(model, tokenizer, name="ours", options=options)


@pytest.fixture(params=["bert", "translator", "vit"])
def served(request: Any, tmp_path: Path) -> Iterator[tuple[str, str]]:
    session = session_of(request.param, tmp_path / "model")
    running = Served(session, [session.scene(Asked(TEXT))])
    yield f"http://127.0.0.1:{running.port}/", request.param
    running.stop()


def test_tokens_are_hidden_and_heads_switched_off(served: tuple[str, str], online: Tab) -> None:
    from axe_playwright_python.sync_playwright import Axe

    url, kind = served
    page = online.show(url, view="live").page
    if kind != "vit":
        online.change(lambda: page.locator("#live-text").fill("the cat sat"))
        assert page.locator("h1").inner_text() == "the cat sat"
    drawn = "() => document.querySelector('canvas.matrix').toDataURL()"
    online.change(lambda: page.locator("#live-undo").click())
    before = page.evaluate(drawn)
    online.change(lambda: page.locator("#hide-1").click())
    assert page.locator("#hide-1").get_attribute("aria-pressed") == "true"
    assert page.evaluate(drawn) != before
    assert "How far the last state" in page.locator("main").inner_text()
    online.change(lambda: page.locator(".switch").first.click())
    assert page.locator(".switch").first.get_attribute("aria-pressed") == "true"
    online.change(lambda: page.locator("#live-undo").click())
    assert page.evaluate(drawn) == before
    if kind == "vit":
        assert page.locator("canvas.overpicture").count() == 1
    found = Axe().run(page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


@pytest.mark.parametrize("kind", ["bert", "translator", "gpt2", "t5", "vit"])
def test_a_saved_page_shows_the_models_own_weights_in_every_view(
    kind: str, tmp_path: Path, tab: Tab, saved: Callable[..., str]
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    session = session_of(kind, tmp_path / "model")
    one, other = session.scene(Asked(TEXT)), session.scene(Asked("the cat sat"))
    url = saved(one) if kind == "vit" else saved(one, other)
    tab.show(url, view="head", group=len(one.groups) - 1, layer=1, head=1)
    wanted = one.groups[-1].layers[1].head(1)
    (shown,) = tab.numbers()
    seen = ~np.isnan(shown)
    row = np.where(np.isnan(wanted), 0, wanted).max(1, keepdims=True)
    assert (np.abs(shown - wanted) <= row / 255 + 1e-6)[seen].all() and seen.any()
    tab.page.locator(".tokens.queries button").first.hover()
    texts = tab.page.locator(".tokens.keys .value").all_inner_texts()
    assert [text == "—" for text in texts] == list(~seen[0])
    numbers = [float(text) for text in texts if text != "—"]
    np.testing.assert_allclose(numbers, shown[0][seen[0]], atol=1e-3)
    for view in ("overview", "compare", "walk"):
        tab.show(url, view=view)
        found = Axe().run(tab.page).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
