"""Pictures of attention: any shape, any script, no global state, whole files."""

import unicodedata
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyhead.errors import UserError
from everyhead.inspection import fonts
from everyhead.inspection.figures import attention_figure, attention_grid, save_figure
from everyhead.inspection.layout import plain

pytestmark = pytest.mark.slow  # many models or pictures; `make test-fast` leaves them out

ENGLISH = ["On", " the", " way", " home", ",", " I", " bought", " bread", ".", "</s>"]
CHINESE = ["回家", "的", "路上", "，", "我", "买", "了", "面包", "。", "</s>"]


def uniform(*shape: int) -> np.ndarray:
    return np.full(shape, 1 / shape[-1])


def shown(figure) -> list[str]:
    """Every text that the figure draws."""
    texts = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        texts += [text.get_text() for text in axes.texts]
        texts += [t.get_text() for t in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    return texts


@pytest.fixture
def one_warning():
    """Lets the warning that comes once come again."""
    fonts._warn_once.cache_clear()
    yield
    fonts._warn_once.cache_clear()


@pytest.mark.parametrize(
    ("h", "t", "s"), [(1, 1, 1), (3, 1, 20), (2, 20, 1), (5, 3, 4), (1, 60, 60)]
)
def test_any_shape_can_be_drawn(tmp_path: Path, h: int, t: int, s: int):
    queries, keys = [f"q{i}" for i in range(t)], [f"k{i}" for i in range(s)]
    figure = attention_figure(uniform(h, t, s), queries, keys, title="shapes")
    path = save_figure(figure, tmp_path / "a.png", dpi=60)
    assert path.read_bytes().startswith(b"\x89PNG")
    heads = [text for text in shown(figure) if text.startswith("head ")]
    assert heads == [f"head {i}" for i in range(h)]


def test_queries_on_y_keys_on_x_with_visible_spaces():
    figure = attention_figure(uniform(1, 2, 3), ["我", "买"], ["On", " the", "\n"])
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["我", "买"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["On", "␣the", "↵"]
    assert {"queries", "keys"} <= set(shown(figure))
    assert axes.images[0].get_array().shape == (2, 3)


def test_a_grid_has_a_row_for_a_layer_and_one_scale():
    layers = [(f"decoder.{i}.cross_attn", uniform(4, 10, 10)) for i in range(2)]
    figure = attention_grid(layers, CHINESE, ENGLISH)
    panels = [axes for axes in figure.axes if axes.images]
    assert len(panels) == 8
    assert {axes.images[0].norm.vmax for axes in panels} == {1.0}
    assert len({round(axes.get_position().y0, 4) for axes in panels}) == 2
    assert {"decoder.0.cross_attn", "decoder.1.cross_attn"} <= set(shown(figure))


def test_one_small_head_shows_its_numbers_and_its_own_name():
    weights = np.array([[[0.25, 0.75], [0.0, 1.0]]])
    figure = attention_figure(weights, ["a", "b"], ["c", "d"], heads=[7])
    texts = shown(figure)
    assert {".25", ".75", "0", "1", "head 7"} <= set(texts)


def test_masked_places_are_not_zeros():
    weights = np.array([[[1.0, np.nan], [1.0, 0.0]]])
    hidden = attention_figure(weights, ["a", "b"], ["a", "b"]).axes[0].images[0].get_array()
    assert hidden.mask.tolist() == [[False, True], [False, False]]
    masked = np.ma.masked_invalid(weights)
    hidden = attention_figure(masked, ["a", "b"], ["a", "b"]).axes[0].images[0].get_array()
    assert hidden.mask.tolist() == [[False, True], [False, False]]


def test_labels_thin_out_where_there_is_no_room():
    n = 200
    words = [f"word{i}" for i in range(n)]
    axes = attention_figure(uniform(4, n, n), words, words).axes[0]
    ticks = axes.get_yticks()
    assert 20 < len(ticks) < n and ticks[0] == 0
    assert [text.get_text() for text in axes.get_yticklabels()][1] == f"word{ticks[1]:.0f}"


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "heads", "n"), [(1, 1, 900), (6, 12, 128), (2, 12, 512)])
def test_a_long_text_makes_no_larger_picture_than_memory_holds(layers: int, heads: int, n: int):
    words = [f"word{i}" for i in range(n)]
    band = np.tril(np.triu(np.ones((n, n)), -3))
    weights = np.broadcast_to(band / band.sum(-1, keepdims=True), (heads, n, n))
    figure = attention_grid([(f"layer {i}", weights) for i in range(layers)], words, words)
    width, height = figure.get_size_inches()
    assert width < 26 and height < 26
    axes = figure.axes[0]
    assert 1 < len(axes.get_yticks()) < n / 2
    cell = axes.get_window_extent().width / figure.dpi / n  # inches
    assert axes.images[0].get_interpolation() == ("auto" if cell < 0.02 else "nearest")


