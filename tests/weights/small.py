"""Small models with outputs worth comparing, and plain greedy decoding."""

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.models.transformer import Transformer, TransformerConfig

LINES = [
    "the cat sat on the mat",
    "a small house on the hill",
    "we walk home in the rain",
    "下雨了，我们走回家去看书。",
]
UNSEEN = ["the house on the mat", "we sat in the rain"]


@cache
def shared_tokenizer() -> PairTokenizer:
    return PairTokenizer.train(LINES, LINES, vocab_size=330, min_count=1)


@cache
def separate_tokenizer() -> PairTokenizer:
    return PairTokenizer.train(LINES[:3], LINES[3:], vocab_size=(300, 280), shared=False)


def config(**changes: object) -> TransformerConfig:
    fields: dict[str, object] = {
        "vocab_size": shared_tokenizer().target.vocab_size,
        "d_model": 32,
        "n_heads": 4,
        "n_encoder_layers": 2,
        "n_decoder_layers": 3,
        "d_ff": 48,
        "max_len": 40,
    }
    return TransformerConfig.model_validate(fields | changes)


def separate_config(**changes: object) -> TransformerConfig:
    sides = separate_tokenizer()
    sizes = {
        "vocab_size": sides.target.vocab_size,
        "source_vocab_size": sides.source.vocab_size,
    }
    return config(**sizes, **changes)


def random_model(c: TransformerConfig, seed: int = 0) -> Transformer:
    """Random in every tensor, biases and norms too; the row of padding stays zero."""
    torch.manual_seed(seed)
    model = Transformer(c)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed" not in name and "output_head" not in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


@cache
def reversing_model(norm: str) -> Transformer:
    """Taught to reverse LINES, so that each of its many steps has one clear best piece."""
    torch.manual_seed(0)
    c = config(norm=norm, n_encoder_layers=1, n_decoder_layers=2, dropout=0.0)
    model = Transformer(c)
    source, target_in, labels = _reversing_batch(c)
    real_source, real = source != c.pad_id, labels != c.pad_id
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(50):
        logits = model(source, target_in, real_source, real)[real]
        loss = F.cross_entropy(logits, labels[real])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def _reversing_batch(c: TransformerConfig) -> tuple[Tensor, Tensor, Tensor]:
    rows = shared_tokenizer().source.encode_batch(LINES)
    source, labels = torch.full((2, len(rows), max(map(len, rows)) + 1), c.pad_id)
    for i, ids in enumerate(rows):
        source[i, : len(ids) + 1] = torch.tensor([*ids, c.eos_id])
        labels[i, : len(ids) + 1] = torch.tensor([*reversed(ids), c.eos_id])
    start = torch.full((len(rows), 1), c.pad_id)
    return source, torch.cat([start, labels[:, :-1]], 1), labels


@torch.no_grad()
def greedy(model: Transformer, source: list[int], length: int) -> list[int]:
    """At most `length` ids, without the end."""
    memory = model.encode(torch.tensor([source]))
    found = [model.config.pad_id]
    while len(found) <= length:
        hidden = model.decode(torch.tensor([found]), memory)
        best = int(model.head(hidden[:, -1]).argmax())
        if best == model.config.eos_id:
            break
        found.append(best)
    return found[1:]


def batch(c: TransformerConfig, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Source (3, 7) and target (3, 5) ids without padding but for the start."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(
        2, (c.source_vocab_size or c.vocab_size) - 1, (3, 7), generator=generator
    )
    target = torch.randint(2, c.vocab_size - 1, (3, 5), generator=generator)
    return source, torch.cat([torch.full((3, 1), c.pad_id), target[:, 1:]], 1)


@torch.no_grad()
def logits(model: Transformer) -> Tensor:
    return model(*batch(model.config))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
