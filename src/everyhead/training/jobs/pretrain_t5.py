"""The job of writing what is missing: stretches of text are taken out, and T5 writes them.

    loss = −Σ_t log p(y_t | y_<t, x) / Σ 1        x: text with sentinels, y: what they stand for

Raffel et al. 2020 (1910.10683) section 3.1.4; data/span_corruption.py. A row is as long as the
model's max_len allows for both sides. Held-out text is always corrupted alike, so its perplexity,
of a piece that is missing or a sentinel, can be compared between runs with one tokenizer.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from everyhead.data.batching import Batch, BatchPlan
from everyhead.data.documents import Document, TextSplits, first_bytes
from everyhead.data.span_corruption import SpanRows, sentinels_of
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.models.t5 import T5
from everyhead.training.job import Job, JobKind, Prepared, Scores, Tools, loss_and_perplexity
from everyhead.training.jobs.language_recipe import (
    FamilyRecipe,
    PieceRecipe,
    TextEvaluateRecipe,
    TextRecipe,
    learnt,
    read_texts,
    sizes_text,
)
from everyhead.training.losses import batch_loss
from everyhead.training.sections import Recipe, Rivals, Size, TrainRecipe
from everyhead.training.step import evaluate_parts
from everyhead.training.stream import Stream, fingerprint_of

EVALUATED = 8192  # tokens in a batch where nothing is learnt


class T5PieceRecipe(PieceRecipe):
    """Of its pieces 100 are sentinels."""

    kind: Literal["unigram"] = "unigram"


class T5FamilyRecipe(FamilyRecipe):
    """n_layers: of each half."""

    family: Literal["t5"] = "t5"
    d_head: Size | None = None
    n_encoder_layers: Size | None = None
    n_decoder_layers: Size | None = None

    def halves(self) -> "T5FamilyRecipe":
        """The same with the layers of each half said."""
        n = {"n_encoder_layers": self.n_layers, "n_decoder_layers": self.n_layers}
        given = {name: getattr(self, name) or number for name, number in n.items()}
        return self.model_copy(update=given | {"n_layers": None})


class T5TrainRecipe(TrainRecipe):
    label_smoothing: float = 0.0
    optimizer: Literal["adam", "adamw"] = "adamw"
    best: Literal["loss"] = "loss"


class PretrainT5Recipe(Recipe):
    """Learning to write what is missing, from nothing."""

    rivals: ClassVar[tuple[Rivals, ...]] = (*Recipe.rivals, (("data.corpus",), ("data.files",)))

    job: Literal["pretrain-t5"] = "pretrain-t5"
    data: TextRecipe = TextRecipe()
    tokenizer: T5PieceRecipe = T5PieceRecipe()
    model: T5FamilyRecipe = T5FamilyRecipe()
    train: T5TrainRecipe = T5TrainRecipe()
    evaluate: TextEvaluateRecipe = TextEvaluateRecipe()


class PreparedT5(Prepared):
    """Text cut into three sets, a tokenizer with sentinels, and the model's numbers."""

    def __init__(
        self,
        recipe: PretrainT5Recipe,
        tools: Tools,
        *,
        splits: TextSplits,
        report: dict[str, Any],
        tokenizer: TextTokenizer,
    ) -> None:
        self.recipe, self.tools = recipe, tools
        self.splits, self.report, self.tokenizer = splits, report, tokenizer
        sentinels_of(tokenizer)
        ids = {"pad_id": tokenizer.pad_id, "eos_id": tokenizer.eos_id}
        size = tokenizer.vocab_size
        self.config: Any = recipe.model.halves().config(("t5",), vocab_size=size, **ids)

    def introduction(self) -> list[str]:
        c = self.config
        return [
            *sizes_text(self.report),
            f"Model: T5, {c.n_encoder_layers}+{c.n_decoder_layers} layers, d_model {c.d_model}, "
            f"{c.n_heads} heads, {c.vocab_size:,} pieces, rows of {c.max_len}",
        ]

    def job(self, device: str) -> Job:
        torch.manual_seed(self.recipe.train.seed)
        return Job(
            model=T5(self.config).to(device),
            stream=self._stream(self._rows(self.splits.train, self.recipe.train.seed)),
            validation=self._held_out("validation"),
            loss=batch_loss,
        )

    def _rows(self, documents: list[Document], seed: int) -> SpanRows:
        texts = [document.text for document in documents]
        return SpanRows(texts, self.tokenizer, max_len=self.config.max_len, seed=seed)

    def _stream(self, rows: SpanRows) -> Stream:
        train = self.recipe.train
        by_rows = train.batch_tokens is None
        plan = BatchPlan(
            rows.source_lengths,
            rows.target_lengths,
            batch_tokens=train.batch_tokens,
            batch_sentences=(train.batch_sentences or 32) if by_rows else None,
            seed=train.seed,
            sort=train.sort,
        )
        rule = (plan.batch_tokens, plan.batch_sentences, plan.seed, plan.sort)
        content = (repr(row).encode("ascii") for row in rows.rows)
        return Stream(plan.epoch, rows.batch, fingerprint=fingerprint_of(rule, content))

    def _held_out(self, split: str) -> list[Batch]:
        parts = self.splits._asdict()
        if split not in parts:
            raise UserError(f"There is no split {split!r}; there are {', '.join(parts)}.")
        rows = self._rows(first_bytes(parts[split], self.recipe.evaluate.max_bytes), 0)
        plan = BatchPlan(rows.source_lengths, rows.target_lengths, batch_tokens=EVALUATED, seed=0)
        return [rows.batch(numbers, 0) for numbers in plan.epoch(0)]

    def write(self, folder: Path) -> None:
        self.tokenizer.save(folder, model_max_length=self.config.max_len)

    def save(self, model: Any, folder: Path) -> None:
        self.tools.save(model, self.tokenizer, folder)

    def evaluate(self, model: Any, split: str) -> Scores:
        """loss and perplexity of a piece that is missing, and how many there are."""
        batches = self._held_out(split)
        found = evaluate_parts(model, batches, loss=batch_loss, precision="fp32")
        return loss_and_perplexity(found) | {"pieces": sum(batch.n_target for batch in batches)}


def prepare(recipe: PretrainT5Recipe, begun: Path | None, tools: Tools) -> PreparedT5:
    """Raises UserError: the files, the sizes or the numbers are wrong."""
    splits, report = read_texts(recipe.data)
    tokenizer = TextTokenizer.load(begun) if begun else learnt(recipe.tokenizer, splits)
    report["vocabulary"] = tokenizer.vocab_size
    return PreparedT5(recipe, tools, splits=splits, report=report, tokenizer=tokenizer)


KIND = JobKind(PretrainT5Recipe, prepare, verb="translate", unit="target tokens")
