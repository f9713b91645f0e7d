"""The table of decoders without memory that the laws are swept over: one small model each."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.models.llama import Llama, LlamaConfig
from tests.laws.families import padded

SMALL = {"vocab_size": 23, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_len": 40}
PAD = 22  # no text has it
LENGTHS = (7, 4, 1, 6)


def gpt2(**choices: object) -> Callable[[], GPT2]:
    return lambda: GPT2(GPT2Config(**SMALL, **choices))


def llama(**choices: object) -> Callable[[], Llama]:
    return lambda: Llama(LlamaConfig(**SMALL, d_ff=48, **choices))


TEXT_DECODERS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2(),
    "gpt2-untied": gpt2(tie_output=False, scale_by_layer=True, activation="relu"),
    "llama": llama(n_kv_heads=2),
    "llama-tied-biased": llama(
        n_kv_heads=1, d_head=12, tie_output=True, attention_bias=True, mlp_bias=True,
        rotary_scaling={"kind": "yarn", "factor": 2.0, "original_len": 8}, rotary_base=50.0,
    ),
}  # fmt: skip


def build(name: str, *, dtype: torch.dtype = torch.float32) -> nn.Module:
    """In eval, no bias at zero and no gain at one; attention sharp, so that a key more is seen."""
    torch.manual_seed(0)
    model = TEXT_DECODERS[name]().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(12) if p.dim() > 1 else p.add_(0.3 * torch.randn_like(p))
    return model.to(dtype)


def texts(seed: int = 1) -> list[Tensor]:
    """Four rows (1, n) of ids without padding, one of a single id."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randint(0, PAD, (1, n), generator=rng) for n in LENGTHS]


def batch(*, left: bool = False, extra: int = 0) -> tuple[Tensor, Tensor]:
    """The texts as one batch: ids, and where they are real."""
    return padded(texts(), PAD, left=left, extra=extra)
