"""Rotary angles: the equation in NumPy's float64, and transformers' tables for longer texts."""

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from everyhead.layers.rotary import Rotary, rotated
from everyhead.layers.rotary_scaling import NTK, Linear, Llama3, Scaling, Yarn

BASE, D_HEAD, LONGEST = 500_000.0, 64, 131_072
CASES: dict[str, tuple[Scaling, dict[str, object]]] = {
    "linear": (Linear(4.0), {"rope_type": "linear", "factor": 4.0}),
    "yarn": (
        Yarn(8.0, 4096),
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096},
    ),
    "yarn-own": (
        Yarn(40.0, 2048, beta_fast=16.0, beta_slow=2.0, attention=1.5, truncate=False),
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 2048,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 1.5,
            "truncate": False,
        },
    ),
    "yarn-shorter": (
        Yarn(0.5, 4096),
        {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 4096},
    ),
    "llama3": (
        Llama3(32.0, 8192, 1.0, 4.0),
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    ),
}


def their_table(told: dict[str, object], seq_len: int | None = None) -> tuple[torch.Tensor, float]:
    config = LlamaConfig(
        hidden_size=4 * D_HEAD,
        num_attention_heads=4,
        max_position_embeddings=4096,
        rope_parameters={"rope_theta": BASE, **told},
    )
    return ROPE_INIT_FUNCTIONS[told["rope_type"]](config, torch.device("cpu"), seq_len=seq_len)


@pytest.mark.parametrize("case", CASES)
def test_frequencies_are_those_of_published_models(case: str) -> None:
    scaling, told = CASES[case]
    frequencies, factor = their_table(told)
    rotary = Rotary(D_HEAD, base=BASE, scaling=scaling)
    torch.testing.assert_close(rotary.theta, frequencies, rtol=1e-6, atol=0)
    assert rotary.attention_factor == pytest.approx(factor, rel=1e-12)
    rotation = rotary(torch.tensor([[0, 1, 4095, LONGEST - 1]]))
    torch.testing.assert_close(rotation.cos[0, 0, 0], torch.full((D_HEAD,), factor))


@pytest.mark.parametrize("length", [4096, 8192, LONGEST])
def test_ntk_is_the_dynamic_rule_at_one_length(length: int) -> None:
    """The dynamic rule's base at a length is the static rule's with the factor it works out."""
    frequencies, _ = their_table({"rope_type": "dynamic", "factor": 2.0}, seq_len=length)
    rule = NTK(2.0 * length / 4096 - 1.0)
    torch.testing.assert_close(rule.frequencies(D_HEAD, BASE), frequencies, rtol=1e-6, atol=0)
    plain = Rotary(D_HEAD, base=rule.base(D_HEAD, BASE))
    torch.testing.assert_close(plain.theta, frequencies, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_are_right_up_to_the_longest_published_ones(dtype: torch.dtype) -> None:
    """θ has float32's rounding, 2^-24 of it, so an angle is off by that share of itself."""
    rotary = Rotary(D_HEAD, base=BASE).to(dtype)
    positions = torch.tensor([[0, 1, 2, 769, 4095, 4096, 65_537, LONGEST - 2, LONGEST - 1]])
    rotation = rotary(positions)
    theta = BASE ** (-np.arange(0, D_HEAD, 2, dtype=np.float64) / D_HEAD)
    angle = positions[0].numpy().astype(np.float64)[:, None] * np.concatenate([theta, theta])
    allowed = 3 * 2.0**-24 * (1 + angle)
    assert (np.abs(rotation.cos[0, 0].double().numpy() - np.cos(angle)) <= allowed).all()
    assert (np.abs(rotation.sin[0, 0].double().numpy() - np.sin(angle)) <= allowed).all()
    assert rotation.cos.dtype == torch.float32
    every = rotary(torch.arange(LONGEST)[None])
    fastest = torch.stack([every.cos[0, 0, :, 0], every.sin[0, 0, :, 0]], 1)
    assert len(torch.unique(fastest, dim=0)) > 0.9 * LONGEST


def test_products_depend_on_the_distance_alone() -> None:
    """2104.09864 section 3.4.1; a naive loop turns each pair by its own 2 × 2 matrix."""
    rng = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=rng, dtype=torch.float64)
    rotary = Rotary(8)

    def score(i: int, j: int) -> float:
        turned = (rotated(x, rotary(torch.tensor([[place]]))) for x, place in ((q, i), (k, j)))
        return float((next(turned) * next(turned)).sum())

    assert score(7, 3) == pytest.approx(score(104, 100), abs=1e-5)
    assert abs(score(7, 3) - score(7, 4)) > 1e-3
    expected = torch.empty(8, dtype=torch.float64)
    for pair in range(4):
        angle = 5 * 10_000.0 ** (-2 * pair / 8)
        a, b = q[0, 0, 0, pair], q[0, 0, 0, pair + 4]
        expected[pair] = a * math.cos(angle) - b * math.sin(angle)
        expected[pair + 4] = b * math.cos(angle) + a * math.sin(angle)
    found = rotated(q, rotary(torch.tensor([[5]])))[0, 0, 0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_an_odd_head_has_no_pairs() -> None:
    with pytest.raises(ValueError, match="d_head 7 is odd"):
        Rotary(7)


def test_angles_are_made_on_any_device_chosen_around() -> None:
    with torch.device("meta"):
        rotary = Rotary(8)
    assert rotary.theta.device.type == "cpu" and not rotary.state_dict()
    assert rotary(torch.arange(3, device="meta")[None]).cos.is_meta
