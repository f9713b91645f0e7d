"""Small models with outputs worth comparing, a tokenizer for them, and plain greedy decoding."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.models.transformer import Transformer, TransformerConfig

LINES = [
    "the cat sat on the mat and the dog sat on the log",
    "a small house stands on the hill near the river",
    "we walk home in the rain and read a book at night",
    "下雨了，我们走回家去，晚上看书。",
]
SENTENCES = ["the cat sat on the hill", "we read a book", "下雨了，我们看书", "a dog"]

Make = Callable[..., Transformer]


@pytest.fixture(scope="session")
def tokenizer() -> PairTokenizer:
    return PairTokenizer.train(LINES, LINES, vocab_size=330, min_count=1)


@pytest.fixture(scope="session")
def separate_tokenizer() -> PairTokenizer:
    return PairTokenizer.train(LINES[:3], LINES[3:], vocab_size=(300, 280), shared=False)


@pytest.fixture
def make(tokenizer: PairTokenizer) -> Make:
    def make(seed: int = 0, **changes: object) -> Transformer:
        fields = {
            "vocab_size": tokenizer.target.vocab_size,
            "d_model": 32,
            "n_heads": 4,
            "n_encoder_layers": 2,
            "n_decoder_layers": 3,
            "d_ff": 48,
            "max_len": 40,
        }
        torch.manual_seed(seed)
        return peaky(Transformer(TransformerConfig.model_validate(fields | changes))).eval()

    return make


def peaky(model: Transformer) -> Transformer:
    """Random in every tensor, biases and norms too, and loud enough to talk of many tokens."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed" not in name and "output_head" not in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def greedy(model: Transformer, source: list[int], length: int) -> list[int]:
    """At most `length` ids, without the end."""
    config = model.config
    memory = model.encode(torch.tensor([source]))
    found = [config.pad_id]
    while len(found) <= length:
        hidden = model.decode(torch.tensor([found]), memory)
        best = int(model.head(hidden[:, -1]).argmax())
        if best == config.eos_id:
            break
        found.append(best)
    return found[1:]


def batch(config: TransformerConfig, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Source (3, 7) and target (3, 5) ids without padding."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(0, config.source_pad_id, (3, 7), generator=generator)
    target = torch.randint(0, config.pad_id, (3, 5), generator=generator)
    return source, torch.cat([torch.full((3, 1), config.pad_id), target[:, 1:]], 1)


def logits(model: Transformer) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(*batch(model.config))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
