"""The job of filling gaps, and of telling whether one text follows another.

    loss = Σ −log p(piece in the gap) / gaps + Σ −log p(follows or not) / pairs

Devlin et al. 2019 (1810.04805) section 3.1: MLM and NSP, each with a criterion and a count of its
own (one criterion that ignores a padding label for both never learns to tell). A family without
a head for pairs (Longformer) learns the first alone, over stretches as long as a row.
"""

import math
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from everyhead.data.batching import BatchPlan
from everyhead.data.documents import Document, TextSplits, first_bytes
from everyhead.data.gaps import GapBatch, GapRows
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.models import MODELS
from everyhead.training.job import Job, JobKind, Measured, Prepared, Scores, Tools, loss_of
from everyhead.training.jobs.language_recipe import (
    FamilyRecipe,
    PieceRecipe,
    TextEvaluateRecipe,
    TextRecipe,
    learnt,
    read_texts,
    sizes_text,
)
from everyhead.training.losses import class_loss
from everyhead.training.objectives import TokenLoss
from everyhead.training.sections import Recipe, Rivals, TrainRecipe
from everyhead.training.step import evaluate_parts
from everyhead.training.stream import Stream, fingerprint_of

GAPS, PAIRS = "mlm", "nsp"
EVALUATED = 8192  # tokens in a batch where nothing is learnt


class BertPieceRecipe(PieceRecipe):
    kind: Literal["wordpiece"] = "wordpiece"
    lowercase: bool = True


class BertFamilyRecipe(FamilyRecipe):
    max_len: int = Field(default=128, ge=8)  # a pair and the three pieces around it
    family: Literal["bert", "longformer"] = "bert"


class BertTrainRecipe(TrainRecipe):
    label_smoothing: float = 0.0
    optimizer: Literal["adam", "adamw"] = "adamw"
    best: Literal["loss", "mlm_accuracy"] = "loss"


class PretrainBertRecipe(Recipe):
    """Learning to fill gaps and, where the model can, to tell neighbours; from nothing."""

    rivals: ClassVar[tuple[Rivals, ...]] = (*Recipe.rivals, (("data.corpus",), ("data.files",)))

    job: Literal["pretrain-bert"] = "pretrain-bert"
    data: TextRecipe = TextRecipe()
    tokenizer: BertPieceRecipe = BertPieceRecipe()
    model: BertFamilyRecipe = BertFamilyRecipe()
    train: BertTrainRecipe = BertTrainRecipe()
    evaluate: TextEvaluateRecipe = TextEvaluateRecipe()


class PreparedBert(Prepared):
    """Text cut into three sets, a tokenizer, and the model's numbers."""

    def __init__(
        self,
        recipe: PretrainBertRecipe,
        tools: Tools,
        *,
        splits: TextSplits,
        report: dict[str, Any],
        tokenizer: TextTokenizer,
    ) -> None:
        self.recipe, self.tools = recipe, tools
        self.splits, self.report, self.tokenizer = splits, report, tokenizer
        sizes = {"vocab_size": tokenizer.vocab_size, "pad_id": tokenizer.pad_id or 0}
        self.config: Any = recipe.model.config(("bert", "longformer"), **sizes)

    def introduction(self) -> list[str]:
        c, rows = self.config, "pairs" if self.config.next_sentence_head else "rows"
        name = {"bert": "BERT", "longformer": "Longformer"}[self.recipe.model.family]
        return [
            *sizes_text(self.report),
            f"Model: {name}, {c.n_layers} layers, d_model {c.d_model}, {c.n_heads} heads, "
            f"{c.vocab_size:,} pieces, {rows} of {c.max_len} tokens",
        ]

    def job(self, device: str) -> Job:
        train = self.recipe.train
        torch.manual_seed(train.seed)
        model = MODELS[self.recipe.model.family].model(self.config).to(device)
        held_out = self._held_out("validation")
        return Job(
            model=model,
            stream=self._stream(self._rows(self.splits.train)),
            validation=held_out,
            loss=gap_loss,
            counts=gap_counts if self.config.next_sentence_head else gaps_alone,
            measures=measured,
            score=lambda model: accuracies(model, held_out),
        )

    def _rows(self, documents: list[Document]) -> GapRows:
        texts = [document.text for document in documents]
        sizes = {"length": self.config.max_len, "seed": self.recipe.train.seed}
        return GapRows(texts, self.tokenizer, in_pairs=self.config.next_sentence_head, **sizes)

    def _stream(self, rows: GapRows) -> Stream:
        train = self.recipe.train
        by_rows = train.batch_tokens is None
        plan = BatchPlan(
            rows.lengths,
            rows.lengths,
            batch_tokens=train.batch_tokens,
            batch_sentences=(train.batch_sentences or 32) if by_rows else None,
            seed=train.seed,
            sort=train.sort,
        )
        rule = (plan.batch_tokens, plan.batch_sentences, plan.seed, plan.sort)
        return Stream(plan.epoch, rows.batch, fingerprint=fingerprint_of(rule, rows.content))

    def _held_out(self, split: str) -> list[GapBatch]:
        parts = self.splits._asdict()
        if split not in parts:
            raise UserError(f"There is no split {split!r}; there are {', '.join(parts)}.")
        rows = self._rows(first_bytes(parts[split], self.recipe.evaluate.max_bytes))
        plan = BatchPlan(rows.lengths, rows.lengths, batch_tokens=EVALUATED, seed=0)
        return [rows.batch(numbers, 0) for numbers in plan.epoch(0)]

    def write(self, folder: Path) -> None:
        self.tokenizer.save(folder, model_max_length=self.config.max_len)

    def save(self, model: Any, folder: Path) -> None:
        self.tools.save(model, self.tokenizer, folder)

    def evaluate(self, model: Any, split: str) -> Scores:
        """mlm and nsp, the perplexity of a gap, how many gaps and pairs are right of how many."""
        batches = self._held_out(split)
        found = evaluate_parts(model, batches, loss=gap_loss, precision="fp32")
        scores = measured(found) | accuracies(model, batches)
        if PAIRS not in found:
            return scores | {"gaps": found[GAPS].n}
        sizes = {"gaps": found[GAPS].n, "pairs": found[PAIRS].n}
        strangers = sum(int(batch.strangers.sum()) for batch in batches) / sizes["pairs"]
        majority = {"nsp_majority": max(strangers, 1 - strangers)}
        return scores | majority | sizes


