"""Sampling against Hugging Face's warpers, counts, and what a seed promises."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as theirs

from everyhead.errors import UserError
from everyhead.generation.sampling import Sampler, Sampling, drawn, kept, numbers, penalised


def logits(rows: int = 4, size: int = 50, seed: int = 0) -> Tensor:
    return 3 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60)
@given(
    temperature=st.sampled_from([0.3, 0.8, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 49, 50, 80]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.7]),
    seed=st.integers(0, 99),
)
def test_what_is_kept_is_what_hugging_face_keeps(
    temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    wanted = theirs.TemperatureLogitsWarper(temperature)(None, logits(seed=seed))
    if top_k:
        wanted = theirs.TopKLogitsWarper(top_k)(None, wanted)
    if top_p < 1:
        wanted = theirs.TopPLogitsWarper(top_p)(None, wanted)
    if min_p:
        wanted = theirs.MinPLogitsWarper(min_p)(None, wanted)
    found = kept(logits(seed=seed), Sampling(temperature, top_k, top_p, min_p))
    torch.testing.assert_close(found.softmax(-1), wanted.softmax(-1))


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_the_repetition_penalty_is_hugging_face_s(penalty: float) -> None:
    ids = torch.tensor([[3, 7, 7], [0, 49, 1]])
    wanted = theirs.RepetitionPenaltyLogitsProcessor(penalty)(ids, logits(2))
    seen = torch.zeros(2, 50, dtype=torch.bool).scatter_(1, ids, True)
    torch.testing.assert_close(penalised(logits(2), seen, penalty), wanted)


def test_a_sampler_remembers_the_prompt_and_what_it_chose() -> None:
    sampler = Sampler(
        Sampling(temperature=0, repetition_penalty=1e9),
        [[0], [1]],
        seeds=[],
        n_steps=4,
        vocab_size=4,
        device=torch.device("cpu"),
    )
    row = torch.tensor([[4.0, 3.0, 2.0, 1.0]] * 2)
    chosen = [sampler.choose(row).tolist() for _ in range(3)]
    assert chosen == [[1, 0], [2, 2], [3, 3]]


@pytest.mark.parametrize(
    "how",
    [
        Sampling(temperature=1e-320),
        Sampling(temperature=1e-40),
        Sampling(top_p=1e-320),
        Sampling(temperature=1e-40, top_k=3, top_p=1e-40, min_p=1.0),
        Sampling(temperature=1e-30, repetition_penalty=1e-9),
        Sampling(temperature=1e-30, repetition_penalty=1e9),
    ],
)
def test_numbers_at_their_limits_leave_the_most_probable_token(how: Sampling) -> None:
    """T below float32's least number, p below it, penalties at their ends: never a NaN."""
    how.check()
    rows = logits() - 40  # all of one sign, so that a penalty moves all that were seen alike
    sampler = Sampler(
        how,
        [range(50)] * 4,
        seeds=[(7, i) for i in range(4)],
        n_steps=1,
        vocab_size=50,
        device=torch.device("cpu"),
    )
    assert kept(rows, how).amax(-1).isfinite().all()
    assert sampler.choose(rows).equal(rows.argmax(-1))


@pytest.mark.parametrize("penalty", [1e-40, 1e40, 0.0, -1.0, float("nan"), float("inf")])
def test_a_penalty_that_makes_logits_infinite_is_refused(penalty: float) -> None:
    with pytest.raises(UserError, match="repetition_penalty is"):
        Sampling(repetition_penalty=penalty).check()


def test_tokens_are_drawn_as_often_as_they_are_probable() -> None:
    p = torch.tensor([0.5, 0.0, 0.2, 0.3])
    n = 20_000
    u = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    counts = drawn(p.log().expand(n, -1), u).bincount(minlength=4) / n
    assert counts[1] == 0
    torch.testing.assert_close(counts, p, rtol=0, atol=5 * (0.25 / n) ** 0.5)


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_no_number_draws_an_impossible_token(u: float) -> None:
    row = torch.tensor([[float("-inf"), 0.0, float("-inf"), 1.0, float("-inf")]])
    assert drawn(row, torch.tensor([u], dtype=torch.float64)).item() == (1 if u == 0 else 3)


def test_numbers_are_the_seed_s_own_however_many_are_asked_for() -> None:
    assert numbers(3, 0, 100)[:7].equal(numbers(3, 0, 7))
    several = torch.stack([numbers(*pair, 50) for pair in ((3, 0), (3, 1), (4, 0))])
    assert several.unique().numel() == 150
    assert several.min() >= 0 and several.max() < 1


def test_a_temperature_near_zero_is_greedy_and_a_seed_does_not_matter_at_zero() -> None:
    tokens = []
    for temperature, seed in ((0.0, 1), (0.0, 2), (1e-4, 3)):
        sampler = Sampler(
            Sampling(temperature),
            [[0]] * 4,
            seeds=[(seed, i) for i in range(4)],
            n_steps=1,
            vocab_size=50,
            device=torch.device("cpu"),
        )
        tokens.append(sampler.choose(logits()).tolist())
    assert tokens == [logits().argmax(-1).tolist()] * 3


WRONG = [
    ({"temperature": -0.1}, "temperature is -0.1; give 0"),
    ({"temperature": float("inf")}, "temperature is inf"),
    ({"temperature": float("nan")}, "temperature is nan"),
    ({"top_k": -1}, "top_k is -1"),
    ({"top_p": 0.0}, "top_p is 0.0"),
    ({"top_p": 1.5}, "top_p is 1.5"),
    ({"min_p": -0.2}, "min_p is -0.2"),
    ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
]


@pytest.mark.parametrize(("numbers", "sentence"), WRONG)
def test_a_number_that_makes_no_sense_is_refused(numbers: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Sampling(**numbers).check()
