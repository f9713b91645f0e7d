"""The job of answering questions by a span of a text: SQuAD's files, versions 1 and 2.

    start_t, end_t = W · h_t + b      Devlin et al. 2019 (1810.04805) sections 4.2 and 4.3

The loss of a window is the mean of both cross-entropies over its tokens; where the answer is not
in the window, both point to its first token.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from everyhead.data.span_windows import Window, best_span, span_rows, windows_of
from everyhead.data.splits import stable_fraction
from everyhead.data.squad import Question, read_squad
from everyhead.data.text_batches import TextBatch
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.training.answer_scores import answer_scores
from everyhead.training.job import Job, JobKind, Prepared, Scores, Tools, loss_of
from everyhead.training.jobs.text_recipe import (
    ReadTrainRecipe,
    StartRecipe,
    begun_from,
    longest_of,
    paths,
    stream_of,
)
from everyhead.training.losses import class_loss
from everyhead.training.objectives import TokenLoss
from everyhead.training.sections import Recipe, Section
from everyhead.training.tuning import tuned

TASK, NEW = "span-reader", ("classifier.",)
SETS = ("train", "validation", "test")


class DataRecipe(Section):
    """SQuAD files: one is cut by its texts; of two the second is for test, of three the second
    for validation."""

    files: list[str] = Field(default_factory=list, max_length=3)
    validation_share: float = Field(default=0.1, gt=0, lt=0.5)
    test_share: float = Field(default=0.1, gt=0, lt=0.5)


class AnswerModelRecipe(StartRecipe):
    max_len: int = Field(default=384, ge=16)  # tokens of a window
    stride: int = Field(default=128, ge=0)  # tokens that neighbouring windows share
    longest_answer: int = Field(default=30, ge=1)  # tokens
    threshold: float = 0.0  # how much an answer must beat none


class AnswerTrainRecipe(ReadTrainRecipe):
    best: str = "f1"


class AnswerRecipe(Recipe):
    """Learning to answer questions by a span of a text."""

    job: Literal["answer"] = "answer"
    data: DataRecipe = DataRecipe()
    model: AnswerModelRecipe = AnswerModelRecipe()
    train: AnswerTrainRecipe = AnswerTrainRecipe()


class PreparedQuestions(Prepared):
    """The sets as windows, and the tokenizer."""

    def __init__(
        self,
        recipe: AnswerRecipe,
        tools: Tools,
        *,
        sets: dict[str, list[Question]],
        report: dict[str, Any],
        begun: Path | None,
    ) -> None:
        self.recipe, self.tools, self.sets, self.report = recipe, tools, sets, report
        opened: Any = (None, TextTokenizer.load(begun)) if begun else self._opened()
        body, self.tokenizer = opened
        self.longest = longest_of(recipe.model, self.tokenizer, body)
        self.windows = {name: self._windows(part) for name, part in sets.items()}
        report["windows"] = {name: len(part) for name, part in self.windows.items()}

    def _opened(self) -> tuple[Any, Any]:
        m = self.recipe.model
        changes = {} if m.dropout is None else {"dropout": m.dropout}
        return self.tools.open_as(TASK, m.start, (), changes=changes)

    def _windows(self, part: list[Question]) -> list[Window]:
        texts = [(each.question, each.context) for each in part]
        stride = self.recipe.model.stride
        return windows_of(self.tokenizer, texts, longest=self.longest, stride=stride)

    def introduction(self) -> list[str]:
        sizes = ", ".join(f"{n:,} {name}" for name, n in self.report["splits"].items())
        return [
            f"Questions: {sizes}; {self.report['unanswerable']:.1%} of the test questions have no "
            "answer",
            f"Model: {self.recipe.model.start} under a new head, windows of {self.longest} tokens",
        ]

    def job(self, device: str) -> Job:
        train = self.recipe.train
        model = begun_from(self._opened, self.recipe).to(device)
        rows = {
            name: span_rows(self.tokenizer, self.windows[name], self.sets[name]) for name in SETS
        }
        return Job(
            model=model,
            stream=stream_of(rows["train"], train),
            validation=rows["validation"].batches()[1],
            loss=span_loss,
            measures=loss_of,
            score=self._short,
            factors=tuned(model, train, new=NEW),
        )

    def _short(self, model: Any) -> Scores:
        scores = self.evaluate(model, "validation")
        return {name: scores[name] for name in ("exact", "f1")}

    def write(self, folder: Path) -> None:
        self.tokenizer.save(folder, model_max_length=self.longest)

    def save(self, model: Any, folder: Path) -> None:
        self.tools.save(model, self.tokenizer, folder)

    def evaluate(self, model: Any, split: str) -> Scores:
        """exact and f1 as SQuAD defines them, of all, answerable and unanswerable questions."""
        if split not in self.sets:
            raise UserError(f"There is no split {split!r}; there are {', '.join(self.sets)}.")
        part, m = self.sets[split], self.recipe.model
        logits = span_logits(model, self.tokenizer, self.windows[split], part)
        found = []
        for row, question in enumerate(part):
            mine = [i for i, window in enumerate(self.windows[split]) if window.row == row]
            found.append(
                best_span(
                    question.context,
                    [self.windows[split][i] for i in mine],
                    [logits[i] for i in mine],
                    longest=m.longest_answer,
                    threshold=m.threshold,
                    may_be_none=self.report["has_unanswerable"],
                )
            )
        wanted = [[text for text, _ in question.answers] for question in part]
        return answer_scores([span.text for span in found], wanted)


@torch.no_grad()
def span_logits(
    model: Any, tokenizer: Any, windows: list[Window], questions: list[Question]
) -> list[np.ndarray]:
    """(T, 2) for each window."""
    rows = span_rows(tokenizer, windows, questions)
    device = next(model.parameters()).device
    found: list[np.ndarray] = [np.zeros((0, 2))] * rows.size
    for numbers, batch in zip(*rows.batches(), strict=True):
        batch = batch.to(device)
        logits = model(batch.ids, batch.mask, segments=batch.segments).float().cpu().numpy()
        for number, each in zip(numbers, logits, strict=True):
            found[number] = each
    return found


def span_loss(model: Any, batch: TextBatch, smoothing: float) -> TokenLoss:
    """Half of −Σ log p(start) − Σ log p(end), over the real tokens of each window."""
    if smoothing:
        raise UserError("Places in a text have no smoothed labels: set train.label_smoothing=0.")
    logits = model(batch.ids, batch.mask, segments=batch.segments)
    logits = logits.masked_fill(~batch.mask[..., None], float("-inf"))
    start, end = (class_loss(logits[..., side], batch.labels[:, side]) for side in (0, 1))
    return TokenLoss((start.smoothed + end.smoothed) / 2, (start.nll + end.nll) / 2, batch.n_target)


def read_sets(data: DataRecipe) -> tuple[dict[str, list[Question]], dict[str, Any]]:
    """The recipe's questions; questions of one text stay together.

    Raises:
        UserError: a file is missing or broken, or too little is left.
    """
    if not data.files:
        raise UserError(
            "No question-answering data comes with everyhead: give a file in SQuAD's form with "
            "--data FILE."
        )
    first, *others = [read_squad(path) for path in paths(data.files)]
    taken = {each.context for part in others for each in part}
    first = [each for each in first if each.context not in taken]
    parts: dict[str, list[Question]] = {name: [] for name in SETS}
    if len(others) == 2:
        parts = dict(zip(SETS, (first, *others), strict=True))
    else:
        test = 0.0 if others else data.test_share
        for each in first:
            point = stable_fraction(each.context)
            held = "test" if point < test else "validation"
            parts[held if point < test + data.validation_share else "train"].append(each)
        parts |= {"test": others[0]} if others else {}
    sizes = {name: len(part) for name, part in parts.items()}
    if not all(sizes.values()):
        listed = ", ".join(f"{n} {name}" for name, n in sizes.items())
        raise UserError(
            f"{data.files[0]}: too few texts; {listed} questions are left. Give more texts, or a "
            "file for each set."
        )
    every = [each for part in parts.values() for each in part]
    report = {
        "splits": sizes,
        "unanswerable": sum(not each.answers for each in parts["test"]) / sizes["test"],
        "has_unanswerable": any(not each.answers for each in every),
    }
    return parts, report


def prepare(recipe: AnswerRecipe, begun: Path | None, tools: Tools) -> PreparedQuestions:
    """Raises UserError: the files, the sizes or the numbers are wrong."""
    sets, report = read_sets(recipe.data)
    return PreparedQuestions(recipe, tools, sets=sets, report=report, begun=begun)


KIND = JobKind(AnswerRecipe, prepare, verb="predict", unit="windows")
