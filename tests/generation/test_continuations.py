"""Likelihoods of continuations against the whole text each time."""

import pytest
import torch
from torch import Tensor

from everyhead.errors import UserError
from everyhead.generation.continuations import Case, likelihoods, shared_beginning
from tests.generation.decoders import LONGEST, PAIRS, gpt2, llama, next_logits, prompts

families = pytest.mark.parametrize("family", PAIRS)


def cases(shared: int) -> list[Case]:
    (beginning,) = prompts([shared], seed=3)
    rests = prompts([4, 9, 1, 6], seed=5)
    return [
        Case([*beginning, *rest], prompts([1, 3, 2, 0, 5][: 2 + i], seed=i))
        for i, rest in enumerate(rests)
    ]


def plain(model: torch.nn.Module, case: Case) -> list[float]:
    """Σ log p, the whole text for each token."""
    return [
        sum(
            float(next_logits(model, [*case.prompt, *ids[:t]]).double().log_softmax(-1)[number])
            for t, number in enumerate(ids)
        )
        for ids in case.continuations
    ]


@families
@pytest.mark.parametrize("shared", [0, 7])
@pytest.mark.parametrize("batch_tokens", [1, 40, 8192])
def test_a_likelihood_is_the_sum_of_the_tokens_log_probabilities(
    family: str, shared: int, batch_tokens: int
) -> None:
    model, asked = PAIRS[family][0](), cases(shared)
    found = likelihoods(model, asked, batch_tokens=batch_tokens)
    for case, several in zip(asked, found, strict=True):
        assert [each.n_tokens for each in several] == [len(ids) for ids in case.continuations]
        assert [each.log_prob for each in several] == pytest.approx(plain(model, case), abs=2e-4)
        for each in several:
            assert each.mean * max(1, each.n_tokens) == pytest.approx(each.log_prob)


def test_what_prompts_share_is_read_once(monkeypatch) -> None:
    model, seen = llama(), []
    hidden = model.hidden

    def counted(ids: Tensor, mask: Tensor | None = None, **more: object) -> Tensor:
        seen.append(tuple(ids.shape))
        return hidden(ids, mask, **more)

    monkeypatch.setattr(model, "hidden", counted)
    done: list[int] = []
    likelihoods(model, cases(30), progress=done.append)
    assert seen == [(1, 30), (4, 9), (8, 4)]  # prefix; rests; what has more than one token
    assert done == [4]


def test_one_prompt_alone_and_no_prompt_at_all() -> None:
    (case,) = cases(0)[:1]
    (found,) = likelihoods(gpt2(), [case])
    assert [each.log_prob for each in found] == pytest.approx(plain(gpt2(), case), abs=2e-4)
    assert likelihoods(gpt2(), []) == []
    assert likelihoods(gpt2(), [case._replace(continuations=[])]) == [[]]


def test_the_shared_beginning_leaves_each_prompt_an_id() -> None:
    assert shared_beginning([[1, 2, 3], [1, 2, 4]]) == 2
    assert shared_beginning([[1, 2, 3], [1, 2, 3, 4]]) == 2
    assert shared_beginning([[1], [1]]) == 0
    assert shared_beginning([[1, 2], [3, 2]]) == 0


def test_the_longest_length_can_be_used_up_and_not_passed() -> None:
    (prompt,) = prompts([LONGEST - 2])
    fits, over = prompts([3, 4], seed=1)
    case = Case(prompt, [fits])
    (found,) = likelihoods(gpt2(), [case])
    assert found[0].log_prob == pytest.approx(plain(gpt2(), case)[0], abs=2e-4)
    with pytest.raises(UserError, match=f"Prompt 2 has {LONGEST + 1} tokens .* at most {LONGEST}"):
        likelihoods(gpt2(), [case, Case(prompt, [fits, over])])
    with pytest.raises(ValueError, match="prompt 1 has no id"):
        likelihoods(gpt2(), [Case([], [fits])])
