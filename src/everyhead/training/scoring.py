"""BLEU and chrF by sacreBLEU, with its signature (Post 2018, 1804.08771)."""

from collections.abc import Sequence
from typing import Any

from everyhead.errors import UserError


def score_translations(
    translations: Sequence[str], references: Sequence[str], *, tokenize: str, n_bootstrap: int = 0
) -> dict[str, Any]:
    """bleu, chrf and their signatures; with n_bootstrap the 95 % interval bleu_low … bleu_high.

    Raises:
        UserError: sacreBLEU is not installed, or no such tokenizer.
    """
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
    bleu, chrf = BLEU(tokenize=tokenize), CHRF()
    plain = bleu.corpus_score(list(translations), [list(references)])
    scores: dict[str, Any] = {
        "bleu": round(plain.score, 2),
        "chrf": round(chrf.corpus_score(list(translations), [list(references)]).score, 2),
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }
    if n_bootstrap and len(references) > 1:
        again = BLEU(tokenize=tokenize)
        _seed_bootstrap()
        wide = again.corpus_score(list(translations), [list(references)], n_bootstrap=n_bootstrap)
        mean, half = wide._mean, wide._ci
        scores |= {"bleu_low": round(mean - half, 2), "bleu_high": round(mean + half, 2)}
    return scores


def _seed_bootstrap() -> None:
    """sacreBLEU reads its resampling seed from the environment; 12345 is its own default."""
    import os

    os.environ.setdefault("SACREBLEU_SEED", "12345")
