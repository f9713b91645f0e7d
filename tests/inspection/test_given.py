"""Matrices of a model's own taken back to rules: every entry as it was, whatever was recognised."""

import threading

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everyhead.inspection.given import Readings, RelativeBias, WholeBias, bias_of, given_of
from everyhead.layers.masks import Causal, Dense, Keys, Mask, Window


def entries(mask: Mask | None, like: torch.Tensor) -> torch.Tensor:
    rows = (mask or Mask()).rows(*like.shape[-2:], like.device)
    return rows.expand(*like.shape)


@st.composite
def matrices(draw):
    """Bands with hidden keys, and one entry turned now and then."""
    t, s = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    batch, offset = draw(st.integers(1, 3)), draw(st.integers(-3, 12))
    left, right = draw(st.integers(0, 45)), draw(st.integers(0, 45))
    i, j = torch.arange(t)[:, None], torch.arange(s)[None]
    seen = (j - i - offset >= -left) & (j - i - offset <= right)
    rng = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    real = torch.rand(batch, s, generator=rng) < draw(st.sampled_from([0.5, 0.9, 1.0]))
    matrix = seen & real[:, None, None]
    if draw(st.booleans()):
        matrix = matrix.clone()
        matrix[-1, 0, draw(st.integers(0, t - 1)), draw(st.integers(0, s - 1))] ^= True
    return matrix


@settings(max_examples=150, deadline=None)
@given(matrix=matrices(), additive=st.booleans())
def test_a_matrix_is_what_was_made_of_it(matrix: torch.Tensor, additive: bool):
    shown = matrix
    if additive:
        shown = torch.zeros(matrix.shape).masked_fill(~matrix, torch.finfo(torch.float32).min)
    found = given_of(shown)
    assert found.bias is None
    assert torch.equal(entries(found.mask, matrix), matrix)


def test_what_models_make_is_recognised_and_takes_no_matrix():
    n = 3000  # larger than what is looked at in one go
    i, j = torch.arange(n)[:, None], torch.arange(n)[None]
    real = torch.ones(1, n, dtype=torch.bool)
    real[0, :70] = False
    cases = {
        (Causal,): j <= i,
        (Causal, Keys): (j <= i) & real,
        (Window, Keys): (j <= i) & (i - j < 512) & real,
        (Window,): (j - i).abs() <= 64,
        (Keys,): real.expand(n, n),
        (): torch.ones(n, n, dtype=torch.bool),
    }
    for kinds, matrix in cases.items():
        mask = given_of(matrix[None, None]).mask or Mask()
        assert tuple(type(rule) for rule in mask.rules) == kinds
        assert torch.equal(entries(mask, matrix[None, None])[0, 0], matrix)


def test_what_no_rule_describes_is_kept_whole():
    matrix = torch.rand(1, 1, 12, 12, generator=torch.Generator().manual_seed(0)) < 0.5
    (rule,) = given_of(matrix).mask.rules
    assert isinstance(rule, Dense)
    assert torch.equal(rule.matrix, matrix)


def test_numbers_in_a_mask_are_a_bias_beside_it():
    slope = -0.5 * (torch.arange(6)[:, None] - torch.arange(6)).abs().float()
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    found = given_of(slope.masked_fill(hidden, -torch.inf)[None, None])
    assert torch.equal(entries(found.mask, hidden[None, None])[0, 0], ~hidden)
    assert torch.equal(found.bias[0, 0], slope.masked_fill(hidden, 0))


def test_a_bias_of_the_distance_is_one_row_and_another_is_a_matrix():
    rng = torch.Generator().manual_seed(0)
    values = torch.randn(1, 2, 5 + 7 - 1, generator=rng)
    index = 4 - torch.arange(5)[:, None] + torch.arange(7)
    relative = bias_of(values[..., index])
    assert isinstance(relative, RelativeBias)
    assert torch.equal(relative.values, values)
    assert torch.equal(relative.rows(torch.tensor([3, 0])), values[..., index[[3, 0]]])
    other = torch.randn(1, 2, 5, 7, generator=rng)
    whole = bias_of(other)
    assert isinstance(whole, WholeBias) and torch.equal(
        whole.rows(torch.tensor([4])), other[..., 4:, :]
    )
    assert bias_of(torch.zeros(1, 2, 5, 7)) is None and bias_of(None) is None


def test_a_mask_changed_in_place_is_read_again():
    readings, matrix = Readings(), torch.ones(1, 1, 4, 4, dtype=torch.bool)
    before = readings.of(matrix, given_of)
    assert readings.of(matrix, given_of) is before  # layers that share it are read once
    matrix[..., 0] = False
    assert torch.equal(entries(readings.of(matrix, given_of).mask, matrix), matrix)


def test_a_mask_of_inference_mode_changed_in_place_is_read_again():
    with torch.inference_mode():
        readings, matrix = Readings(), torch.ones(1, 1, 4, 4, dtype=torch.bool)
        before = readings.of(matrix, given_of)
        assert readings.of(matrix, given_of) is before
        assert readings.of(torch.ones_like(matrix), given_of) is not before
        matrix[..., 0] = False
        assert torch.equal(entries(readings.of(matrix, given_of).mask, matrix), matrix)


def test_what_is_kept_of_a_mask_or_a_bias_is_a_copy():
    rng = torch.Generator().manual_seed(0)
    scattered = torch.rand(1, 1, 12, 12, generator=rng) < 0.5
    keys = torch.tensor([[True, True, False]])
    biased = torch.randn(1, 2, 5, 7, generator=rng)
    wanted, real, added = scattered.clone(), keys.clone(), biased.clone()
    dense, padding, whole = given_of(scattered).mask, given_of(keys).mask, bias_of(biased)
    scattered.logical_not_(), keys.logical_not_(), biased.zero_()
    assert torch.equal(entries(dense, wanted), wanted)
    assert torch.equal(padding.rows(1, 3, keys.device).expand(1, 1, 1, 3)[:, 0, 0], real)
    assert isinstance(whole, WholeBias) and torch.equal(whole.rows(torch.arange(5)), added)


def test_another_thread_may_read_a_mask_while_one_is_read():
    readings, other = Readings(), torch.ones(1, 1, 2, 2, dtype=torch.bool)

    def meanwhile():  # called while what is known is gone through
        del readings._known[0, "known"]
        thread = threading.Thread(target=lambda: readings.of(other, given_of))
        thread.start()
        thread.join()
        return other

    readings._known[0, "known"] = (meanwhile, 0, None)
    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()
    assert torch.equal(entries(readings.of(mask, given_of).mask, mask), mask)
