"""Tokens are shown as they are: in the page's text, never as markup, whatever they are made of."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everyhead.explorer.scene import scene_of
from tests.explorer.conftest import shares

pytestmark = pytest.mark.slow  # many models or pictures; `make test-fast` leaves them out

ODD = [
    *("<s>", "</script>", "<script>document.title='x'</script>", "<img src=x onerror=alert(1)>"),
    *('"', "'", "&", "&amp;", "`", "${1}", "<!--", "-->", "]]>", "\\", "\\u003c", "</style>"),
    *(
        "👩‍👩‍👧‍👦",
        "🏳️‍🌈",
        "河边",
        "مرحبا",
        "שלום",
        "e\u0301\u0323\u0302",
        "क्षि",
        "x" * 300,
        "",
        " ",
        "\n",
        "\t",
    ),
    *("\u202eabc", "\ufeff", "\x00", "\x1b[31m", "\ud800", "\u2028", "constructor", "__proto__"),
]


def shown(tab, url: str) -> list[str]:
    tab.show(url, view="head")
    read = "() => [...document.querySelectorAll('.tokens.keys bdi')].map((x) => x.textContent)"
    return tab.page.evaluate(read)


def element_names(tab) -> list[str]:
    read = "() => [...document.querySelectorAll('#app *')].map((x) => x.localName)"
    return sorted(set(tab.page.evaluate(read)))


@pytest.mark.slow
def test_every_odd_token_is_shown_as_it_is_and_makes_no_element(tab, saved):
    n = len(ODD)
    weights = shares((2, n, n))
    assert shown(tab, saved(scene_of(weights, ["a"] * n))) == ["a"] * n
    plain = element_names(tab)
    assert shown(tab, saved(scene_of(weights, ODD, title="</title><b>"))) == ODD
    assert element_names(tab) == plain
    assert tab.page.title() == "everyhead"
    assert tab.page.evaluate("document.scripts.length") == tab.page.locator("script").count()
    for view in ("overview", "compare"):
        tab.show(tab.page.url.split("#")[0], view=view)
    tab.show(tab.page.url.split("#")[0], view="head")
    for i in range(n):
        tab.page.locator(".tokens.queries button").nth(i).focus()
        told = tab.page.evaluate("() => document.querySelector('.details h2 bdi').textContent")
        assert told == ODD[i]
    attributes = """() => [...document.querySelectorAll('#app *')].flatMap(
      (x) => [...x.attributes].map((a) => a.value))"""
    words = [odd for odd in ODD if len(odd) > 3 and odd != "\\u003c"]
    assert not [v for v in tab.page.evaluate(attributes) for odd in words if odd in v]


@pytest.mark.parametrize("kind", ["png", "svg", "json"])
def test_odd_tokens_are_saved(kind: str, tab, saved):
    n = len(ODD)
    tab.show(saved(scene_of(shares((1, n, n)), ODD)), view="head")
    content = tab.saved(kind)
    if kind == "svg":
        import xml.etree.ElementTree as ET

        texts = [
            each.text for each in ET.fromstring(content).iter("{http://www.w3.org/2000/svg}text")
        ]
        assert (
            "</script>" in texts
            and "مرحبا" in texts
            and "\x00" not in "".join(t or "" for t in texts)
        )
    elif kind == "json":
        assert len(tab.numbers()[0]) == n
    else:
        assert content.startswith(b"\x89PNG")


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.text(max_size=40), min_size=1, max_size=30))
def test_any_tokens_are_shown_as_they_are(chromium, tmp_path_factory, tokens: list[str]):
    from everyhead.explorer.page import write
    from tests.explorer.conftest import Tab

    tab = fuzz_tab(chromium, Tab)
    n = len(tokens)
    path = tmp_path_factory.mktemp("fuzz") / "page.html"
    url = write(scene_of(shares((1, n, n)), tokens), path).as_uri()
    assert shown(tab, url) == tokens
    assert tab.complaints == []
    assert tab.page.title() == "everyhead" and tab.page.url.startswith("file:")


KEPT: dict[str, object] = {}


def fuzz_tab(chromium, make):
    """One tab for all examples: opening a context costs more than the page."""
    if "tab" not in KEPT:
        KEPT["tab"] = make(chromium.new_context(offline=True, locale="en").new_page())
    return KEPT["tab"]