def test_labels_stay_inside_the_figure():
    keys = ["internationalisation"] * 4
    figure = attention_figure(uniform(1, 1, 4), ["a"], keys, title="x" * 500)
    renderer = figure.canvas.get_renderer()
    for label in [*figure.axes[0].get_xticklabels(), *figure.texts]:
        box = label.get_window_extent(renderer)
        assert box.x0 >= 0 and box.y0 >= 0, label.get_text()
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, label.get_text()


def test_dollar_signs_are_no_formulas(tmp_path: Path):
    labels = ["$x", "$\\frac{1$", "_a^", "100%$"]
    figure = attention_figure(uniform(1, 4, 4), labels, labels, title="$\\bad{$")
    save_figure(figure, tmp_path / "a.png", dpi=50)
    assert "$\\bad{$" in shown(figure)


def test_chinese_labels_are_drawn_with_a_font_that_has_them(tmp_path: Path):
    choice = fonts.choose_fonts(CHINESE)
    if choice.missing:
        pytest.skip("no font with Chinese glyphs is installed (Debian: fonts-wqy-microhei)")
    assert choice.families[0] == "DejaVu Sans" and len(choice.families) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns about every glyph it lacks
        figure = attention_figure(uniform(1, 10, 10), CHINESE, ENGLISH, title="回家的路上")
        save_figure(figure, tmp_path / "a.png", dpi=60)
    assert set(CHINESE) <= set(shown(figure))


@pytest.mark.usefixtures("one_warning")
def test_without_glyphs_labels_are_numbers_and_one_warning_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fonts, "_entries", lambda wanted: [])
    monkeypatch.setattr(fonts, "_add_new_fonts", lambda: False)
    fonts._choose.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                figure = attention_figure(uniform(1, 2, 1), ["的", "ok"], ["a"], title="我 = I")
                save_figure(figure, tmp_path / "a.png", dpi=50)
        messages = [str(warning.message) for warning in caught]
        assert len(messages) == 1 and "Install" in messages[0] and "CJK" in messages[0]
        assert {"[0]", "ok", "? = I"} <= set(shown(figure))
    finally:
        fonts._choose.cache_clear()


def test_a_character_that_no_font_has_is_missing():
    unassigned = "\u0378"
    assert unicodedata.category(unassigned)[0] == "C"  # asks for no glyph
    assert not fonts.choose_fonts([unassigned]).missing
    assert fonts.choose_fonts(["\U0001e04f"]).families[0] == "DejaVu Sans"


ARABIC, HEBREW = "السلام", "שלום"


