"""The job of going on: a published decoder reads further text and learns what comes next in it.

The tokenizer and the model are those of `model.start` (smollm2, a folder, a run, a .gguf file);
text, rows, loss and scores are those of pretrain_gpt2.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from everyhead.errors import UserError
from everyhead.training.job import JobKind, Tools
from everyhead.training.jobs.language_recipe import (
    TextEvaluateRecipe,
    TextRecipe,
    read_texts,
    sizes_text,
)
from everyhead.training.jobs.pretrain_gpt2 import PreparedLanguage
from everyhead.training.sections import FineTuneRecipe, Recipe, Rivals, Section
from everyhead.training.tuning import tuned


class StartRecipe(Section):
    """What to go on from, and how long a row is."""

    start: str = "smollm2"
    length: int = Field(default=128, ge=2)


class TuneTrainRecipe(FineTuneRecipe):
    label_smoothing: float = 0.0
    optimizer: Literal["adam", "adamw"] = "adamw"
    best: Literal["loss"] = "loss"


class TuneRecipe(Recipe):
    """Going on from a published language model."""

    rivals: ClassVar[tuple[Rivals, ...]] = (*Recipe.rivals, (("data.corpus",), ("data.files",)))

    job: Literal["tune"] = "tune"
    data: TextRecipe = TextRecipe()
    model: StartRecipe = StartRecipe()
    train: TuneTrainRecipe = TuneTrainRecipe()
    evaluate: TextEvaluateRecipe = TextEvaluateRecipe()


class PreparedTune(PreparedLanguage):
    """The text, in the pieces of the model to go on from, which waits here for the first job."""

    opened: Any = None

    @property
    def length(self) -> int:
        return int(self.recipe.model.length)

    def start(self) -> tuple[Any, dict[str, float]]:
        model, self.opened = self.opened, None
        if model is None:
            opened = self.tools.open
            model = opened(self.recipe.model.start)[0]
        return model, tuned(model, self.recipe.train)

    def introduction(self) -> list[str]:
        m, r = self.recipe.model, self.recipe.train
        n = sum(p.numel() for p in self.opened.parameters()) if self.opened else 0
        size = f"{n:,} parameters, " if n else ""
        frozen = f", the first {r.freeze_layers} layers stay" if r.freeze_layers else ""
        return [
            *sizes_text(self.report),
            f"Model: {m.start}, {size}{self.tokenizer.vocab_size:,} pieces, rows of "
            f"{m.length}{frozen}",
        ]


def prepare(recipe: TuneRecipe, begun: Path | None, tools: Tools) -> PreparedTune:
    """Raises UserError: the files, the sizes or the numbers are wrong, or it is no decoder."""
    splits, report = read_texts(recipe.data)
    opened = tools.open
    model, tokenizer = opened(recipe.model.start)
    if tokenizer is None or not hasattr(model, "real_hidden") or not hasattr(model, "cache"):
        raise UserError(
            f"model.start {recipe.model.start} is no language model that goes on with a text; "
            "give one like smollm2."
        )
    longest = model.config.max_len
    if recipe.model.length > longest:
        raise UserError(
            f"model.length {recipe.model.length} is more than the {longest} that "
            f"{recipe.model.start} reads; give less."
        )
    report["vocabulary"] = tokenizer.vocab_size
    made = PreparedTune(recipe, tools, splits=splits, report=report, tokenizer=tokenizer)
    made.opened = model
    return made


KIND = JobKind(TuneRecipe, prepare, verb="generate", unit="tokens")
