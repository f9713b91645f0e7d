"""A task shown by examples in the prompt: Brown et al. 2020 (2005.14165) section 2.4, figure 2.1.

    example₁  …  exampleₙ  query          each by one template, the query without its label
    p(label | query) = softmax over the labels of log p(label after the prompt)

Nothing is learned; the examples are read once for all queries (continuations.py). Longer labels
have more factors below 1; `mean` compares log p of a token instead.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from everyhead.errors import UserError
from everyhead.generation.continuations import Case, Likelihood, likelihoods
from everyhead.generation.tasks import Speller, check_pair

TEMPLATE = "Text: {text}\nLabel: {label}"
BETWEEN = "\n\n"  # examples


class Example(NamedTuple):
    """A text and its label."""

    text: str
    label: str


class Judgement(NamedTuple):
    """The most probable label, the probability of each, and the likelihoods they come from."""

    label: str
    probabilities: dict[str, float]
    likelihoods: dict[str, Likelihood]


class FewShot(NamedTuple):
    """Examples, the labels to choose from, and how an example is written."""

    shots: tuple[Example, ...]
    labels: tuple[str, ...]
    template: str = TEMPLATE

    def check(self) -> None:
        """Raises UserError where labels or template make no sense."""
        if len(set(self.labels)) < 2:
            raise UserError(
                f"There is {len(set(self.labels))} label to choose from; give at least two, in the "
                "examples or by name."
            )
        if any(not label.strip() for label in self.labels):
            raise UserError("A label is blank; a model cannot be asked how probable nothing is.")
        head = self.template.partition("{text}")[0]
        once = all(self.template.count(field) == 1 for field in ("{text}", "{label}"))
        if not once or "{label}" in head:
            raise UserError(
                f"The template {self.template!r} must contain {{text}} and, after it, {{label}}, "
                r"once each, like 'Review: {text}\nSentiment: {label}'."
            )

    def prompt(self, text: str) -> tuple[str, str]:
        """All that comes before the label of this text, and the space between it and the label."""
        head, _, rest = self.template.partition("{text}")
        middle, _, tail = rest.partition("{label}")
        shown = [head + each.text + middle + each.label + tail for each in self.shots]
        whole = BETWEEN.join([*shown, head + text + middle])
        before = whole.rstrip(" ")
        return before, whole[len(before) :]


def judge(
    model: Any,
    tokenizer: Speller,
    texts: Sequence[str],
    task: FewShot,
    *,
    mean: bool = False,
    batch_tokens: int = 8192,
    progress: Callable[[int], None] | None = None,
) -> list[Judgement]:
    """The most probable label of each text, in order; of equal ones the first.

    Args:
        model: a decoder, such as GPT2 or Llama.
        mean: compare log p of a token, not of the whole label.
        batch_tokens, progress: as in `likelihoods`.

    Raises:
        UserError: labels or template make no sense, the model does not write texts, or examples
            and text are longer than the model reads.
    """
    task.check()
    check_pair(model, tokenizer)
    labels = list(dict.fromkeys(task.labels))
    cases = [case(tokenizer, *task.prompt(text), labels) for text in texts]
    found = likelihoods(model, cases, batch_tokens=batch_tokens, progress=progress)
    return [_judged(dict(zip(labels, several, strict=True)), mean) for several in found]


def case(tokenizer: Speller, prompt: str, space: str, labels: Sequence[str]) -> Case:
    """Ids of a prompt and of the labels after it, cut where the pieces of all of them agree."""
    own = tokenizer.encode(prompt)
    whole = [_without_end(tokenizer, prompt + space + label) for label in labels]
    agree = min(_agreeing(own, ids) for ids in whole)
    return Case(own[:agree], [ids[agree:] for ids in whole])


def _without_end(tokenizer: Speller, text: str) -> list[int]:
    """What is put after a text (a post-processor's </s>) is no part of a label."""
    ids, plain = tokenizer.encode(text), tokenizer.encode(text, special=False)
    while ids and plain and ids[-1] != plain[-1]:
        ids.pop()
    return ids


def _agreeing(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first ids are the same; of a whole `b` all but the last."""
    n = 0
    while n < min(len(a), len(b) - 1) and a[n] == b[n]:
        n += 1
    return n


def _judged(found: dict[str, Likelihood], mean: bool) -> Judgement:
    scores = {label: each.mean if mean else each.log_prob for label, each in found.items()}
    best = max(scores, key=lambda label: scores[label])
    powers = {label: math.exp(score - scores[best]) for label, score in scores.items()}
    total = sum(powers.values())
    return Judgement(best, {label: power / total for label, power in powers.items()}, found)
