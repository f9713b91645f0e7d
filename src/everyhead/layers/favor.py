"""FAVOR+: softmax attention by positive orthogonal random features, in O(n).

    softmax(s·Q Kᵀ) V ≈ D⁻¹ φ(Q) (φ(K)ᵀ V)        D = diag(φ(Q) φ(K)ᵀ 1)        error ~ 1/√m

Choromanski et al. 2021 (2009.14794). φ: layers/random_features.py; the products:
layers/feature_attention.py; causal ones: layers/prefix_sums.py; decoding: layers/feature_cache.py.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from everyhead.layers import feature_attention
from everyhead.layers.feature_attention import FeatureParts
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.packing import Packing
from everyhead.layers.random_features import KERNELS, orthogonal
from everyhead.layers.rotary import Rotation


class FavorAttention(MultiHeadAttention):
    """Multi-head attention by m random features. 2009.14794 algorithm 1.

    The projection is drawn once, saved with the model, and stays what it is but for `redraw`. There
    are no weights to drop, so there is no dropout of them; rotary positions are honoured.
    """

    projection: Tensor

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_features: int = 256,
        kernel: str = "softmax",
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__(d_model, n_heads, n_kv_heads=n_kv_heads, d_head=d_head, bias=bias)
        self._begin(n_features, kernel)

    def _begin(
        self, n_features: int, kernel: str, generator: torch.Generator | None = None
    ) -> None:
        if kernel not in KERNELS or n_features < 1:
            raise ValueError(
                f"random features are of kind {' or '.join(KERNELS)}, at least 1; got {kernel!r}, "
                f"{n_features}"
            )
        self.kernel = kernel
        self.register_buffer("projection", orthogonal(n_features, self.d_head, generator))

    def redraw(self) -> None:
        """Another projection, as training may want now and then (section 4.2).

        Raises:
            ValueError: in eval, where it is fixed.
        """
        if not self.training:
            raise ValueError("the projection is fixed in eval: call train() before redraw()")
        self.projection.copy_(orthogonal(*self.projection.shape))

    def visible(self, mask: Mask | None) -> Mask | None:
        """The mask itself.

        Raises:
            ValueError: it is not padding alone, nor causal with padding and documents.
        """
        if not feature_attention.is_fast(mask):
            names = ", ".join(type(rule).__name__.lower() for rule in (mask or Mask()).rules)
            raise ValueError(
                "random features honour padding, and the causal rule with padding and documents; "
                f"not this mask ({names}), which needs single scores: use exact attention"
            )
        return mask

    def project(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
        rotation: Rotation | None = None,
    ) -> FeatureParts:
        """q, k and v as ever, and the projection that features are made by."""
        parts = super().project(x, memory, packing, memory_packing, rotation)
        return FeatureParts(*parts[:4], projection=self.projection, kernel=self.kernel)

    def attend(  # type: ignore[override]
        self, parts: FeatureParts, mask: Mask | None, dropout_p: float = 0.0
    ) -> Tensor:
        """(B, H, T, Dv); raises ValueError for a bias that does more than hide keys."""
        with torch.autocast(parts.q.device.type, enabled=False):
            return feature_attention.attend(parts, mask)

    def weights(  # type: ignore[override]
        self,
        parts: FeatureParts,
        mask: Mask | None,
        heads: list[int] | slice | None = None,
        rows: slice | Tensor | None = None,
    ) -> Tensor:
        """The matrix that the features stand for: layers/feature_attention.py."""
        return feature_attention.weights(parts, mask, heads, rows)

    def mix(  # type: ignore[override]
        self,
        weights: Tensor,
        parts: FeatureParts,
        mask: Mask | None = None,
        rows: slice | Tensor | None = None,
    ) -> Tensor:
        """What it takes from the values: layers/feature_attention.py."""
        return feature_attention.mix(weights, parts, mask)

    def _apply(self, fn: Any, recurse: bool = True) -> "FavorAttention":
        """Half precision would round ω: it stays in float32."""
        before = self.projection
        super()._apply(fn, recurse)
        if self.projection.dtype.itemsize < 4:
            self.projection = before.to(self.projection.device)
        return self


class RandomFeatures(NamedTuple):
    """The method: which attention to put into a model's place. seed: of the projections."""

    n_features: int = 256
    kernel: str = "softmax"
    seed: int = 0

    def of(self, plain: MultiHeadAttention) -> FavorAttention:
        """Attention by random features with the parameters of `plain`, shared.

        Raises:
            ValueError: `plain` is a variant of its own, whose equation would be lost.
        """
        if type(plain) is not MultiHeadAttention:
            raise ValueError(f"random features take the place of exact attention, not of {plain}")
        made = FavorAttention.__new__(FavorAttention)
        nn.Module.__init__(made)
        made.n_heads, made.n_kv_heads, made.d_head = plain.n_heads, plain.n_kv_heads, plain.d_head
        made.scale, made.dropout = plain.scale, 0.0
        for name, part in plain.named_children():
            made.add_module(name, part)
        rng = torch.Generator().manual_seed(self.seed)
        made._begin(self.n_features, self.kernel, rng)
        return made.to(plain.q_proj.weight.device).train(plain.training)
