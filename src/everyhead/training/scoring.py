"""BLEU and chrF by sacreBLEU, with its signature (Post 2018, 1804.08771)."""

from collections.abc import Sequence
from typing import Any

from everyhead.errors import UserError


def score_translations(
    translations: Sequence[str], references: Sequence[str], *, tokenize: str, n_bootstrap: int = 0
) -> dict[str, Any]:
    """bleu, chrf and their signatures; with n_bootstrap the 95 % interval bleu_low … bleu_high.

    The interval (Koehn 2004) is of sacreBLEU's resampling of the sentences, with its seed; one
    sentence has none.

    Raises:
        UserError: sacreBLEU is not installed, or has no such tokenizer here.
        ValueError: not as many translations as references, or none.
    """
    if len(translations) != len(references) or not references:
        raise ValueError(
            f"{len(translations)} translations and {len(references)} references: give as many of "
            "each, at least one"
        )
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise UserError(
            "Scores need sacreBLEU; install it with: pip install 'everyhead[train]'"
        ) from error
    if tokenize not in BLEU.TOKENIZERS:
        names = ", ".join(sorted(BLEU.TOKENIZERS))
        raise UserError(f"sacreBLEU has no tokenizer {tokenize!r}; there are {names}.")
    texts = list(translations), [list(references)]
    try:
        bleu, chrf = BLEU(tokenize=tokenize), CHRF()
    except (ImportError, RuntimeError, OSError) as error:  # some need a package or a download
        reason = " ".join(str(error).split())
        raise UserError(
            f"sacreBLEU's tokenizer {tokenize!r} cannot be used here: {reason}"
        ) from error
    many = n_bootstrap if len(references) > 1 else 0
    found = bleu.corpus_score(*texts, n_bootstrap=max(many, 1))
    scores: dict[str, Any] = {
        "bleu": round(found.score, 2),
        "chrf": round(chrf.corpus_score(*texts).score, 2),
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }
    if many:
        low, high = max(0.0, found._mean - found._ci), found._mean + found._ci
        scores |= {"bleu_low": round(low, 2), "bleu_high": round(high, 2)}
    return scores