def gap_loss(model: Any, batch: GapBatch, smoothing: float) -> dict[str, TokenLoss]:
    """Both criteria, or the first alone where the model has no head for pairs."""
    hidden = model.hidden(batch.ids, batch.mask, segments=batch.segments)  # (B, T, C)
    found = {GAPS: class_loss(model.head(hidden[batch.places]), batch.labels, smoothing)}
    if model.next_sentence_head is not None:
        pairs = model.next_sentence(hidden, batch.mask)  # (B, 2)
        found[PAIRS] = class_loss(pairs, batch.strangers)
    return found


def gap_counts(batch: GapBatch) -> dict[str, int]:
    return {GAPS: batch.labels.shape[0], PAIRS: batch.strangers.shape[0]}


def gaps_alone(batch: GapBatch) -> dict[str, int]:
    return {GAPS: batch.labels.shape[0]}


def measured(found: Any) -> Scores:
    gaps: Measured = found[GAPS]
    return loss_of(found) | {"perplexity": math.exp(min(gaps.nll / max(gaps.n, 1), 700))}


@torch.no_grad()
def accuracies(model: Any, batches: list[GapBatch]) -> Scores:
    """The shares of gaps and of pairs that are told rightly; the model is in eval mode."""
    right, n = {GAPS: 0}, {GAPS: 0}
    device = next(model.parameters()).device
    for batch in (batch.to(device) for batch in batches):
        hidden = model.hidden(batch.ids, batch.mask, segments=batch.segments)
        told = {GAPS: (model.head(hidden[batch.places]), batch.labels)}
        if model.next_sentence_head is not None:
            told[PAIRS] = (model.next_sentence(hidden, batch.mask), batch.strangers)
        for name, (logits, labels) in told.items():
            right[name] = right.get(name, 0) + int((logits.argmax(-1) == labels).sum())
            n[name] = n.get(name, 0) + labels.shape[0]
    return {f"{name}_accuracy": right[name] / max(n[name], 1) for name in right}


def prepare(recipe: PretrainBertRecipe, begun: Path | None, tools: Tools) -> PreparedBert:
    """Raises UserError: the files, the sizes or the numbers are wrong."""
    splits, report = read_texts(recipe.data)
    tokenizer = TextTokenizer.load(begun) if begun else learnt(recipe.tokenizer, splits)
    report["vocabulary"] = tokenizer.vocab_size
    return PreparedBert(recipe, tools, splits=splits, report=report, tokenizer=tokenizer)


KIND = JobKind(PretrainBertRecipe, prepare, verb="fill", unit="tokens")
