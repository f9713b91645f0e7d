"""Maps of numbers, rollout, and patches over an image: what is drawn is what was given."""

import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from everyhead.inspection.figures import save_figure
from everyhead.inspection.maps import rollout_figure, statistics_figure
from everyhead.inspection.overlay import patches_figure

pytestmark = pytest.mark.slow  # many models or pictures; `make test-fast` leaves them out


def drawn(figure) -> list[np.ndarray]:
    return [np.ma.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


def texts(figure) -> list[str]:
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [text.get_text() for text in axes.texts]
    return found


def test_a_map_shows_each_number_and_hatches_what_does_not_exist():
    figure = statistics_figure({"self": [[0.25, None, 0.0], [0.5, 1.0, 0.004]]}, title="shares")
    (array,) = drawn(figure)
    assert array.shape == (2, 3) and array.mask.tolist() == [[False, True, False], [False] * 3]
    assert array.compressed().tolist() == [0.25, 0.0, 0.5, 1.0, 0.004]
    assert {".25", "0", ".50", "1.0", "share on itself", "shares"} <= set(texts(figure))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1"]


def test_shares_have_one_scale_and_other_numbers_state_theirs():
    numbers = {"self": [[0.1, 0.2]], "entropy": [[1.5, 2.5]], "effect": [[-0.002, 0.004]]}
    figure = statistics_figure(numbers)
    norms = [axes.images[0].norm for axes in figure.axes]
    ends = [(norm.vmin, norm.vmax) for norm in norms]
    assert ends == [(0, 1), (0, 2.5), pytest.approx((-4, 4))]
    assert "entropy (nats)   0 … 2.5" in texts(figure)
    assert "loss without the head − loss   −4.0 … 4.0   × 10⁻³" in texts(figure)
    assert {"−2.0", "4.0"} <= set(texts(figure))
    middle = figure.axes[2].images[0].cmap(0.5)
    assert min(middle[:3]) > 0.97  # no effect is as white as paper


def test_names_stand_in_their_heads_cell():
    names = [["previous token", None], [None, "induction"]]
    figure = statistics_figure({"entropy": [[0.1, 2.0], [1.0, 0.5]]}, names=names)
    at = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    assert [round(x) for x in at["previous token"]] == [0, 0]
    assert [round(x) for x in at["induction"]] == [1, 1]
    with pytest.raises(ValueError, match="2 layers of 2 heads"):
        statistics_figure({"entropy": [[0.1, 2.0], [1.0, 0.5]]}, names=[["a"]])


def test_many_heads_thin_out_their_ticks_and_stay_inside():
    table = np.random.default_rng(0).random((48, 64)).tolist()
    figure = statistics_figure({"self": table, "entropy": table}, title="large")
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    assert figure.get_size_inches()[0] < 17
    for axes in figure.axes:
        assert 8 < len(axes.get_xticks()) < 64 and 8 < len(axes.get_yticks()) < 48
        boxes = [label.get_window_extent(renderer) for label in axes.get_yticklabels()]
        assert all(a.y0 >= b.y1 for a, b in pairwise(boxes))
        for label in (*axes.get_xticklabels(), axes.xaxis.label, axes.yaxis.label):
            box = label.get_window_extent(renderer)
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1


def test_tables_that_do_not_fit_are_refused():
    for numbers in ({}, {"a": [[1.0]], "b": [[1.0, 2.0]]}, {"a": [[1.0], [1.0, 2.0]]}, {"a": []}):
        with pytest.raises(ValueError):
            statistics_figure(numbers)


def test_rollout_is_drawn_from_white_to_its_largest_share():
    matrix = np.array([[0.5, 0.3, 0.2], [0.1, 0.7, 0.2]])
    figure = rollout_figure(matrix, ["a", "b"], ["x", "y", "السلام"])
    (array, *_), axes = drawn(figure), figure.axes[0]
    np.testing.assert_array_equal(array, matrix)
    assert axes.images[0].norm.vmax == 0.7
    assert [label.get_text() for label in axes.get_xticklabels()] == ["x", "y", "السلام"]
    with pytest.raises(ValueError, match=r"shape \(2, 3\); there are 2 queries and 2 keys"):
        rollout_figure(matrix, ["a", "b"], ["x", "y"])


def test_each_patch_is_tinted_by_its_weight():
    image = np.full((40, 60, 3), 128, dtype=np.uint8)
    weights = np.array([[0.4, 0.0, 0.3, 0.0, 0.0, 0.0, 0.3], [0.0, 0.6, 0.0, 0.0, 0.3, 0.1, 0.0]])
    figure = patches_figure(image, weights, (2, 3), query=5, title="patches")
    original, first, second = drawn(figure)
    np.testing.assert_allclose(original, 128 / 255)
    for picture, row in ((first, weights[0, 1:]), (second, weights[1, 1:])):
        blocks = picture.reshape(2, 20, 3, 20, 3)
        assert np.ptp(blocks, axis=(1, 3)).max() == 0  # one tint a patch, with hard edges
        red_less_blue = (blocks[:, 0, :, 0, 0] - blocks[:, 0, :, 0, 2]).ravel()
        order = np.argsort(row, kind="stable")
        assert (np.diff(red_less_blue[order])[np.diff(row[order]) > 0] > 0).all()
        np.testing.assert_allclose(red_less_blue[row == 0], 0, atol=1e-12)
    captions = texts(figure)
    assert "head 0 · 40% not on patches" in captions and "head 1 · 0% not on patches" in captions
    (frame,) = figure.axes[1].patches
    assert (frame.get_xy(), frame.get_width(), frame.get_height()) == ((39.5, 19.5), 20, 20)


def test_images_of_every_kind_and_what_is_none():
    for image in (np.zeros((8, 8)), np.ones((8, 8, 4)), np.zeros((9, 7, 3), dtype=np.uint8)):
        assert len(drawn(patches_figure(image, np.full((1, 4), 0.25), (2, 2)))) == 2
    row = np.full((1, 4), 0.25)
    for image in (np.zeros((8, 8, 2)), np.zeros(8), np.full((4, 4), np.nan)):
        with pytest.raises(ValueError, match="an image is"):
            patches_figure(image, row, (2, 2))
    with pytest.raises(ValueError, match="3 × 3 patches"):
        patches_figure(np.zeros((8, 8)), row, (3, 3))
    with pytest.raises(ValueError, match="no patch 4"):
        patches_figure(np.zeros((8, 8)), row, (2, 2), query=4)
    with pytest.raises(ValueError, match="2 captions"):
        patches_figure(np.zeros((8, 8)), row, (2, 2), captions=["a", "b"])


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_every_picture_can_be_saved(tmp_path: Path, suffix: str):
    figures = [
        statistics_figure({"self": [[0.5]]}, title="头 · رأس · 😀"),
        rollout_figure([[1.0]], ["المصرف"], ["银行"]),
        patches_figure(np.zeros((4, 4)), [[0.5, 0.5]], (1, 1), captions=["头"]),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph may be missing here
        for i, figure in enumerate(figures):
            assert save_figure(figure, tmp_path / f"{i}.{suffix}").stat().st_size > 1000
