"""Small models whose next-piece distributions are worth searching, and plain oracles for them."""

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from everyhead.models.transformer import Transformer, TransformerConfig

SMALL = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 2, "d_ff": 32}


def lively(vocab_size: int, seed: int = 0, **choices: object) -> Transformer:
    """A random model that seldom repeats itself, since strong positions move it along."""
    torch.manual_seed(seed)
    choices = SMALL | {"tie_output": False, "positions": "learned", "max_len": 64} | choices
    model = Transformer(TransformerConfig(vocab_size=vocab_size, **choices)).eval()
    with torch.no_grad():
        model.output_head.weight.normal_(std=0.7)
        for places in (model.source_positions, model.target_positions):
            places.weight.normal_(std=1.5)
        for block in model.decoder.blocks:
            for attention in (block.self_attn, block.cross_attn):
                attention.o_proj.weight.mul_(0.5)
            block.feed_forward.down_proj.weight.mul_(0.5)
    return model


def sources(lengths: list[int], vocab_size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random sentences ending in `</s>`, padded on the right: ids (B, S) and mask."""
    rng = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    real = torch.arange(longest) < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, vocab_size - 1, (len(lengths), longest), generator=rng)
    ids = ids.masked_fill(~real, vocab_size - 1)
    for i, n in enumerate(lengths):
        if n:
            ids[i, n - 1] = 0
    return ids, real


@torch.inference_mode()
def log_prob(model: Transformer, source: Tensor, pieces: list[int]) -> float:
    """Σ log p of the pieces, teacher forcing without a cache; source (S,)."""
    target = torch.tensor([[model.config.pad_id, *pieces[:-1]]])
    rows = model(source[None], target)[0].log_softmax(-1)  # (T, V)
    return float(rows.gather(1, torch.tensor(pieces)[:, None]).sum())


def every_answer(n_pieces: int, longest: int) -> Iterator[list[int]]:
    """All sequences of the pieces 1 … n that end in `</s>`, or are cut at the longest length."""
    for length in range(longest + 1):
        for pieces in product(range(1, n_pieces + 1), repeat=length):
            yield [*pieces, 0] if length < longest else list(pieces)


def exhaustive(
    model: Transformer, source: Tensor, longest: int, length_penalty: float
) -> list[tuple[float, list[int]]]:
    """Score and pieces of every answer, best first."""
    answers = every_answer(model.config.vocab_size - 2, longest)
    scored = [(log_prob(model, source, a) / len(a) ** length_penalty, a) for a in answers]
    return sorted(scored, key=lambda pair: -pair[0])
