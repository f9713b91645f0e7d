"""The job of text to text: a model of two halves goes on from its weights with pairs of texts.

    loss = −Σ_t log p(y_t | y_<t, x) / Σ 1        x: prefix and input, y: its target

Raffel et al. 2020 (1910.10683) section 2.4: every task is text in and text out, a class is its name
written out, and a prefix says which task it is. The model is a T5 or a translator: a run, a folder.
`exact` is the share of targets that greedy search writes to the last piece, which teacher forcing
tells as well: it does so if each piece is the likeliest after the right ones before it.
"""

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from everyhead.data.batching import Batch, BatchPlan, EncodedPairs, collate
from everyhead.data.labelled import Labelled, LabelledSplits, deduplicated, split_labelled
from everyhead.data.labelled_corpora import CORPORA, load_labelled
from everyhead.data.pairs import read_tsv
from everyhead.data.sides import Sides, sides_of
from everyhead.data.text import is_blank
from everyhead.errors import UserError
from everyhead.training.job import Job, JobKind, Prepared, Scores, Tools, loss_and_perplexity
from everyhead.training.jobs.text_recipe import ReadTrainRecipe
from everyhead.training.losses import batch_loss
from everyhead.training.sections import Recipe, Rivals, Section, Share
from everyhead.training.step import evaluate_parts
from everyhead.training.stream import BatchStream
from everyhead.training.tuning import tuned

EVALUATED = 4096  # tokens in a batch where nothing is learnt


class PairsRecipe(Section):
    """Files of lines `input TAB target`, or labelled texts, whose target is the label's name."""

    corpus: str | None = None
    files: list[str] = Field(default_factory=list)
    prefix: str = ""  # before every input, for a model that learns several tasks
    validation_share: float = Field(default=0.1, gt=0, lt=0.5)
    test_share: float = Field(default=0.1, gt=0, lt=0.5)


class HalvesRecipe(Section):
    """The model to go on from: a run or a folder."""

    start: str = "runs/pretrain-t5"
    max_len: int = Field(default=128, ge=2)  # pieces of either side; longer pairs are left out
    dropout: Share | None = None  # by default the model's own


class PairsTrainRecipe(ReadTrainRecipe):
    best: Literal["loss", "exact"] = "exact"


class TunePairsRecipe(Recipe):
    """Going on from a model of two halves with pairs of texts."""

    rivals: ClassVar[tuple[Rivals, ...]] = (*Recipe.rivals, (("data.corpus",), ("data.files",)))

    job: Literal["tune-pairs"] = "tune-pairs"
    data: PairsRecipe = PairsRecipe()
    model: HalvesRecipe = HalvesRecipe()
    train: PairsTrainRecipe = PairsTrainRecipe()


class PreparedPairs(Prepared):
    """Pairs cut into three sets, and the tokenizer of the model to go on from."""

    def __init__(
        self,
        recipe: TunePairsRecipe,
        tools: Tools,
        *,
        splits: LabelledSplits,
        report: dict[str, Any],
        config: Any,
        tokenizer: Any,
    ) -> None:
        self.recipe, self.tools = recipe, tools
        self.splits, self.report, self.config = splits, report, config
        self.tokenizer = tokenizer
        self.ids, self.report["longer_than_max_len"] = self._encoded(splits.train)

    def introduction(self) -> list[str]:
        origin = self.report["origin"]
        lines = [f"Data: {origin['attribution']}"] if origin.get("attribution") else []
        sizes = (f"{name} {part.size:,}" for name, part in self.splits._asdict().items())
        left_out = self.report["pairs"]["duplicate"]
        told = f"; {left_out:,} that were there already are left out" if left_out else ""
        lines.append("Pairs: " + ", ".join(sizes) + told)
        return [*lines, f"Model: {self.recipe.model.start}, {self.config.vocab_size:,} pieces"]

    def job(self, device: str) -> Job:
        train = self.recipe.train
        torch.manual_seed(train.seed)
        model = _opened(self.recipe, self.tools)[0].to(device).train()
        by_rows = train.batch_tokens is None
        plan = BatchPlan(
            self.ids.source_lengths,
            self.ids.target_lengths,
            batch_tokens=train.batch_tokens,
            batch_sentences=(train.batch_sentences or 32) if by_rows else None,
            seed=train.seed,
            sort=train.sort,
        )
        validation = self._held_out("validation")
        return Job(
            model=model,
            stream=BatchStream(self.ids, plan, config=self.config),
            validation=validation,
            loss=batch_loss,
            score=lambda model: {"exact": exact(model, validation)},
            factors=tuned(model, train),
        )

    def _encoded(self, data: Labelled) -> tuple[EncodedPairs, int]:
        sides: Sides = sides_of(self.tokenizer)
        prefix = self.recipe.data.prefix
        ids = EncodedPairs(
            sides.source.encode_batch([prefix + text for text in data.texts]),
            sides.target.encode_batch(data.labels),
        )
        short, n_long = ids.within(self.recipe.model.max_len)
        if not short.size:
            raise UserError(
                f"All {n_long} pairs of a set are longer than model.max_len "
                f"{self.recipe.model.max_len} pieces; raise it."
            )
        return short, n_long

    def _held_out(self, split: str) -> list[Batch]:
        parts = self.splits._asdict()
        if split not in parts:
            raise UserError(f"There is no split {split!r}; there are {', '.join(parts)}.")
        ids, c = self._encoded(parts[split])[0], self.config
        plan = BatchPlan(ids.source_lengths, ids.target_lengths, batch_tokens=EVALUATED, seed=0)
        own = {"pad_id": c.pad_id, "source_pad_id": c.source_pad_id, "eos_id": c.eos_id}
        return [collate(ids, rows, **own) for rows in plan.epoch(0)]

    def write(self, folder: Path) -> None:
        self.tokenizer.save(folder, model_max_length=self.config.max_len)

    def save(self, model: Any, folder: Path) -> None:
        self.tools.save(model, self.tokenizer, folder)

    def evaluate(self, model: Any, split: str) -> Scores:
        """loss, perplexity, exact, and what the most frequent target of training would get."""
        batches, part = self._held_out(split), self.splits._asdict()[split]
        found = evaluate_parts(model, batches, loss=batch_loss, precision="fp32")
        (usual, _), *_ = Counter(self.splits.train.labels).most_common(1)
        majority = sum(label == usual for label in part.labels) / part.size
        n = sum(batch.n_sentences for batch in batches)
        scores = loss_and_perplexity(found) | {"exact": exact(model, batches)}
        return scores | {"exact_majority": majority, "pairs": n}


