"""Compare in Chromium: one scale, combined heads, filters; the walk; and the live page."""

import json
import re

import numpy as np
import pytest

from everyhead.explorer.scene import Group, Matrices, Scene
from everyhead.inspection.rollout import rollout
from tests.explorer import models
from tests.explorer.conftest import Served, shares, translation
from tests.explorer.test_browser import known

pytestmark = pytest.mark.slow  # many models or pictures; `make test-fast` leaves them out

WORDS = ["[CLS]", "a", "b", "[SEP]", "c", "d", "[SEP]"]
SPECIAL = [True, False, False, True, False, False, True]
SENTENCES = [0, 0, 0, 0, 1, 1, 1]


def pair() -> Scene:
    layers = [Matrices(f"encoder.{i}", shares((3, 7, 7), seed=i)) for i in range(3)]
    marks = {"special": (SPECIAL, SPECIAL), "segments": (SENTENCES, SENTENCES)}
    return Scene("a b", ["a b"], [Group("encoder", "self", WORDS, WORDS, layers, **marks)])


def heads(scene: Scene, layer: int) -> np.ndarray:
    return np.stack([scene.groups[0].layers[layer].head(h) for h in range(3)]).astype(float)


def shown(tab, url: str, **state) -> list[np.ndarray]:
    tab.show(url, view="compare", **state)
    return tab.numbers()


@pytest.mark.slow
def test_heads_are_combined_by_mean_maximum_and_rollout(tab, saved):
    scene = pair()
    url = saved(scene)
    first, second = shown(tab, url, a="0.0.0.1", b="0.0.2.2")
    np.testing.assert_allclose(first, heads(scene, 0)[1], atol=1 / 255)
    np.testing.assert_allclose(second, heads(scene, 2)[2], atol=1 / 255)
    mean, _ = shown(tab, url, a="0.0.1.0", b="0.0.0.0", mix="mean", heads="0,2")
    np.testing.assert_allclose(mean, heads(scene, 1)[[0, 2]].mean(0), atol=1 / 255)
    most, _ = shown(tab, url, a="0.0.1.0", b="0.0.0.0", mix="max")
    np.testing.assert_allclose(most, heads(scene, 1).max(0), atol=1 / 255)
    rolled, once = shown(tab, url, a="0.0.2.0", b="0.0.0.0", mix="rollout")
    layers = [heads(scene, i) for i in range(3)]
    np.testing.assert_allclose(rolled, rollout(layers).numpy(), atol=0.01)
    np.testing.assert_allclose(once, rollout(layers[:1]).numpy(), atol=0.01)


def test_special_tokens_are_hidden_and_the_rest_shared_anew(tab, saved):
    scene = pair()
    words = [i for i, special in enumerate(SPECIAL) if not special]
    found, _ = shown(tab, saved(scene), a="0.0.0.0", b="0.0.1.0", special=0)
    wanted = heads(scene, 0)[0][np.ix_(words, words)]
    np.testing.assert_allclose(found, wanted / wanted.sum(1, keepdims=True), atol=0.02)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-4)


@pytest.mark.parametrize(("start", "end"), [("0", "1"), ("1", "0"), ("1", "all")])
def test_from_one_sentence_to_the_other(start: str, end: str, tab, saved):
    scene = pair()
    state = {"from": start, "to": end}
    found, _ = shown(tab, saved(scene), a="0.0.0.0", b="0.0.1.0", **state)
    rows = [i for i, part in enumerate(SENTENCES) if str(part) == start]
    columns = [i for i, part in enumerate(SENTENCES) if end in ("all", str(part))]
    np.testing.assert_allclose(found, heads(scene, 0)[0][np.ix_(rows, columns)], atol=1 / 255)


def test_two_texts_stand_side_by_side_on_one_scale(tab, saved):
    other = translation()
    tab.show(saved(pair(), other), view="compare")
    titles = tab.page.locator(".matrixcard h2").all_inner_texts()
    assert titles == ["a b", "a translation"]
    told = tab.page.locator("main").inner_text()
    peak = float(re.search(r"darkest colour is (\d\.\d+)", told).group(1))
    most = max(heads(pair(), 0)[0].max(), other.groups[0].layers[0].head(0).max())
    assert abs(peak - most) <= 0.002
    first = tab.page.locator(".pair .bar").first.get_by_label("Layer")
    tab.change(lambda: first.select_option("2"))
    assert "a=0.0.2.0" in tab.page.url


