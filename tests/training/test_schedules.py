"""Both learning rates against their formulas, under their own names."""

import math

import pytest

from everyhead import reference
from everyhead.training.schedules import cosine, inverse_square_root


@pytest.mark.parametrize("step", [1, 2, 3999, 4000, 4001, 100_000])
def test_inverse_square_root_is_the_papers_formula(step: int):
    expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    assert inverse_square_root(step, d_model=512, warmup=4000) == pytest.approx(expected)
    assert reference.inverse_square_root(step, d_model=512) == pytest.approx(expected)
    assert inverse_square_root(step, d_model=512, warmup=4000, factor=2) == pytest.approx(
        2 * expected
    )


def test_inverse_square_root_is_highest_at_the_end_of_the_warm_up():
    rates = [inverse_square_root(step, d_model=64, warmup=10) for step in range(1, 40)]
    assert max(rates) == rates[9] == pytest.approx(64**-0.5 * 10**-0.5)


def test_cosine_goes_up_in_a_line_then_down_to_the_low_end_and_stays():
    rates = [cosine(step, peak=2.0, warmup=4, total=12, low=0.5) for step in range(1, 15)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[7] == pytest.approx((2.0 + 0.5) / 2)
    assert rates[11:] == [0.5, 0.5, 0.5]
    assert rates[3:12] == sorted(set(rates[3:12]), reverse=True)
    for step in range(5, 13):
        t = (step - 4) / 8
        assert rates[step - 1] == pytest.approx(0.5 + 1.5 * (1 + math.cos(math.pi * t)) / 2)


@pytest.mark.parametrize("step", [1, 5, 10, 11, 50, 100, 101, 500])
def test_cosine_is_the_references(step: int):
    settings = {"peak": 1e-3, "warmup": 10, "total": 100, "low": 1e-5}
    assert cosine(step, **settings) == pytest.approx(reference.cosine(step, **settings))


def test_without_warm_up_the_first_step_is_already_high():
    assert cosine(1, peak=1.0, warmup=0, total=1000) == pytest.approx(1.0, abs=1e-5)
    assert inverse_square_root(4, d_model=1, warmup=0) == 0.5


def test_a_warm_up_as_long_as_the_run_divides_by_nothing():
    assert cosine(5, peak=1.0, warmup=5, total=5) == 1.0
    assert cosine(6, peak=1.0, warmup=5, total=5) == 0.0
    assert cosine(3, peak=1.0, warmup=10, total=5) == pytest.approx(0.3)


@pytest.mark.parametrize("step", [0, -1])
def test_steps_count_from_one(step: int):
    with pytest.raises(ValueError, match="count from 1"):
        inverse_square_root(step, d_model=64, warmup=10)
    with pytest.raises(ValueError, match="count from 1"):
        cosine(step, peak=1.0, warmup=10, total=100)
