"""The saved page in Chromium, offline: what is drawn, what is shown, what the keyboard reaches."""

import re

import numpy as np
import pytest

from everyhead.explorer.scene import Group, HeadParts, Matrices, Scene, scene_of
from tests.explorer.conftest import SOURCE, TARGET, shares, translation

pytestmark = pytest.mark.slow  # many models or pictures; `make test-fast` leaves them out


class Known(Matrices):
    """Weights with the q, k, v they come from."""

    def __init__(self, name: str, parts: list[HeadParts], seen: np.ndarray) -> None:
        made = []
        for q, k, _, scale, _ in parts:
            scores = np.where(seen, q.astype(float) @ k.T * scale, -np.inf)
            powers = np.exp(scores - scores.max(1, keepdims=True))
            made.append(powers / powers.sum(1, keepdims=True))
        super().__init__(name, np.stack(made), visible=seen)
        self._parts = parts

    def parts(self, head: int) -> HeadParts:
        return self._parts[head]


def known(n: int, width: int, heads: int, *, causal: bool, strength: float = 1.0) -> Scene:
    rng = np.random.default_rng(0)
    seen = np.tril(np.ones((n, n), bool)) if causal else np.ones((n, n), bool)
    parts = [
        HeadParts(*(strength * rng.normal(size=(3, n, width)).astype(np.float32)), width**-0.5)
        for _ in range(heads)
    ]
    words = [f"w{i}" for i in range(n)]
    return Scene(
        "known", ["known"], [Group("decoder", "self", words, words, [Known("l0", parts, seen)])]
    )


def close(shown: np.ndarray, weights: np.ndarray, seen: np.ndarray) -> None:
    """Within 1/255 of each row's largest, and hidden exactly where it is hidden."""
    np.testing.assert_array_equal(np.isnan(shown), ~seen)
    wrong = np.abs(np.nan_to_num(shown) - weights) - weights.max(1, keepdims=True) / 255
    assert wrong.max() <= 1e-6


@pytest.mark.slow
def test_every_shown_weight_is_the_scenes_within_a_255th_of_its_rows_largest(tab, saved):
    scene = translation()
    url = saved(scene)
    for g, group in enumerate(scene.groups):
        for layer in (0, len(group.layers) - 1):
            tab.show(url, view="head", group=g, layer=layer, head=layer)
            (shown,) = tab.numbers()
            close(shown, group.layers[layer].head(layer), group.layers[layer].visible(layer))


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_heads_kept_as_queries_and_keys_are_shown_as_near(causal: bool, tab, saved):
    scene = known(300, 8, 2, causal=causal)
    url = saved(scene)
    for head in range(2):
        tab.show(url, view="head", head=head, show="matrix")
        layer = scene.groups[0].layers[0]
        close(tab.numbers()[0], layer.head(head), layer.visible(head))


def test_the_overview_shows_each_attention_with_its_own_depth(tab, saved):
    tab.show(saved(translation()))
    captions = tab.page.locator("table.grid caption").all_inner_texts()
    assert captions == [
        "Encoder, self-attention",
        "Decoder, self-attention",
        "Decoder, cross-attention",
    ]
    grids = tab.page.locator("table.grid").all()
    assert [grid.locator("a").count() for grid in grids] == [8, 12, 12]
    assert tab.page.locator("h1").inner_text() == " ".join(SOURCE)


def test_the_overview_takes_the_colour_of_the_chosen_statistic(tab, saved):
    tab.show(saved(translation()))
    pixels = "(i) => document.querySelectorAll('.tile canvas')[i].toDataURL()"
    plain = [tab.page.evaluate(pixels, i) for i in (8, 11)]
    tab.change(lambda: tab.page.get_by_label("Colour by").select_option("entropy"))
    assert "stat=entropy" in tab.page.url
    assert [tab.page.evaluate(pixels, i) for i in (8, 11)] != plain
    assert tab.page.locator(".tile .under").nth(11).inner_text() == "2.00"
    heard = tab.page.locator(".tile .heard").nth(9).inner_text()
    assert heard == "layer 0 head 1, previous, entropy (nats) 1.00"


def test_hidden_cells_have_a_colour_that_no_weight_has(tab, saved):
    weights = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    causal = np.tril(np.ones((2, 2), bool))
    layer = Matrices("a", weights, visible=causal)
    tab.show(saved(Scene("t", ["t"], [Group("g", "self", ["a", "b"], ["a", "b"], [layer])])))
    read = """() => {
      const canvas = document.querySelector('.tile canvas');
      const data = canvas.getContext('2d').getImageData(0, 0, 2, 2).data;
      return [0, 1, 2, 3].map((i) => data.slice(4 * i, 4 * i + 3).join());
    }"""
    full, hidden, nothing, again = tab.page.evaluate(read)
    assert full == again and len({full, hidden, nothing}) == 3


def test_a_token_that_is_hovered_shows_its_lines_and_numbers(tab, saved):
    scene = translation()
    tab.show(saved(scene), view="head", group=2, layer=1, head=3)
    weights = scene.groups[2].layers[1].head(3)
    query = tab.page.locator(".tokens.queries button").nth(2)
    query.hover()
    numbers = tab.page.locator(".tokens.keys .value").all_inner_texts()
    np.testing.assert_allclose([float(x) for x in numbers], weights[2], atol=1e-3 + 1 / 255)
    best = int(weights[2].argmax())
    table = tab.page.locator(".ranking tbody tr").first.inner_text()
    assert table.split("\t")[:2] == [str(best), SOURCE[best]]
    assert tab.page.locator(".details h2").inner_text() == f"{TARGET[2]} takes most from"
    tab.page.locator(".tokens.keys button").nth(best).hover()
    numbers = tab.page.locator(".tokens.queries .value").all_inner_texts()
    np.testing.assert_allclose([float(x) for x in numbers], weights[:, best], atol=1e-3 + 1 / 255)


