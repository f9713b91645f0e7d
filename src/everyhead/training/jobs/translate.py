"""The job of translation: pairs cut and filtered → tokenizer learnt → ids → model → batches.

Each step is a function of the recipe alone, so a resumed run rebuilds the same state.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from everyhead.data.batching import Batch, BatchPlan, EncodedPairs, collate, encode_pairs
from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.data.pairs import FilterCounts, PairFilter
from everyhead.data.splits import Splits, fingerprint
from everyhead.data.translation import PairSource, SplitRule, counts_text, prepare_pairs
from everyhead.errors import UserError
from everyhead.models import MODELS
from everyhead.training.job import Job, JobKind, Prepared, Tools
from everyhead.training.jobs.translate_recipe import FINGERPRINT, DataRecipe, TranslateRecipe
from everyhead.training.losses import batch_loss
from everyhead.training.stream import BatchStream

VALIDATION_TOKENS = 4096


class PreparedTranslation(Prepared):
    """Pairs, tokenizer and the model's numbers."""

    def __init__(
        self,
        recipe: TranslateRecipe,
        tools: Tools,
        *,
        splits: Splits,
        report: dict[str, Any],
        tokenizer: PairTokenizer,
        ids: EncodedPairs,
        config: Any,
    ) -> None:
        self.recipe, self.tools = recipe, tools
        self.splits, self.report, self.tokenizer = splits, report, tokenizer
        self.ids, self.config = ids, config

    def introduction(self) -> list[str]:
        lines, origin = [], self.report["origin"]
        if origin.get("attribution"):
            lines.append(f"Data: {origin['attribution']}")
        lines.append(f"Pairs: {counts_text(FilterCounts(**self.report['filters']))}")
        sizes = self.report["splits"]
        parts = (f"{sizes[k]:,} {k}" for k in ("train", "validation", "test"))
        lines.append("Split: " + ", ".join(parts))
        c = self.config
        kind = f"{c.n_heads} heads" if hasattr(c, "n_heads") else c.cell
        lines.append(
            f"Model: {c.n_encoder_layers}+{c.n_decoder_layers} layers, d_model {c.d_model}, "
            f"{kind}, {c.vocab_size:,} pieces"
        )
        return lines

    def job(self, device: str) -> Job:
        train, config = self.recipe.train, self.config
        torch.manual_seed(train.seed)
        model: Any = MODELS[self.recipe.model.family].model(config).to(device)
        by_tokens = train.batch_sentences is None
        plan = BatchPlan(
            self.ids.source_lengths,
            self.ids.target_lengths,
            batch_tokens=(train.batch_tokens or 4096) if by_tokens else None,
            batch_sentences=train.batch_sentences,
            seed=train.seed,
            sort=train.sort,
        )
        return Job(
            model=model,
            stream=BatchStream(self.ids, plan, config=config),
            validation=validation_batches(self._held_out(), config),
            loss=batch_loss,
            compiled=lambda: partial(batch_loss, hidden=torch.compile(model.real_hidden)),
        )

    def _held_out(self) -> EncodedPairs:
        longest = self.config.max_len
        held_out, n_long = encode_pairs(self.splits.validation, self.tokenizer).within(longest)
        if not held_out.size:
            raise UserError(
                f"All {n_long} validation pairs are longer than model.max_len {longest} pieces; "
                "raise it or give shorter ones."
            )
        return held_out

    def write(self, folder: Path) -> None:
        self.tokenizer.save(folder, model_max_length=self.config.max_len)

    def save(self, model: Any, folder: Path) -> None:
        self.tools.save(model, self.tokenizer, folder)


def prepare(recipe: TranslateRecipe, begun: Path | None, tools: Tools) -> PreparedTranslation:
    """Pairs, tokenizer and the model's numbers; a run that has begun has its tokenizer.

    Raises:
        UserError: the files, the sizes or the numbers are wrong.
    """
    splits, report = read_splits(recipe.data)
    tokenizer = PairTokenizer.load(begun) if begun else _learnt(recipe, splits)
    source_size = None if tokenizer.shared else tokenizer.source.vocab_size
    config = recipe.model.config(tokenizer.target.vocab_size, source_size)
    ids, n_long = encode_pairs(splits.train, tokenizer).within(config.max_len)
    if not ids.size:
        raise UserError(
            f"All {n_long} training pairs are longer than model.max_len {config.max_len} pieces; "
            "raise it or split the lines into sentences."
        )
    report |= {"longer_than_max_len": n_long, "vocabulary": tokenizer.target.vocab_size}
    report[FINGERPRINT] = fingerprint(splits)
    return PreparedTranslation(
        recipe, tools, splits=splits, report=report, tokenizer=tokenizer, ids=ids, config=config
    )


def _learnt(recipe: TranslateRecipe, splits: Splits) -> PairTokenizer:
    t = recipe.tokenizer
    return PairTokenizer.train(
        splits.train.source,
        splits.train.target,
        kind=t.kind,
        vocab_size=t.vocab_size,
        shared=t.shared,
        min_count=t.min_count,
    )


def read_splits(recipe: DataRecipe) -> tuple[Splits, dict[str, Any]]:
    """The recipe's pairs, filtered and cut into training, validation and test.

    Raises:
        UserError: a file is missing or broken, or too little is left.
    """
    origin = PairSource(
        corpus=recipe.corpus,
        pairs=_path(recipe.pairs),
        source=_path(recipe.source),
        target=_path(recipe.target),
    )
    prepared = prepare_pairs(
        origin,
        validation=_given(recipe.validation),
        test=_given(recipe.test),
        keep=PairFilter(max_bytes=recipe.max_bytes, max_ratio=recipe.max_ratio),
        rule=SplitRule(
            validation=recipe.validation_share,
            test=recipe.test_share,
            block=recipe.block,
            every=recipe.every,
        ),
    )
    return prepared.splits, prepared.report


def validation_batches(ids: EncodedPairs, config: Any) -> list[Batch]:
    """Batches of held-out pairs by a token budget, in a fixed order."""
    plan = BatchPlan(ids.source_lengths, ids.target_lengths, batch_tokens=VALIDATION_TOKENS, seed=0)
    return [
        collate(
            ids,
            rows,
            pad_id=config.pad_id,
            source_pad_id=config.source_pad_id,
            eos_id=config.eos_id,
        )
        for rows in plan.epoch(0)
    ]


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


def _given(names: list[str]) -> PairSource | None:
    if not names:
        return None
    if len(names) == 1:
        return PairSource(pairs=Path(names[0]))
    return PairSource(source=Path(names[0]), target=Path(names[1]))


KIND = JobKind(TranslateRecipe, prepare, verb="translate", unit="target tokens")