@pytest.mark.slow
def test_the_walk_has_the_models_own_numbers(tab, saved):
    scene = known(6, 4, 2, causal=True)
    states = {"decoder": [[[float(i + t), 1.0, 2.0, 3.0, 4.0] for t in range(6)] for i in range(2)]}
    walked = Scene(
        "known",
        ["known"],
        scene.groups,
        walk={"width": 8, "states": states},
        output={"next": [["x", 0.5]]},
    )
    url = saved(walked)
    layer = scene.groups[0].layers[0]
    tab.show(url, view="walk", head=1, row=3)
    steps = tab.page.locator(".dots button").count()
    assert steps == 10
    texts = []
    for _ in range(steps - 1):
        texts.append(tab.page.locator(".walkcard").inner_text())
        tab.change(lambda: tab.page.locator("#walk-on").click())
    texts.append(tab.page.locator(".walkcard").inner_text())
    q = layer.parts(1).q[3]
    assert all(f"{x:.2f}" in texts[1] for x in q)
    assert "2 of 6 words may not be looked at" in texts[3]
    assert f"{layer.head(1)[3].max():.3f}" in texts[4]
    mixed = layer.head(1)[3] @ layer.parts(1).v
    numbers = [float(x) for x in re.findall(r"-?\d+\.\d\d", texts[5])]
    np.testing.assert_allclose(numbers, mixed, atol=0.02)
    assert "x 0.500" in texts[9]


@pytest.mark.slow
@pytest.mark.parametrize(
    "state", ["view=compare&mix=mean", "view=walk&step=4", "view=walk&lang=zh"]
)
def test_axe_finds_nothing_there_either(state: str, tab, saved):
    from axe_playwright_python.sync_playwright import Axe

    scene = known(6, 4, 2, causal=True)
    states = {"decoder": [[[1.0, 1.0, 2.0, 3.0, 4.0]] * 6] * 2}
    walked = Scene("k", ["k"], scene.groups, walk={"width": 8, "states": states})
    tab.page.goto(f"{saved(walked)}#{state}")
    tab.page.wait_for_selector("body[data-ready]")
    found = Axe().run(tab.page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


@pytest.fixture(params=["gpt2", "t5"])
def served(request, tmp_path):
    from everyhead.explorer.readers import reader
    from everyhead.explorer.sessions import Asked
    from everyhead.weights.foreign import open_foreign

    model = models.gpt2(2048) if request.param == "gpt2" else models.t5()
    folder = models.saved(model, tmp_path / "model", ended=request.param == "t5")
    session = reader(open_foreign(folder))
    running = Served(session, [session.scene(Asked("the bank of the river"))])
    yield f"http://127.0.0.1:{running.port}/", session
    running.stop()


@pytest.mark.slow
def test_the_live_page_types_masks_switches_and_steps(served, online):
    from axe_playwright_python.sync_playwright import Axe

    url, session = served
    tab = online.show(url, view="live")
    page = tab.page
    page.wait_for_selector(".words")
    tab.change(lambda: page.locator("#live-text").fill("the cat sat"))
    assert page.locator("h1").inner_text() == "the cat sat"
    rows = page.locator(".pills .pill").all_inner_texts()
    tab.change(lambda: page.locator("#hide-1").click())
    assert page.locator("#hide-1").get_attribute("aria-pressed") == "true"
    assert "How far the last state" in page.locator("main").inner_text()
    tab.change(lambda: page.locator(".switch").first.click())
    assert page.locator(".switch").first.get_attribute("aria-pressed") == "true"
    page.wait_for_selector(".words th:nth-child(4)")
    tab.change(lambda: page.locator("#live-undo").click())
    page.wait_for_selector("#step-greedy")
    from everyhead.explorer.sessions import Asked

    best = int(session.next_words(Asked("the cat sat")).logits.argmax())
    tab.change(lambda: page.locator("#step-greedy").click())
    shown = page.locator(".tokens.queries li").count()
    assert shown == (1 if session.model.config.is_encoder_decoder else len(rows) + 1)
    page.wait_for_selector("#step-back")
    page.locator("#sampler-top_k").fill("2")
    page.locator("#sampler-top_k").press("Tab")
    page.wait_for_selector("text=2 of")
    following = session.next_words(Asked("the cat sat", tail=(best,))).logits.argmax()
    with page.expect_request(lambda request: "/api/scene" in request.url) as sent:
        page.locator("#take-0").click()
    assert json.loads(sent.value.post_data)["tail"] == [best, int(following)]
    found = Axe().run(page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


@pytest.mark.slow
def test_a_text_too_long_to_run_says_so_on_the_page(served, online):
    url, session = served
    if session.longest is None:
        return
    tab = online.show(url, view="live")
    tab.change(lambda: tab.page.locator("#live-text").fill("river bank " * 3000))
    assert "look at a shorter one" in tab.page.locator(".error").first.inner_text()
