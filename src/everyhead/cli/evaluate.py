"""everyhead evaluate: scores of a run on its held-out data."""

import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everyhead.cli.methods import Attention, method, side_by_side, swapped
from everyhead.cli.options import Beam, Device, LengthPenalty, Run, Threads
from everyhead.errors import UserError

if TYPE_CHECKING:
    from everyhead.cli.opened import Opened

MOST_RESAMPLED = 10_000  # sentences: sacreBLEU keeps 40 kB a sentence for its interval


def evaluate(
    run: Run,
    split: Annotated[str, typer.Option(metavar="NAME", help="test, validation or train.")] = "test",
    pairs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Other pairs instead: source TAB target, one a line."),
    ] = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    attention: Attention = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Score a run on what it did not learn from; of a translation BLEU, chrF, loss, perplexity.

    BLEU, with its 95 % interval, and chrF are sacreBLEU's, with its signature. Other jobs have
    their own scores (accuracy, bits per byte …). With --attention METHOD the scores stand side by
    side, with the model's own attention and with the other; of a translation loss and perplexity.
    """
    from everyhead.cli.held_out import held_out
    from everyhead.cli.opened import open_run

    if attention is not None:
        method(attention)  # what is misspelt is told before anything is read
    opened = open_run(run, device=device, threads=threads)
    if opened.recipe is not None and opened.recipe.job != "translate":
        if not (pairs is None and beam is None and length_penalty is None):
            raise UserError(
                f"--pairs, --beam and --length-penalty are of translations; {run} learnt to "
                f"{opened.recipe.job}: leave them out."
            )
        if attention is not None:
            of_rows = partial(_scores_of, opened, split)
            print(_compared(opened, split, attention, of_rows, as_json=as_json))
            return
        scores = {"split": split, **_scores_of(opened, split)}
        print(_json(scores) if as_json else _lines(scores))
        return
    source, references = held_out(opened, split, pairs)
    of = split if pairs is None else str(pairs)
    if attention is not None:
        if not (beam is None and length_penalty is None):
            raise UserError(
                "--attention compares losses, which no search is part of: leave out --beam and "
                "--length-penalty."
            )
        losses = partial(_losses, opened, source, references)
        print(_compared(opened, of, attention, lambda _: losses(), as_json=as_json))
        return
    scores, _ = scored(opened, source, references, beam=beam, length_penalty=length_penalty)
    scores = {"split": of, **scores}
    print(_json(scores) if as_json else _table(scores))


def _compared(
    opened: "Opened",
    split: str,
    attention: str,
    scorer: Callable[[bool], dict[str, Any]],
    *,
    as_json: bool,
) -> str:
    """The scores as the model is and with another attention, over the same rows of text."""
    swapped(opened.model, attention)  # what is refused is refused before anything is scored
    apart = bool(getattr(opened.model, "keeps_apart", True))
    changed = scorer(apart)
    swapped(opened.model, "exact")
    plain = scorer(apart)
    if as_json:
        return _json({"split": split, **plain, "attention": attention, "with_attention": changed})
    return f"{side_by_side(attention, plain, changed)}\non {split}"


def _scores_of(opened: "Opened", split: str, apart: bool = True) -> dict[str, Any]:
    """The scores of any job but translation. apart: rows may hold several documents."""
    from everyhead.cli.held_out import warn_if_others
    from everyhead.cli.train import tools
    from everyhead.training.run import prepare

    assert opened.recipe is not None
    prepared = prepare(opened.recipe, opened.folder, tools())
    warn_if_others(opened.folder, prepared.report)
    prepared.apart = apart
    found = prepared.evaluate(opened.model, split)
    return {key: _finite(value) for key, value in found.items()}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(scores: dict[str, Any]) -> str:
    return json.dumps(scores, ensure_ascii=False, allow_nan=False)


def _lines(scores: dict[str, Any]) -> str:
    from everyhead.cli.progress import named, shown

    split, *metrics = scores.items()
    width = 2 + max(len(named(metric)) for metric, _ in metrics)
    lines = [
        f"{named(metric):<{width}}"
        f"{shown(metric, value) if isinstance(value, int | float) else value or 'not finite'}"
        for metric, value in metrics
    ]
    return "\n".join([*lines, f"on {split[1]}"])


def scored(
    opened: "Opened",
    source: list[str],
    references: list[str],
    *,
    beam: int | None = None,
    length_penalty: float | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """The scores (bleu, chrf, loss, perplexity …) and the translations they are of."""
    from everyhead.generation.search import check_options
    from everyhead.generation.translate import translate
    from everyhead.models.prepare import prepare
    from everyhead.training.scoring import score_translations

    settings = opened.evaluation
    beam = settings.beam if beam is None else beam
    alpha = settings.length_penalty if length_penalty is None else length_penalty
    check_options(beam=beam, length_penalty=alpha, n_best=1)
    score_translations(references[:1], references[:1], tokenize=settings.tokenize)  # fails early
    losses = _losses(opened, source, references)
    model = prepare(opened.model)
    found = translate(model, opened.tokenizer, source, beam=beam, length_penalty=alpha)
    n_bootstrap = 1000 if len(source) <= MOST_RESAMPLED else 0
    scores = score_translations(
        found, references, tokenize=settings.tokenize, n_bootstrap=n_bootstrap
    )
    return {**scores, **losses, "sentences": len(source), "beam": beam}, found


def _losses(opened: "Opened", source: list[str], references: list[str]) -> dict[str, Any]:
    """Loss and perplexity; null where they are no finite number, for JSON has none."""
    from everyhead.data.batching import encode_pairs
    from everyhead.data.pairs import Pairs
    from everyhead.training.jobs.translate import validation_batches
    from everyhead.training.losses import batch_loss
    from everyhead.training.metrics import perplexity
    from everyhead.training.step import evaluate_loss

    config = opened.model.config
    ids, n_long = encode_pairs(Pairs(source, references), opened.tokenizer).within(config.max_len)
    if not ids.size:
        raise UserError(
            f"All {n_long} pairs are longer than the {config.max_len} pieces the model takes; "
            "split them into sentences."
        )
    if n_long:
        print(
            f"everyhead: {n_long} pairs are longer than the {config.max_len} pieces the model "
            "takes: they are not in the loss, and only their beginning is translated.",
            file=sys.stderr,
        )
    batches = validation_batches(ids, config)
    nll, n_tokens = evaluate_loss(opened.model, batches, "fp32", loss=batch_loss)
    values = {"loss": nll / n_tokens, "perplexity": perplexity(nll, n_tokens)}
    return {key: _finite(value) for key, value in values.items()} | {"tokens": n_tokens}


def _table(scores: dict[str, Any]) -> str:
    low, high = scores.get("bleu_low"), scores.get("bleu_high")
    interval = "" if low is None else f"  (95 % {low:.2f} … {high:.2f})"
    loss, perplexity = (
        "not finite" if scores[key] is None else f"{scores[key]:.{digits}f}"
        for key, digits in (("loss", 4), ("perplexity", 2))
    )
    return "\n".join(
        [
            f"BLEU        {scores['bleu']:.2f}{interval}",
            f"chrF        {scores['chrf']:.2f}",
            f"loss        {loss} nats per token",
            f"perplexity  {perplexity}",
            f"{scores['sentences']:,} sentences of {scores['split']}, beam {scores['beam']}; "
            f"{scores['bleu_signature']}",
        ]
    )
