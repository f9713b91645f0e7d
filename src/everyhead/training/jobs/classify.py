"""The job of putting texts into classes: a published body, and a new map above it.

    logits = W · pooled + b      Devlin et al. 2019 (1810.04805) section 4.1

Texts of a corpus or of a file; each counts once, and the held-out ones are chosen by a hash.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from everyhead.data.labelled import (
    Labelled,
    LabelledSplits,
    checked,
    deduplicated,
    read_labelled,
    split_labelled,
    without,
)
from everyhead.data.labelled_corpora import CORPORA, load_labelled
from everyhead.data.text_batches import TextBatch, TextRows
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.training.job import (
    Job,
    JobKind,
    Prepared,
    Scores,
    Tools,
    learnt_labels,
    loss_of,
)
from everyhead.training.jobs.text_recipe import (
    ReadTrainRecipe,
    StartRecipe,
    begun_from,
    longest_of,
    paths,
    stream_of,
)
from everyhead.training.label_scores import class_scores
from everyhead.training.losses import class_loss
from everyhead.training.objectives import TokenLoss
from everyhead.training.sections import Recipe, Section
from everyhead.training.tuning import tuned

TASK, NEW = "sequence-classifier", ("classifier.",)


class DataRecipe(Section):
    """Where the texts come from, and how they are cut.

    files: one file is cut; of two the second is the test set, of three the second validation.
    """

    corpus: str | None = None
    files: list[str] = Field(default_factory=list, max_length=3)
    validation_share: float = Field(default=0.1, gt=0, lt=0.5)
    test_share: float = Field(default=0.1, gt=0, lt=0.5)
    most: int | None = Field(default=None, ge=2)  # training texts, the first of a random order


class ClassifyModelRecipe(StartRecipe):
    pooling: Literal["pooler", "first", "mean", "last"] | None = None  # by default the body's own


class ClassifyTrainRecipe(ReadTrainRecipe):
    best: str = "accuracy"


class ClassifyRecipe(Recipe):
    """Learning to put texts into classes."""

    rivals = (*Recipe.rivals, (("data.corpus",), ("data.files",)))

    job: Literal["classify"] = "classify"
    data: DataRecipe = DataRecipe()
    model: ClassifyModelRecipe = ClassifyModelRecipe()
    train: ClassifyTrainRecipe = ClassifyTrainRecipe()


class PreparedTexts(Prepared):
    """The sets as ids, the names of the labels, and the tokenizer."""

    def __init__(
        self,
        recipe: ClassifyRecipe,
        tools: Tools,
        *,
        splits: LabelledSplits,
        report: dict[str, Any],
        begun: Path | None = None,
    ) -> None:
        self.recipe, self.tools, self.splits, self.report = recipe, tools, splits, report
        every = {label for part in splits for label in part.labels}
        self.labels = learnt_labels(begun, sorted(every))
        report["labels"] = list(self.labels)
        opened: Any = (None, TextTokenizer.load(begun)) if begun else self._opened()
        body, self.tokenizer = opened
        self.longest = longest_of(recipe.model, self.tokenizer, body)
        self.sets = {name: self._rows(part) for name, part in splits._asdict().items()}

    def _opened(self) -> tuple[Any, Any]:
        m = self.recipe.model
        given = {"dropout": m.dropout, "pooling": m.pooling}
        changes = {name: value for name, value in given.items() if value is not None}
        return self.tools.open_as(TASK, m.start, self.labels, changes=changes)

    def _rows(self, part: Labelled) -> TextRows:
        number = {label: i for i, label in enumerate(self.labels)}
        ids = self.tokenizer.encode_batch(part.texts, max_len=self.longest)
        labels = [number[label] for label in part.labels]
        return TextRows(ids, labels, pad_id=self.tokenizer.pad_id or 0)

    def introduction(self) -> list[str]:
        sizes = ", ".join(f"{n:,} {name}" for name, n in self.report["splits"].items())
        lines = [f"Data: {self.report['origin']['attribution']}"] if "origin" in self.report else []
        m = self.recipe.model
        return [
            *lines,
            f"Texts: {sizes}; {len(self.labels)} classes, the commonest "
            f"{self.report['majority']:.1%} of the test texts",
            f"Model: {m.start} under a new head, at most {self.longest} tokens",
        ]

    def job(self, device: str) -> Job:
        train = self.recipe.train
        model = begun_from(self._opened, self.recipe).to(device)
        return Job(
            model=model,
            stream=stream_of(self.sets["train"], train),
            validation=self.sets["validation"].batches()[1],
            loss=text_loss,
            measures=loss_of,
            score=lambda model: self._judged(model, "validation", short=True),
            factors=tuned(model, train, new=NEW),
        )

    def write(self, folder: Path) -> None:
        self.tokenizer.save(folder, model_max_length=self.longest)

    def save(self, model: Any, folder: Path) -> None:
        self.tools.save(model, self.tokenizer, folder)

    def evaluate(self, model: Any, split: str) -> Scores:
        """accuracy, macro_f1, each class, and majority: always what is commonest in training."""
        return self._judged(model, split)

    def _judged(self, model: Any, split: str, *, short: bool = False) -> Scores:
        if split not in self.sets:
            raise UserError(f"There is no split {split!r}; there are {', '.join(self.sets)}.")
        rows = self.sets[split]
        found = np.array([0] * rows.size)
        device = next(model.parameters()).device
        with torch.no_grad():
            for numbers, batch in zip(*rows.batches(), strict=True):
                batch = batch.to(device)
                found[numbers] = model(batch.ids, batch.mask).argmax(-1).cpu().numpy()
        commonest = int(np.bincount(self.sets["train"].labels).argmax())
        scores = class_scores(found.tolist(), list(rows.labels), self.labels, commonest)
        return {k: scores[k] for k in ("accuracy", "macro_f1")} if short else scores


def text_loss(model: Any, batch: TextBatch, smoothing: float) -> TokenLoss:
    """−Σ log p of the right classes."""
    return class_loss(model(batch.ids, batch.mask), batch.labels, smoothing)


def read_splits(data: DataRecipe) -> tuple[LabelledSplits, dict[str, Any]]:
    """The recipe's texts and where they are from.

    Raises:
        UserError: no such corpus, a file is missing or broken, or too little is left.
    """
    report: dict[str, Any] = {}
    files = paths(data.files)
    if files:
        whole, where = read_labelled(files[0]), data.files[0]
    else:
        whole, where = load_labelled(str(data.corpus)), str(data.corpus)
        report["origin"] = CORPORA[where].origin
    kept, report["filters"] = deduplicated(whole)
    splits = _cut(kept, [read_labelled(path) for path in files[1:]], data, where)
    if data.most is not None and data.most < splits.train.size:
        rows = np.random.default_rng(0).permutation(splits.train.size)[: data.most]
        train = splits.train.pick(sorted(rows.tolist()))
        splits = checked(splits._replace(train=train), where)
    report["splits"] = {name: part.size for name, part in splits._asdict().items()}
    train_labels = splits.train.labels
    commonest = max(sorted(set(train_labels)), key=train_labels.count)
    report["majority"] = splits.test.labels.count(commonest) / splits.test.size
    return splits, report


def _cut(kept: Labelled, given: list[Labelled], data: DataRecipe, where: str) -> LabelledSplits:
    shares = {"validation": data.validation_share, "test": data.test_share}
    if not given:
        return checked(split_labelled(kept, **shares), where)
    for held_out in given:
        kept = without(kept, held_out)
    if len(given) == 2:
        return checked(LabelledSplits(kept, *given), where)
    cut = split_labelled(kept, validation=data.validation_share, test=0.0)
    return checked(LabelledSplits(cut.train, cut.validation, given[0]), where)


def prepare(recipe: ClassifyRecipe, begun: Path | None, tools: Tools) -> PreparedTexts:
    """Raises UserError: the files, the sizes or the numbers are wrong."""
    splits, report = read_splits(recipe.data)
    return PreparedTexts(recipe, tools, splits=splits, report=report, begun=begun)


KIND = JobKind(ClassifyRecipe, prepare, verb="predict", unit="texts")