@torch.no_grad()
def exact(model: Any, batches: list[Batch]) -> float:
    """The share of targets that greedy search writes as they are; the model is in eval mode."""
    right = n = 0
    device = next(model.parameters()).device
    for batch in (batch.to(device) for batch in batches):
        logits = model(batch.source, batch.target_in, batch.source_mask, batch.target_mask)
        wrong = (logits.argmax(-1) != batch.labels) & batch.target_mask
        right += int((~wrong.any(1)).sum())
        n += wrong.shape[0]
    return right / max(n, 1)


def read_pairs(data: PairsRecipe) -> tuple[LabelledSplits, dict[str, Any]]:
    """The recipe's pairs, each once, cut by a hash of the input: an input is in one set alone.

    Raises:
        UserError: no such corpus, a file is missing or broken, or too few pairs are left.
    """
    origin: dict[str, Any] = {"files": data.files}
    if data.files:
        rows = [row for name in data.files for row in read_tsv(Path(name)).rows()]
        rows = [row for row in rows if not any(map(is_blank, row))]
        kept = list(dict.fromkeys(rows))  # an input may have several targets
        pairs = Labelled([source for source, _ in kept], [target for _, target in kept])
        counts = {"read": len(rows), "duplicate": len(rows) - len(kept), "kept": len(kept)}
    elif data.corpus is None:
        raise UserError("The recipe names no pairs: give --data FILE with input TAB target lines.")
    else:
        pairs, counts = deduplicated(load_labelled(data.corpus))
        origin = {"corpus": data.corpus} | CORPORA[data.corpus].origin
    splits = split_labelled(pairs, validation=data.validation_share, test=data.test_share)
    sizes = {name: part.size for name, part in splits._asdict().items()}
    if not all(sizes.values()):
        told = ", ".join(f"{n} for {name}" for name, n in sizes.items())
        raise UserError(f"Too few pairs for three sets: {told}. Give more, or larger shares.")
    return splits, {"origin": origin, "pairs": counts, "splits": sizes}


def _opened(recipe: TunePairsRecipe, tools: Tools) -> tuple[Any, Any]:
    m, opens = recipe.model, tools.open
    return opens(m.start, changes=None if m.dropout is None else {"dropout": m.dropout})


def prepare(recipe: TunePairsRecipe, begun: Path | None, tools: Tools) -> PreparedPairs:
    """Raises UserError: the pairs are wrong, or the model has no two halves."""
    splits, report = read_pairs(recipe.data)
    model, tokenizer = _opened(recipe, tools)
    if not hasattr(model, "encode") or not hasattr(model, "real_hidden"):
        raise UserError(
            f"model.start {recipe.model.start} is a {type(model).__name__}, which has no two "
            "halves: give a T5 or a translation model, such as a run of pretrain-t5."
        )
    return PreparedPairs(
        recipe, tools, splits=splits, report=report, config=model.config, tokenizer=tokenizer
    )


KIND = JobKind(TunePairsRecipe, prepare, verb="translate", unit="target tokens")
