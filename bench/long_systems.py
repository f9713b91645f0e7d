"""What bench/long.py measures: attention on q, k, v (1, 8, n, 64), ours and others'.

Each maker takes n and gives a function of (q, k, v). Other toolkits' modules that hold linear maps
get copies in their place, so that attention alone is timed. A window of 512 is 256 to either side;
LSH hashes four times into 128 buckets with chunks of 64, causal.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import everyhead
from everyhead.layers import masks
from everyhead.layers.chunked import LshParts
from everyhead.layers.favor import FavorAttention
from everyhead.layers.feature_attention import FeatureParts
from everyhead.layers.lsh import LshAttention

HEADS, WIDTH = 8, 64
SIDE, FEATURES, ROUNDS, BUCKETS, CHUNK = 256, 256, 4, 128, 64
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class System(NamedTuple):
    """make(n) → a function of q, k, v; forward up to `longest` tokens, backward up to `trains`.

    compiles: in its first call, which is not counted.
    """

    method: str
    make: Callable[[int], Attend]
    ours: bool = False
    longest: int = 131_072
    trains: int = 131_072
    compiles: bool = False


class Copy(nn.Module):
    """In the place of a linear map."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


def exact(n: int) -> Attend:
    return lambda q, k, v: everyhead.attention(q, k, v, mask=masks.causal())


def window(n: int) -> Attend:
    return lambda q, k, v: everyhead.attention(q, k, v, mask=masks.window(SIDE, SIDE))


def features(causal: bool) -> Callable[[int], Attend]:
    def make(n: int) -> Attend:
        module = FavorAttention(HEADS * WIDTH, HEADS, n_features=FEATURES).eval()
        mask = masks.causal() if causal else None

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = FeatureParts(q, k, v, WIDTH**-0.5, projection=module.projection)
            return module.attend(parts, mask)

        return call

    return make


