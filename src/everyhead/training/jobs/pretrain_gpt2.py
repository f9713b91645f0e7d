"""The job of learning what comes next: documents packed into rows, each blind to the others.

    loss = −Σ_t log p(w_t | w_<t of the same document) / Σ 1

Radford et al. 2018, 2019. Any family of decoders will do: those that can keep the documents of a
row apart (GPT-2, Llama) get full rows, others rows that end where a document ends. Perplexity is of
pieces, and depends on the tokenizer; bits per byte can be compared across tokenizers. Held-out text
is cut into rows of the same length, so a piece sees what stands before it in its row.
"""

import inspect
import math
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from everyhead.data.documents import Document, TextSplits, first_bytes, n_bytes
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.data.token_rows import PackedBatch, TokenRows, edges
from everyhead.errors import UserError
from everyhead.models import MODELS
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
from everyhead.training.losses import next_token_loss
from everyhead.training.sections import Recipe, Rivals, TrainRecipe
from everyhead.training.step import evaluate_parts
from everyhead.training.stream import Stream, fingerprint_of

FAMILIES = (
    "gpt2", "llama", "recurrent", "convolutional", "performer", "reformer", "transformer-xl",
)  # fmt: skip
ROWS_A_BATCH = 16


class LanguageTrainRecipe(TrainRecipe):
    label_smoothing: float = 0.0
    optimizer: Literal["adam", "adamw"] = "adamw"
    best: Literal["loss"] = "loss"


class LanguageRecipe(Recipe):
    """Learning to go on with a text, from nothing."""

    rivals: ClassVar[tuple[Rivals, ...]] = (*Recipe.rivals, (("data.corpus",), ("data.files",)))

    job: Literal["pretrain-gpt2"] = "pretrain-gpt2"
    data: TextRecipe = TextRecipe()
    tokenizer: PieceRecipe = PieceRecipe()
    model: FamilyRecipe = FamilyRecipe()
    train: LanguageTrainRecipe = LanguageTrainRecipe()
    evaluate: TextEvaluateRecipe = TextEvaluateRecipe()


class PreparedLanguage(Prepared):
    """Text cut into three sets, and a tokenizer; a subclass says which model."""

    def __init__(
        self,
        recipe: Any,
        tools: Tools,
        *,
        splits: TextSplits,
        report: dict[str, Any],
        tokenizer: TextTokenizer,
    ) -> None:
        self.recipe, self.tools = recipe, tools
        self.splits, self.report, self.tokenizer = splits, report, tokenizer

    @property
    def length(self) -> int:
        """Ids in a row."""
        raise NotImplementedError

    def start(self) -> tuple[Any, dict[str, float]]:
        """The model before its first step, and the factors of its rates."""
        raise NotImplementedError

    def job(self, device: str) -> Job:
        train = self.recipe.train
        torch.manual_seed(train.seed)
        model, factors = self.start()
        model = model.to(device)
        held_out = first_bytes(self.splits.validation, self.recipe.evaluate.max_bytes)
        return Job(
            model=model,
            stream=self._stream(self._rows(self.splits.train, model)),
            validation=self._rows(held_out, model).batches(ROWS_A_BATCH),
            loss=next_token_loss,
            measures=lambda found: measured(found, n_bytes(held_out)),
            factors=factors,
            compiled=lambda: partial(next_token_loss, hidden=torch.compile(model.real_hidden)),
        )

    def _rows(self, documents: list[Document], model: Any) -> TokenRows:
        # Can its attention keep documents apart, and shall it?
        apart = self.apart and getattr(model, "keeps_apart", True)
        whole = apart and "documents" in inspect.signature(model.hidden).parameters
        texts = [document.text for document in documents]
        return TokenRows(texts, self.tokenizer, length=self.length, whole=whole)

    def _stream(self, rows: TokenRows) -> Stream:
        train = self.recipe.train
        by_tokens = train.batch_tokens is not None
        size = max(train.batch_tokens // rows.length, 1) if by_tokens else train.batch_sentences
        size = size or ROWS_A_BATCH

        def order(epoch: int) -> list[list[int]]:
            return rows.order(size, train.seed, epoch)

        def collate(numbers: list[int], epoch: int) -> PackedBatch:
            return rows.batch(rows.epoch(train.seed, epoch)[numbers])

        rule = (rows.length, rows.whole, size, train.seed)
        content = (rows.ids.tobytes(), rows.ends.tobytes())
        return Stream(order, collate, fingerprint=fingerprint_of(rule, content))

    def write(self, folder: Path) -> None:
        self.tokenizer.save(folder, model_max_length=self.length)

    def save(self, model: Any, folder: Path) -> None:
        self.tools.save(model, self.tokenizer, folder)

    def evaluate(self, model: Any, split: str) -> Scores:
        """loss and perplexity of a piece, bits_per_byte, and how many of each there are."""
        parts = self.splits._asdict()
        if split not in parts:
            raise UserError(f"There is no split {split!r}; there are {', '.join(parts)}.")
        documents = first_bytes(parts[split], self.recipe.evaluate.max_bytes)
        batches = self._rows(documents, model).batches(ROWS_A_BATCH)
        found = evaluate_parts(model, batches, loss=next_token_loss, precision="fp32")
        size = n_bytes(documents)
        n_tokens = sum(batch.n_target for batch in batches)
        return measured(found, size) | {"tokens": n_tokens, "bytes": size}


def measured(found: Any, size: int) -> Scores:
    """loss, perplexity, and bits per byte: Σ −log2 p / bytes, the ends of texts included."""
    (only,) = found.values()
    return loss_and_perplexity(found) | {"bits_per_byte": only.nll / math.log(2) / max(size, 1)}


class PreparedGPT2(PreparedLanguage):
    """A decoder that starts from nothing."""

    @property
    def length(self) -> int:
        return int(self.recipe.model.max_len)

    @property
    def config(self) -> Any:
        first, last = edges(self.tokenizer)
        ids = {"bos_id": first, "eos_id": last, "pad_id": self.tokenizer.pad_id}
        ids = {name: value for name, value in ids.items() if value is not None}
        return self.recipe.model.config(FAMILIES, vocab_size=self.tokenizer.vocab_size, **ids)

    def start(self) -> tuple[Any, dict[str, float]]:
        return MODELS[self.recipe.model.family].model(self.config), {}

    def introduction(self) -> list[str]:
        m, config = self.recipe.model, self.config
        with torch.device("meta"):
            n = sum(p.numel() for p in MODELS[m.family].model(config).parameters())
        return [
            *sizes_text(self.report),
            f"Model: {m.family}, {n:,} parameters, {config.vocab_size:,} pieces, rows of "
            f"{self.length}",
        ]


def prepare(recipe: LanguageRecipe, begun: Path | None, tools: Tools) -> PreparedGPT2:
    """Raises UserError: the files, the sizes or the numbers are wrong."""
    splits, report = read_texts(recipe.data)
    tokenizer = TextTokenizer.load(begun) if begun else learnt(recipe.tokenizer, splits)
    report["vocabulary"] = tokenizer.vocab_size
    made = PreparedGPT2(recipe, tools, splits=splits, report=report, tokenizer=tokenizer)
    _ = made.config  # what does not fit is told before anything is written
    return made


KIND = JobKind(LanguageRecipe, prepare, verb="generate", unit="tokens")