def test_the_arithmetic_of_a_cell_gives_its_weight(tab, saved):
    scene = known(6, 4, 1, causal=True)
    parts, weights = scene.groups[0].layers[0].parts(0), scene.groups[0].layers[0].head(0)
    tab.show(saved(scene), view="head", row=4, column=2)
    text = tab.page.locator(".breakdown").inner_text()
    dot = float(parts.q[4] @ parts.k[2])
    assert f"q · k = Σ qᵢkᵢ = {dot:.3f}" in text
    last = re.search(r"softmax\s+.* = (\S+)\n", text)
    assert abs(float(last.group(1)) - weights[4, 2]) <= 0.002
    assert tab.page.locator(".bars rect").count() == 4
    out, rest = weights[4] @ parts.v, weights[4].copy()
    rest[2] = 0
    moved = np.linalg.norm(rest @ parts.v / rest.sum() - out) / np.linalg.norm(out)
    share = float(re.search(r"moves by ([\d.]+) %", text).group(1))
    assert abs(share - 100 * moved) <= 2 + 3 * moved


def test_the_matrix_is_walked_zoomed_and_kept_by_the_keyboard(tab, saved):
    scene = translation()
    tab.show(saved(scene), view="head", group=0)
    canvas = tab.page.locator("canvas.matrix")
    canvas.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        tab.page.keyboard.press(key)
    value = scene.groups[0].layers[0].head(0)[2, 1]
    spoken = tab.page.locator("#announcer").inner_text()
    assert spoken.startswith(f"{SOURCE[2]} → {SOURCE[1]}: ")
    assert abs(float(spoken.rsplit(" ", 1)[1]) - value) <= 0.001 + value / 255
    before = canvas.screenshot()
    tab.page.keyboard.press("+")
    assert canvas.screenshot() != before
    tab.page.keyboard.press("Enter")
    assert "row=2&column=1" in tab.page.url


def test_the_address_brings_everything_back_and_back_goes_back(tab, saved):
    url = saved(translation())
    tab.show(url)
    tab.change(lambda: tab.page.locator("table.grid").nth(1).locator("a").nth(6).click())
    assert {"view=head", "group=1", "layer=1", "head=2"} <= set(
        tab.page.url.split("#")[1].split("&")
    )
    again = tab.page.url
    tab.change(lambda: tab.page.go_back())
    assert tab.page.locator("table.grid").count() == 3
    tab.page.goto("about:blank")
    tab.page.goto(again)
    tab.page.wait_for_selector("body[data-ready]")
    assert tab.page.locator(".facts strong").inner_text().startswith("layer 1 head 2")


NONSENSE = [
    *("group=99&layer=-4&head=1e9", "view=nothing", "row=77&column=77&view=head"),
    "%%%&=&scene=x",
]


@pytest.mark.parametrize("state", NONSENSE)
def test_an_address_that_makes_no_sense_shows_the_nearest_thing(state: str, tab, saved):
    url = saved(translation())
    tab.page.goto(f"{url}#{state}")
    tab.page.wait_for_selector("body[data-ready]")
    assert tab.page.locator("main").inner_text()


def test_the_grid_is_one_stop_of_the_tab_key_and_arrows_walk_in_it(tab, saved):
    tab.show(saved(translation()))
    first = tab.page.locator("table.grid").first.locator("a").first
    first.focus()
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("ArrowRight")
    focused = tab.page.evaluate("document.activeElement.querySelector('.heard').textContent")
    assert focused == "layer 1 head 1"
    tab.change(lambda: tab.page.keyboard.press("Enter"))
    assert "layer=1&head=1" in tab.page.url


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_what_is_shown_is_saved_as_a_picture(kind: str, tab, saved):
    tab.show(saved(translation()), view="head", group=1)
    content = tab.saved(kind)
    if kind == "png":
        assert content.startswith(b"\x89PNG") and len(content) > 2000
    else:
        text = content.decode("utf-8")
        assert text.startswith("<svg") and all(f">{word}</text>" in text for word in TARGET)


@pytest.mark.slow
@pytest.mark.parametrize("view", ["overview", "head"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(view: str, theme: str, tab, saved):
    from axe_playwright_python.sync_playwright import Axe

    tab.show(saved(translation()), view=view, theme=theme, group=1, row=2, column=1, stat="entropy")
    found = Axe().run(tab.page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


def test_chinese_is_spoken_where_it_is_asked_for(tab, saved):
    tab.show(saved(translation()), lang="zh")
    assert tab.page.locator("html").get_attribute("lang") == "zh-CN"
    assert "解码器交叉注意力" in tab.page.locator("main").inner_text()
    assert not re.search(r"[a-z]{3}", tab.page.locator("nav").inner_text())


@pytest.mark.slow
def test_a_thousand_tokens_are_drawn(tab, saved):
    n = 1000
    causal = np.tril(np.ones((n, n), bool))
    weights = [shares((2, n, n), causal, i) for i in range(2)]
    tab.show(
        saved(scene_of([np.where(causal, w, np.nan) for w in weights], [f"w{i}" for i in range(n)]))
    )
    assert tab.page.locator(".tile canvas").count() == 4
    tab.change(lambda: tab.page.locator("table.grid a").nth(3).click())
    close(tab.numbers()[0], weights[1][1], causal)
