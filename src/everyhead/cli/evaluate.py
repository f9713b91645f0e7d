"""everyhead evaluate: scores of a run on its held-out pairs."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from everyhead.errors import UserError

SPLITS = ("test", "validation", "train")


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    split: Annotated[str, typer.Option(help="test, validation or train.")] = "test",
    pairs: Annotated[
        Path | None, typer.Option(help="Other pairs instead: source TAB target, one a line.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Beams; by default the recipe's.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="By default the recipe's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Processor threads.")] = None,
) -> None:
    """sacreBLEU with its 95 % interval and signature, chrF, loss and perplexity."""
    from everyhead.cli.opened import open_run

    opened = open_run(run, device=device, threads=threads)
    source, references = held_out(opened, split, pairs)
    scores, _ = scored(opened, source, references, beam=beam, length_penalty=length_penalty)
    scores = {"split": split if pairs is None else str(pairs), **scores}
    if as_json:
        print(json.dumps(scores, ensure_ascii=False))
        return
    interval = f"  (95 % {scores['bleu_low']:.2f} … {scores['bleu_high']:.2f})"
    print(f"BLEU        {scores['bleu']:.2f}{interval if 'bleu_low' in scores else ''}")
    print(f"chrF        {scores['chrf']:.2f}")
    print(f"loss        {scores['loss']:.4f} nats per token")
    print(f"perplexity  {scores['perplexity']:.2f}")
    print(f"{scores['sentences']:,} sentences, beam {scores['beam']}; {scores['bleu_signature']}")


def held_out(opened: Any, split: str, pairs: Path | None = None) -> tuple[list[str], list[str]]:
    """The run's pairs of that split, or those of the file.

    Raises:
        UserError: no such split, or the folder has no recipe to cut pairs by.
    """
    if pairs is not None:
        from everyhead.data.pairs import filter_pairs, read_tsv
        from everyhead.data.translation import GIVEN

        given, _ = filter_pairs(read_tsv(pairs), GIVEN)
        if not given.source:
            raise UserError(f"{pairs} holds no pair to score.")
        return given.source, given.target
    if split not in SPLITS:
        raise UserError(f"There is no split {split!r}; there are {', '.join(SPLITS)}.")
    if opened.recipe is None:
        raise UserError(
            f"{opened.folder} is a model without a recipe, so it has no held-out pairs: "
            "give some with --pairs."
        )
    from everyhead.training.run import read_splits

    chosen = getattr(read_splits(opened.recipe.data)[0], split)
    if not chosen.source:
        raise UserError(f"The {split} split of {opened.folder} is empty.")
    return chosen.source, chosen.target


def scored(
    opened: Any,
    source: list[str],
    references: list[str],
    *,
    beam: int | None = None,
    length_penalty: float | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """The scores (bleu, chrf, loss, perplexity …) and the translations they are of."""
    from everyhead.data.batching import encode_pairs
    from everyhead.data.pairs import Pairs
    from everyhead.generation.translate import translate
    from everyhead.training.metrics import perplexity
    from everyhead.training.run import validation_batches
    from everyhead.training.scoring import score_translations
    from everyhead.training.step import evaluate_loss

    settings = opened.evaluation
    beam = settings.beam if beam is None else beam
    alpha = settings.length_penalty if length_penalty is None else length_penalty
    config = opened.model.config
    ids, n_long = encode_pairs(Pairs(source, references), opened.tokenizer).within(config.max_len)
    if n_long:
        print(f"{n_long} pairs are over max_len and not in the loss.", file=sys.stderr)
    nll, n_tokens = evaluate_loss(opened.model, validation_batches(ids, config), "fp32")
    found = translate(opened.model, opened.tokenizer, source, beam=beam, length_penalty=alpha)
    scores = score_translations(found, references, tokenize=settings.tokenize, n_bootstrap=1000)
    facts = {"loss": nll / n_tokens, "perplexity": perplexity(nll, n_tokens), "tokens": n_tokens}
    return {**scores, **facts, "sentences": len(source), "beam": beam}, found
