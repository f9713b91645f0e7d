"""LSH attention in the place of exact attention: the query map serves queries and keys.

    q = x W^Q    k = q/|q|    v = x W^V          W^K stays in the model and is not used

Kitaev et al. 2020 (2001.04451) section 2. A model learnt W^K for its own sake, so what comes out is
not what it learnt: its loss suffers much until it is trained further. layers/lsh.py.
"""

from dataclasses import dataclass

import torch
from torch import nn

from everyhead.layers.exact import check_exact, with_maps_of
from everyhead.layers.hashing import Hashing
from everyhead.layers.lsh import LshAttention
from everyhead.layers.multi_head import MultiHeadAttention


@dataclass(frozen=True)
class Lsh:
    """The method: n_buckets (even, or 1, or factors), hashed n_rounds times, in chunks of a bucket.

    A token sees `look` chunks of its bucket before and after its own. seed: of the rotations.
    """

    n_buckets: int | tuple[int, ...] = 32
    n_rounds: int = 4
    chunk: int = 64
    look: tuple[int, int] = (1, 0)
    seed: int = 0

    def __post_init__(self) -> None:
        self.hashing.check()
        if self.n_rounds < 1:
            raise ValueError(f"tokens are hashed at least once; got n_rounds {self.n_rounds}")

    @property
    def hashing(self) -> Hashing:
        """How tokens are put into chunks."""
        factors = (self.n_buckets,) if isinstance(self.n_buckets, int) else tuple(self.n_buckets)
        return Hashing(factors, self.chunk, self.look)

    def of(self, plain: MultiHeadAttention) -> LshAttention:
        """Attention by hashing with the parameters of `plain`, shared; W^K is not used.

        Raises:
            ValueError: `plain` is a variant of its own, or several of its queries share a key.
        """
        check_exact(plain, "Lsh")
        if plain.n_kv_heads != plain.n_heads:
            raise ValueError(
                f"Lsh makes a key of each query, and here {plain.n_heads} heads share "
                f"{plain.n_kv_heads} keys: take Window or RandomFeatures"
            )
        made = with_maps_of(plain, LshAttention)
        made.scale, made.hashing = 1.0, self.hashing  # k has length 1
        shape = (made.n_heads, made.d_head, self.n_rounds, self.hashing.width)
        rng = torch.Generator().manual_seed(self.seed)
        rotations = nn.init.normal_(torch.zeros(shape), generator=rng)
        made.register_buffer("rotations", rotations, persistent=False)
        return made.to(plain.q_proj.weight.device)
