"""A run from its recipe: pairs, tokenizer, model and batches, and what lies in the run's folder.

    recipe → pairs cut and filtered → tokenizer learnt → ids → model → Trainer

Each step is a function of the recipe alone, so a resumed run rebuilds the same state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from everyhead.data.batching import Batch, BatchPlan, EncodedPairs, collate, encode_pairs
from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.data.pairs import PairFilter
from everyhead.data.splits import Splits
from everyhead.data.translation import PairSource, SplitRule, prepare_pairs
from everyhead.errors import UserError
from everyhead.files import atomic_write_json, atomic_write_text
from everyhead.models.transformer import Transformer, TransformerConfig
from everyhead.training import metrics
from everyhead.training.checkpoints import FOLDER, complete_checkpoints
from everyhead.training.listener import Listener
from everyhead.training.loop import Scores, Trainer
from everyhead.training.recipe import Recipe, load_recipe, recipe_text
from everyhead.training.sections import DataRecipe
from everyhead.training.stream import BatchStream

RECIPE, DATA = "recipe.toml", "data.json"
VALIDATION_TOKENS = 4096


@dataclass
class Prepared:
    """All that stands before the first step."""

    recipe: Recipe
    splits: Splits
    report: dict[str, Any]
    tokenizer: PairTokenizer
    ids: EncodedPairs
    config: TransformerConfig


def prepare(recipe: Recipe, tokenizer: PairTokenizer | None = None) -> Prepared:
    """Pairs, tokenizer and the model's numbers. A tokenizer given is used instead of learnt.

    Raises:
        UserError: the files, the sizes or the numbers are wrong.
    """
    splits, report = read_splits(recipe.data)
    if tokenizer is None:
        t = recipe.tokenizer
        tokenizer = PairTokenizer.train(
            splits.train.source,
            splits.train.target,
            kind=t.kind,
            vocab_size=t.vocab_size,
            shared=t.shared,
            min_count=t.min_count,
        )
    source_size = None if tokenizer.shared else tokenizer.source.vocab_size
    config = recipe.model.config(tokenizer.target.vocab_size, source_size)
    ids, n_long = encode_pairs(splits.train, tokenizer).within(config.max_len)
    if not ids.size:
        raise UserError(
            f"All {n_long} training pairs are longer than model.max_len {config.max_len} pieces; "
            "raise it or split the lines into sentences."
        )
    report |= {"longer_than_max_len": n_long, "vocabulary": tokenizer.target.vocab_size}
    return Prepared(recipe, splits, report, tokenizer, ids, config)


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


def validation_batches(ids: EncodedPairs, config: TransformerConfig) -> list[Batch]:
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


def make_trainer(
    prepared: Prepared,
    run: Path,
    *,
    device: str = "cpu",
    save: Callable[[Transformer], None],
    score: Callable[[Transformer], Scores] | None = None,
    listener: Listener | None = None,
) -> Trainer:
    """The trainer of a prepared run; the model's start is drawn from the recipe's seed."""
    train, config = prepared.recipe.train, prepared.config
    torch.manual_seed(train.seed)
    model = Transformer(config).to(device)
    by_tokens = train.batch_sentences is None
    plan = BatchPlan(
        prepared.ids.source_lengths,
        prepared.ids.target_lengths,
        batch_tokens=(train.batch_tokens or 4096) if by_tokens else None,
        batch_sentences=train.batch_sentences,
        seed=train.seed,
        sort=train.sort,
    )
    held_out, n_long = encode_pairs(prepared.splits.validation, prepared.tokenizer).within(
        config.max_len
    )
    if not held_out.size:
        raise UserError(
            f"All {n_long} validation pairs are longer than model.max_len {config.max_len} pieces; "
            "raise it or give shorter ones."
        )
    return Trainer(
        model,
        BatchStream(prepared.ids, plan, config=config),
        recipe=train,
        run=run,
        validation=validation_batches(held_out, config),
        save=save,
        score=score,
        listener=listener,
    )


def write_beginnings(run: Path, prepared: Prepared) -> None:
    """data.json, the corpus' attribution where it asks for it, and last recipe.toml.

    A folder with a recipe.toml is a run that has begun, so whatever else it needs comes before.
    """
    run.mkdir(parents=True, exist_ok=True)
    atomic_write_json(run / DATA, prepared.report)
    origin = prepared.report.get("origin", {})
    if origin.get("attribution"):
        words = f"{origin['attribution']}\nLicence: {origin['licence']}\n"
        atomic_write_text(run / "DATA-LICENCE.txt", words)
    atomic_write_text(run / RECIPE, recipe_text(prepared.recipe))


def is_run(run: Path) -> bool:
    """Has training begun in this folder?"""
    return (run / RECIPE).is_file() or bool(complete_checkpoints(run))


def run_recipe(run: Path) -> Recipe:
    """The recipe that lies in the run.

    Raises:
        UserError: the folder is no run.
    """
    if not (run / RECIPE).is_file():
        raise UserError(f"{run} is no run of everyhead's: it has no {RECIPE}.")
    return load_recipe(str(run / RECIPE))


def clear(run: Path) -> None:
    """Remove the checkpoints and rows of an earlier training in this folder."""
    import shutil

    shutil.rmtree(run / FOLDER, ignore_errors=True)
    (run / metrics.FILE).unlink(missing_ok=True)


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


def _given(names: list[str]) -> PairSource | None:
    if not names:
        return None
    if len(names) == 1:
        return PairSource(pairs=Path(names[0]))
    return PairSource(source=Path(names[0]), target=Path(names[1]))