def ink(text: str, **more: object) -> np.ndarray:
    """The columns of a label as drawn: how dark each is."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 1), dpi=100)
    canvas = FigureCanvasAgg(figure)
    figure.text(0.1, 0.3, text, size=30, **plain(text), **more)
    canvas.draw()
    pixels = 255 - np.asarray(canvas.buffer_rgba())[..., :3].min(-1).astype(int)
    columns = pixels.sum(0)
    used = np.flatnonzero(columns)
    return columns[used[0] : used[-1] + 1]


def test_right_to_left_letters_stand_in_their_order_and_join():
    letters = [ink(letter) for letter in HEBREW]
    word = ink(HEBREW)
    # The first letter stands at the right end, the last one at the left.
    last, first = letters[-1], letters[0]
    assert np.abs(word[-len(first) :] - first).sum() < 0.25 * first.sum()
    assert np.abs(word[: len(last)] - last).sum() < 0.25 * last.sum()
    # Joined Arabic is one stroke; with what forbids joining between its letters it is several.
    joined, apart = "بحث", "\u200c".join("بحث")
    assert (ink(joined) > 0).all() and not (ink(apart) > 0).all()


def test_a_text_of_two_directions_turns_only_what_runs_from_the_right():
    mixed, plain_part = ink(f"ab {HEBREW}"), ink("ab")
    assert np.abs(mixed[: len(plain_part)] - plain_part).sum() < 0.05 * plain_part.sum()
    tail = ink(HEBREW)
    assert np.abs(mixed[-len(tail) :] - tail).sum() < 0.25 * tail.sum()


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("", "∅"),
        ("\u0301", "\u25cc\u0301"),
        ("\u202eabc\u202c", r"\u202eabc\u202c"),
        ("\ud800", r"\ud800"),
        ("\ue000", r"\ue000"),
        ("\x1b[0m", r"\x1b[0m"),
        ("</script>", "</script>"),
        ("<s>", "<s>"),
        ("\"'&`", "\"'&`"),
        ("x" * 300, "x" * 17 + "…"),
        ("ab" * 8 + "e\u0301e\u0301", "ab" * 8 + "…"),
        (ARABIC, ARABIC),
    ],
)
def test_every_token_is_shown_as_it_is(tmp_path: Path, text: str, label: str):
    assert fonts.visible(text) == label
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an emoji may have no glyph here
        figure = attention_figure(uniform(1, 2, 2), [text, "👩‍👩‍👧"], [text, "头"], title=text)
        for suffix in ("png", "svg", "pdf"):
            save_figure(figure, tmp_path / f"a.{suffix}", dpi=50)
    assert label in shown(figure)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_a_label_is_one_short_visible_line(text: str):
    label = fonts.visible(text)
    assert len(label) <= 18 and "\n" not in label and "\r" not in label
    assert label.strip() == label or not text.isprintable()


@settings(max_examples=10, deadline=None)
@given(st.lists(st.text(st.characters(), max_size=6), min_size=1, max_size=4))
def test_any_text_can_be_a_label(texts: list[str]):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure = attention_figure(uniform(1, len(texts), 1), texts, ["k"])
        figure.canvas.draw()


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_same_picture_is_the_same_file(tmp_path: Path, suffix: str):
    for name in "ab":
        figure = attention_figure(uniform(1, 2, 2), CHINESE[:2], ENGLISH[:2])
        save_figure(figure, tmp_path / f"{name}.{suffix}")
    first, second = sorted(tmp_path.iterdir())  # and no partial file is left
    if suffix != "svg":  # whose ids are random
        assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size > 1000


def test_pyplot_is_not_touched(tmp_path: Path):
    before = dict(matplotlib.rcParams)
    save_figure(attention_figure(uniform(1, 2, 2), ["a", "b"], ["c", "d"]), tmp_path / "a.png")
    assert dict(matplotlib.rcParams) == before
    pyplot = __import__("sys").modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"weights has shape \(1, 2, 3\).*2 queries and 2 keys"):
        attention_figure(uniform(1, 2, 3), ["a", "b"], ["c", "d"])
    with pytest.raises(ValueError, match="none of them may be 0"):
        attention_figure(np.zeros((1, 0, 1)), [], ["c"])
    with pytest.raises(ValueError, match="heads names 2 heads"):
        attention_figure(uniform(1, 1, 1), ["a"], ["c"], heads=[1, 2])
    with pytest.raises(ValueError, match="no layer"):
        attention_grid([], ["a"], ["c"])


def test_a_bad_path_is_a_sentence_and_leaves_the_old_picture(tmp_path: Path):
    figure = attention_figure(uniform(1, 1, 1), ["a"], ["c"])
    with pytest.raises(UserError, match=r"\.png, \.svg or \.pdf"):
        save_figure(figure, tmp_path / "a.bmp")
    (tmp_path / "file").write_text("old", encoding="utf-8")
    with pytest.raises(UserError, match="Could not write"):
        save_figure(figure, tmp_path / "file" / "a.png")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