def lsh(n: int) -> Attend:
    module = LshAttention(
        HEADS * WIDTH, HEADS, n_buckets=BUCKETS, n_rounds=ROUNDS, chunk=CHUNK
    ).eval()

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = (q.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * WIDTH**-0.5
        parts = LshParts(
            q, q * length, v, 1.0, rotations=module.rotations, hashing=module.hashing
        )  # fmt: skip
        return module.attend(parts, masks.causal())

    return call


def plain(n: int) -> Attend:
    """softmax(q kᵀ) v as it is written."""
    hidden = torch.full((n, n), float("-inf")).triu(1)
    return lambda q, k, v: (q @ k.transpose(-2, -1) * WIDTH**-0.5 + hidden).softmax(-1) @ v


def fused(n: int) -> Attend:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def flex(n: int) -> Attend:
    """FlexAttention, compiled for this length, its block mask made beforehand."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() <= SIDE

    if n <= 8192:
        block = create_block_mask(near, None, None, n, n, device="cpu")
    else:
        block = by_hand(n, near)
    call = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: call(q, k, v, block_mask=block)


def by_hand(n: int, near: Callable[..., Tensor], size: int = 128) -> Any:
    """The block mask of a window, without the n × n matrix that create_block_mask makes."""
    from torch.nn.attention.flex_attention import BlockMask

    n_blocks, reach = -(-n // size), -(-SIDE // size)
    rows = torch.arange(n_blocks)
    near_blocks = rows[:, None] + torch.arange(-reach, reach + 1)  # (blocks, 2·reach + 1)
    inside = (near_blocks >= 0) & (near_blocks < n_blocks)
    order = (~inside).int().argsort(dim=1, stable=True)
    numbers = near_blocks.gather(1, order).clamp(0, n_blocks - 1)
    columns = torch.zeros(n_blocks, n_blocks, dtype=torch.int32)
    columns[:, : numbers.shape[1]] = numbers.int()
    counts = inside.sum(1).int()
    return BlockMask.from_kv_blocks(
        counts[None, None], columns[None, None], BLOCK_SIZE=size, mask_mod=near
    )


def blocked(n: int) -> Attend:
    """What one writes by hand: each block of 256 queries with its neighbours, a mask made once."""
    size = SIDE
    i = torch.arange(size)[:, None] + size
    j = torch.arange(3 * size)[None]
    near = (i - j).abs() <= SIDE

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n_blocks = n // size
        k, v = (F.pad(x, (0, 0, size, size)) for x in (k, v))
        tiles = [x.unfold(2, 3 * size, size).transpose(-2, -1) for x in (k, v)]  # (1, H, M, 3w, D)
        q = q.unflatten(2, (n_blocks, size))  # (1, H, M, w, D)
        place = torch.arange(n_blocks)[:, None, None] * size + j - size  # (M, 1, 3w)
        seen = near & (place >= 0) & (place < n)  # (M, w, 3w)
        out = F.scaled_dot_product_attention(
            q[0].transpose(0, 1),
            tiles[0][0].transpose(0, 1),
            tiles[1][0].transpose(0, 1),
            attn_mask=seen[:, None],
        )
        return out.transpose(0, 1).flatten(1, 2)[None]

    return call


def longformer(n: int) -> Attend:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=HEADS * WIDTH, num_attention_heads=HEADS, attention_window=[2 * SIDE]
    )
    module: Any = LongformerSelfAttention(config, 0).eval()
    attention_mask, none = torch.zeros(1, n), torch.zeros(1, n, dtype=torch.bool)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sides = [x.transpose(1, 2).flatten(2).transpose(0, 1) for x in (q, k, v)]  # (n, 1, C)
        for name, side in zip(("query", "key", "value"), sides, strict=True):
            setattr(module, name, lambda _, side=side: side.clone())
        out = module(
            sides[0].transpose(0, 1),
            attention_mask=attention_mask,
            is_index_masked=none,
            is_index_global_attn=none,
            is_global_attn=False,
        )[0]
        return out.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)

    for name in ("query", "key", "value"):
        delattr(module, name)
    return call


def reformer(n: int) -> Attend:
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    config = ReformerConfig(
        hidden_size=HEADS * WIDTH,
        num_attention_heads=HEADS,
        attention_head_size=WIDTH,
        num_hashes=ROUNDS,
        num_buckets=BUCKETS,
        lsh_attn_chunk_length=CHUNK,
        is_decoder=True,
    )
    module: Any = LSHSelfAttention(config, 0).eval()
    module.query_key = module.value = Copy()

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = module(hidden_states=q.transpose(1, 2).flatten(2), num_hashes=ROUNDS).hidden_states
        return out.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)

    return call


def performer(causal: bool) -> Callable[[int], Attend]:
    def make(n: int) -> Attend:
        from performer_pytorch.performer_pytorch import FastAttention

        return FastAttention(WIDTH, nb_features=FEATURES, causal=causal).eval()

    return make


SYSTEMS: dict[str, System] = {
    "everyhead exact (causal)": System("exact", exact, ours=True, trains=16_384),
    "torch SDPA (causal)": System("exact", fused, longest=32_768, trains=16_384),
    "plain n×n (causal)": System("exact", plain, longest=8192, trains=4096),
    "everyhead window 512": System("window", window, ours=True),
    "FlexAttention window 512": System("window", flex, trains=0, compiles=True),
    "blocked SDPA window 512": System("window", blocked, trains=65_536),
    "transformers Longformer window 512": System("window", longformer, trains=32_768),
    "everyhead features 256": System("features", features(False), ours=True),
    "performer-pytorch features 256": System("features", performer(False), trains=65_536),
    "everyhead features 256 (causal)": System("causal features", features(True), ours=True),
    "performer-pytorch features 256 (causal)": System(
        "causal features", performer(True), longest=16_384, trains=8192
    ),
    "everyhead LSH (causal)": System("LSH", lsh, ours=True),
    "transformers Reformer LSH (causal)": System("LSH", reformer, trains=32_768),
}
