"""Slow and plain: what the fast code is compared with, and the two paths it may take."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from everyhead.layers import attention as attention_module

# Lengths around the edges of vector registers, blocks and the threshold between the paths.
LENGTHS = (1, 2, 3, 63, 64, 65, 127, 128, 129)
PATHS = ("short", "fused")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}

Visible = Callable[[int, int, int, int], bool]  # sentence, head, query, key


@contextmanager
def on_path(name: str) -> Iterator[None]:
    """Inside, attention takes the path of that name whatever its size."""
    before = attention_module.SHORT
    attention_module.SHORT = {"short": 1 << 60, "fused": -1}[name]
    try:
        yield
    finally:
        attention_module.SHORT = before


def naive_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Visible,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """One query and one key at a time, in Python's floats; q (B, H, T, D), k and v (B, K, S, D)."""
    (batch, n_heads, n_queries, width), n_keys = q.shape, k.shape[2]
    scale = 1 / math.sqrt(width) if scale is None else scale
    q, k, v = q.double(), k.double(), v.double()
    out = torch.zeros(batch, n_heads, n_queries, v.shape[-1], dtype=torch.float64)
    for b in range(batch):
        for h in range(n_heads):
            kv = h * k.shape[1] // n_heads
            for t in range(n_queries):
                seen = [s for s in range(n_keys) if visible(b, h, t, s)]
                scores = [scale * float(q[b, h, t] @ k[b, kv, s]) for s in seen]
                if bias is not None:
                    whole = bias.expand(batch, n_heads, n_queries, n_keys)
                    scores = [
                        x + float(whole[b, h, t, s]) for x, s in zip(scores, seen, strict=True)
                    ]
                powers = [math.exp(x - max(scores)) for x in scores]
                for s, power in zip(seen, powers, strict=True):
                    out[b, h, t] += power / sum(powers) * v[b, kv, s]
    return out


def qkv(
    *shape: int,
    n_keys: int | None = None,
    n_kv_heads: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Random q of `shape` (B, H, T, D) and k, v that fit it."""
    batch, n_heads, n_queries, width = shape
    rng = torch.Generator().manual_seed(seed)
    keys = (batch, n_kv_heads or n_heads, n_queries if n_keys is None else n_keys, width)
    q, k, v = (torch.randn(size, generator=rng) for size in (shape, keys, keys))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def lengths_mask(lengths: list[int], length: int, *, left: bool = False) -> Tensor:
    """Bool (B, length): the first, or the last, n places of each row are real."""
    places = torch.arange(length)[None]
    n = torch.tensor(lengths)[:, None]
    return places >= length - n if left else places < n


def relative_error(a: Tensor, b: Tensor) -> float:
    """‖a − b‖ / ‖b‖ in float64; 0 if both are zero."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm().clamp_min(1e-300))


class Written(TorchDispatchMode):
    """How many numbers the operations write; in place, as many as they are given."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        in_place = func._schema.is_mutable
        some = args[1:] if in_place else out if isinstance(out, tuple | list) else [out]
        self.count += sum(x.numel() for x in some if torch.is_tensor(x))
        return out
