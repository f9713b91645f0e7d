"""The table of decoders without memory that the laws are swept over: one small model each."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from everyhead.models.convolutional import Convolutional, ConvolutionalConfig
from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.models.llama import Llama, LlamaConfig
from everyhead.models.performer import Performer, PerformerConfig
from everyhead.models.recurrent import Recurrent, RecurrentConfig
from everyhead.models.reformer import Reformer, ReformerConfig
from everyhead.models.transformer_xl import TransformerXL, TransformerXLConfig
from tests.laws.families import padded

SMALL = {"vocab_size": 23, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_len": 40}
PAD = 22  # no text has it
LENGTHS = (7, 4, 1, 6)


def gpt2(**choices: object) -> Callable[[], GPT2]:
    return lambda: GPT2(GPT2Config(**SMALL, **choices))


def llama(**choices: object) -> Callable[[], Llama]:
    return lambda: Llama(LlamaConfig(**SMALL, d_ff=48, **choices))


def recurrent(cell: str, **choices: object) -> Callable[[], Recurrent]:
    numbers = {"vocab_size": 23, "d_model": 32, "n_layers": 2}
    return lambda: Recurrent(RecurrentConfig(cell=cell, **numbers, **choices))


def convolutional(**choices: object) -> Callable[[], Convolutional]:
    numbers = {"vocab_size": 23, "d_model": 32, "n_layers": 3, "kernel_size": 2}
    return lambda: Convolutional(ConvolutionalConfig(**numbers, **choices))


def performer(**choices: object) -> Callable[[], Performer]:
    return lambda: Performer(PerformerConfig(**SMALL, n_features=24, **choices))


def reformer(*layers: str, **choices: object) -> Callable[[], Reformer]:
    """Two streams of 16, so that hidden states are as wide as elsewhere."""
    numbers = {"vocab_size": 23, "d_model": 16, "n_heads": 4, "d_head": 8, "d_ff": 48}
    numbers |= {"max_len": 40, "local_chunk": 4, "lsh_chunk": 3, "n_buckets": 4, "n_rounds": 2}
    return lambda: Reformer(ReformerConfig(**numbers | choices, attn_layers=layers))


def transformer_xl(memory_len: int, **choices: object) -> Callable[[], TransformerXL]:
    numbers = {"vocab_size": 23, "d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48}
    numbers |= {"memory_len": memory_len, "segment_len": None}
    return lambda: TransformerXL(TransformerXLConfig(**numbers, **choices))


TEXT_DECODERS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2(),
    "gpt2-untied": gpt2(tie_output=False, scale_by_layer=True, activation="relu"),
    "llama": llama(n_kv_heads=2),
    "llama-tied-biased": llama(
        n_kv_heads=1, d_head=12, tie_output=True, attention_bias=True, mlp_bias=True,
        rotary_scaling={"kind": "yarn", "factor": 2.0, "original_len": 8}, rotary_base=50.0,
    ),
    "performer": performer(),
    "transformer-xl": transformer_xl(40),
    "transformer-xl-short": transformer_xl(4, norm="pre", tie_output=False, tie_biases=False),
    "performer-relu-rotary": performer(kernel="relu", positions="rotary", tie_output=False),
    "reformer": reformer("local", "lsh"),
    "reformer-learned-pieces": reformer(
        "lsh", "local", positions="learned", feed_forward_chunk=3, n_buckets=(4, 8), hash_seed=1
    ),
    "lstm": recurrent("lstm"),
    "gru": recurrent("gru", tie_output=False),
    "convolutional": convolutional(),
}  # fmt: skip
RECURRENT = ("lstm", "gru")  # which torch.compile leaves as they are
WITH_ATTENTION = [name for name in TEXT_DECODERS if name not in (*RECURRENT, "convolutional")]
# Run backwards for the gradient, which is plain autograd's up to rounding.
REVERSIBLE = ("reformer", "reformer-learned-pieces")
# Whose cache is a sum, of which nothing can be taken away.
SUMS = ("performer", "performer-relu-rotary")


def build(name: str, *, dtype: torch.dtype = torch.float32) -> nn.Module:
    """In eval, no bias at zero and no gain at one; attention sharp, so that a key more is seen."""
    torch.manual_seed(0)
    model = TEXT_DECODERS[name]().eval()
    with torch.no_grad():
        sharper = 12 if name in WITH_ATTENTION else 1.5
        for p in model.parameters():
            p.mul_(sharper) if p.dim() > 1 else p.add_(0.3 * torch.randn_like(p))
    return model.to(dtype)


def texts(seed: int = 1) -> list[Tensor]:
    """Four rows (1, n) of ids without padding, one of a single id."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randint(0, PAD, (1, n), generator=rng) for n in LENGTHS]


def batch(*, left: bool = False, extra: int = 0) -> tuple[Tensor, Tensor]:
    """The texts as one batch: ids, and where they are real."""
    return padded(texts(), PAD, left=left, extra=extra)
