"""Labels by examples: the prompt as written, and probabilities against the whole text each time."""

import math

import pytest

from everyhead.errors import UserError
from everyhead.generation.few_shot import Example, FewShot, case, judge
from tests.generation.decoders import gpt2, llama, next_logits
from tests.generation.spellings import byte_fallback, byte_level

SHOTS = (Example("The cat sat", "good"), Example("the dog", "not so good"))
LABELS = ("good", "not so good", "cat")
REVIEW = "Review: {text}\nSentiment: {label}."
TEXTS = ["a door", "The dog sat {label} by the mat", "你好"]
MODELS = [(gpt2, byte_level), (llama, byte_fallback)]


def test_a_prompt_is_the_examples_and_the_query_without_its_label() -> None:
    before, space = FewShot(SHOTS, LABELS, REVIEW).prompt("{text} {label}")
    assert before + space == (
        "Review: The cat sat\nSentiment: good.\n\nReview: the dog\nSentiment: not so good.\n\n"
        "Review: {text} {label}\nSentiment: "
    )
    assert space == " "
    assert FewShot((), LABELS).prompt("x") == ("Text: x\nLabel:", " ")
    assert FewShot((), LABELS, "{text}\n{label}").prompt("x") == ("x\n", "")


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("shots", [SHOTS, ()])
@pytest.mark.parametrize(("make", "spelling"), MODELS, ids=["gpt2", "llama"])
def test_probabilities_are_those_of_the_labels_as_texts(make, spelling, shots, mean) -> None:
    tokenizer = spelling()
    model, task = make(0, tokenizer.vocab_size, 512), FewShot(shots, LABELS, REVIEW)
    for text, found in zip(TEXTS, judge(model, tokenizer, TEXTS, task, mean=mean), strict=True):
        before, space = task.prompt(text)
        scores = {}
        for label in LABELS:
            ids, start = tokenizer.encode(before + space + label), len(tokenizer.encode(before))
            terms = [
                float(next_logits(model, ids[:t]).double().log_softmax(-1)[ids[t]])
                for t in range(start, len(ids))
            ]
            scores[label] = sum(terms) / (len(terms) if mean else 1)
        assert found.label == max(scores, key=lambda label: scores[label])
        peak = max(scores.values())
        total = sum(math.exp(score - peak) for score in scores.values())
        wanted = {label: math.exp(score - peak) / total for label, score in scores.items()}
        assert found.probabilities == pytest.approx(wanted, abs=1e-3)
        assert sum(found.probabilities.values()) == pytest.approx(1)


def test_a_label_whose_first_piece_takes_some_of_the_prompt_is_cut_before_it() -> None:
    tokenizer = byte_level()
    prompt = "the ca"
    asked = case(tokenizer, prompt, "", ["t", "n"])
    for label, ids in zip(["t", "n"], asked.continuations, strict=True):
        assert tokenizer.decode([*asked.prompt, *ids]) == prompt + label and ids


WRONG = [
    (FewShot((), ("a",)), "There is 1 label"),
    (FewShot((), ("a", "a")), "There is 1 label"),
    (FewShot((), ("a", " ")), "label is blank"),
    (FewShot((), ("a", "b"), "{text}"), "must contain"),
    (FewShot((), ("a", "b"), "{label} {text}"), "must contain"),
    (FewShot((), ("a", "b"), "{text} {text} {label}"), "must contain"),
]


@pytest.mark.parametrize(("task", "sentence"), WRONG)
def test_a_task_that_makes_no_sense_is_refused(task: FewShot, sentence: str) -> None:
    tokenizer = byte_level()
    with pytest.raises(UserError, match=sentence):
        judge(gpt2(0, tokenizer.vocab_size), tokenizer, ["x"], task)


def test_examples_that_do_not_fit_are_refused() -> None:
    tokenizer = byte_level()
    task = FewShot(SHOTS * 20, LABELS)
    with pytest.raises(UserError, match="give fewer or shorter examples"):
        judge(gpt2(0, tokenizer.vocab_size), tokenizer, ["x"], task)
