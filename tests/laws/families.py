"""The table that the laws are swept over: one line a family, one small model each."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from everyhead.layers.additive import AdditiveAttention
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.models.recurrent_translator import RecurrentTranslator, RecurrentTranslatorConfig
from everyhead.models.t5 import T5, T5Config
from everyhead.models.transformer import Transformer, TransformerConfig

SMALL = {"d_model": 32, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 2, "d_ff": 48}


def transformer(**choices: object) -> Callable[[], Transformer]:
    def make() -> Transformer:
        return Transformer(TransformerConfig(vocab_size=23, max_len=40, **SMALL, **choices))

    return make


def t5(**choices: object) -> Callable[[], T5]:
    """Buckets so few that these lengths reach the far ones; heads wider together than the model."""

    def make() -> T5:
        sizes = {**SMALL, "d_head": 12, "n_buckets": 8, "max_distance": 12, "max_len": 40}
        return T5(T5Config(vocab_size=23, pad_id=22, eos_id=0, **sizes, **choices))

    return make


def recurrent(**choices: object) -> Callable[[], RecurrentTranslator]:
    def make() -> RecurrentTranslator:
        sizes = {"vocab_size": 23, "d_model": 32, "max_len": 40}
        return RecurrentTranslator(RecurrentTranslatorConfig(**sizes, **choices))

    return make


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "transformer-post": transformer(),
    "transformer-pre-separate-untied": transformer(
        norm="pre", source_vocab_size=19, tie_output=False
    ),
    "transformer-pre-learned": transformer(norm="pre", positions="learned", activation="gelu"),
    "transformer-post-separate-learned": transformer(source_vocab_size=19, positions="learned"),
    "t5": t5(activation="gelu_tanh", gated=True),
    "recurrent-gru": recurrent(),
    "recurrent-lstm-separate-untied": recurrent(
        cell="lstm", n_encoder_layers=2, source_vocab_size=19, tie_output=False
    ),
}
# Every family that can be decoded step by step has `encode`, `decode` and `cache`.
ENCODER_DECODERS = [name for name in FAMILIES if name.startswith(("transformer", "t5", "rec"))]
# Families of blocks, with attention to itself in both halves.
STACKED = [name for name in FAMILIES if not name.startswith("recurrent")]


def build(name: str, *, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The family's small model in eval, with no bias left at zero and no gain left at one.

    Its attention is sharper than at the start of training, so that a head more or less is seen.
    """
    torch.manual_seed(0)
    model = FAMILIES[name]().eval()
    with torch.no_grad():
        if not isinstance(model, Transformer):
            for part in model.modules():
                if isinstance(part, AdditiveAttention):
                    part.score.mul_(4)
                elif isinstance(part, MultiHeadAttention):
                    for projection in (part.q_proj, part.k_proj, part.v_proj):
                        projection.weight.mul_(2**0.5)
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(0.3 * torch.randn_like(p))
            elif isinstance(model, Transformer):
                p.mul_(10**0.5)  # from the start's size to Xavier's
    return model.to(dtype)


class Sides(NamedTuple):
    """A batch of sentence pairs: ids and where they are real."""

    source: Tensor
    target: Tensor
    source_mask: Tensor
    target_mask: Tensor


SOURCE_LENGTHS, TARGET_LENGTHS = [7, 4, 1, 6], [3, 6, 1, 5]


def sentences(model: nn.Module, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    """Four pairs of ids without padding, some of length one."""
    rng = torch.Generator().manual_seed(seed)
    config = model.config
    return [
        (
            torch.randint(1, config.source_pad_id, (1, s), generator=rng),
            torch.randint(1, config.pad_id, (1, t), generator=rng),
        )
        for s, t in zip(SOURCE_LENGTHS, TARGET_LENGTHS, strict=True)
    ]


def padded(
    rows: list[Tensor], pad_id: int, *, left: bool = False, extra: int = 0
) -> tuple[Tensor, Tensor]:
    """Rows (1, n) under one another, as long as the longest and `extra` more."""
    length = max(row.shape[1] for row in rows) + extra
    ids = torch.full((len(rows), length), pad_id)
    real = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, row in enumerate(rows):
        n = row.shape[1]
        cut = slice(length - n, length) if left else slice(0, n)
        ids[i, cut], real[i, cut] = row[0], True
    return ids, real


def batch(model: nn.Module, *, left: bool = False, extra: int = 0) -> Sides:
    """The pairs of `sentences` as one batch."""
    sources, targets = zip(*sentences(model), strict=True)
    source, source_mask = padded(list(sources), model.config.source_pad_id, left=left, extra=extra)
    target, target_mask = padded(list(targets), model.config.pad_id, left=left, extra=extra)
    return Sides(source, target, source_mask, target_mask)
