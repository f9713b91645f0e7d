"""The learning curve: any number of points, honest smoothing, a whole file or none."""

import math
from pathlib import Path

import numpy as np
import pytest

from everyhead.errors import UserError
from everyhead.training.curves import learning_curve, points, smooth


def rows(n: int) -> list[dict]:
    train = [{"step": s, "kind": "train", "loss": 8 / s, "lr": 1e-3} for s in range(1, n + 1)]
    every = max(1, n // 3)
    validation = [
        {"step": s, "kind": "validation", "loss": 9 / s, "bleu": float(s)}
        for s in range(every, n + 1, every)
    ]
    return train + validation


@pytest.mark.parametrize("n", [0, 1, 2, 5, 300])
@pytest.mark.filterwarnings("error")
def test_any_number_of_points_makes_a_picture(tmp_path: Path, n: int):
    path = learning_curve(rows(n), tmp_path / "new" / "curve.png", dpi=50)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in path.parent.iterdir()] == ["curve.png"]


def test_points_are_sorted_finite_and_one_a_step():
    messy = [
        {"step": 3, "kind": "train", "loss": 3.0},
        {"step": 1, "kind": "train", "loss": 1.0},
        {"step": 3, "kind": "train", "loss": 4.0},
        {"step": 4, "kind": "train", "loss": math.nan},
        {"step": 5, "kind": "train", "loss": None},
        {"step": 6, "kind": "train"},
        {"step": 2, "kind": "validation", "loss": 9.0},
    ]
    steps, losses = points(messy, "train", "loss")
    assert steps.tolist() == [1, 3] and losses.tolist() == [1, 4]


@pytest.mark.filterwarnings("error")
def test_only_a_validation_row_is_enough(tmp_path: Path):
    learning_curve([{"step": 0, "kind": "validation", "loss": 2.0}], tmp_path / "a.svg")
    assert "svg" in (tmp_path / "a.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("n", [1, 9, 20, 200])
def test_smoothing_keeps_a_constant_and_the_length(n: int):
    np.testing.assert_allclose(smooth(np.full(n, 2.5)), np.full(n, 2.5))
    noise = np.random.default_rng(0).normal(size=n)
    assert len(smooth(noise)) == n and smooth(noise).std() <= noise.std()


def test_a_bad_path_is_a_sentence(tmp_path: Path):
    with pytest.raises(UserError, match=r"\.png, \.svg or \.pdf"):
        learning_curve([], tmp_path / "curve.jpeg")
    (tmp_path / "file").write_text("old", encoding="utf-8")
    with pytest.raises(UserError, match="Could not write"):
        learning_curve([], tmp_path / "file" / "curve.png")
