"""FAVOR+: softmax attention by positive orthogonal random features, in O(n).

    softmax(s·Q Kᵀ) V ≈ D⁻¹ φ(Q) (φ(K)ᵀ V)        D = diag(φ(Q) φ(K)ᵀ 1)        error ~ 1/√m

Choromanski et al. 2021 (2009.14794). φ: layers/random_features.py; the products:
layers/feature_attention.py; causal ones: layers/prefix_sums.py; decoding: layers/feature_cache.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from everyhead.layers import feature_attention
from everyhead.layers.exact import check_exact, with_maps_of
from everyhead.layers.feature_attention import FeatureParts
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.packing import Packing
from everyhead.layers.random_features import KERNELS, orthogonal
from everyhead.layers.rotary import Rotation


def check_features(n_features: int, kernel: str) -> None:
    """
    Raises:
        ValueError: fewer than one, or of no kind that there is.
    """
    if kernel not in KERNELS or n_features < 1:
        raise ValueError(
            f"random features are of kind {' or '.join(KERNELS)}, at least 1; got {kernel!r}, "
            f"{n_features}"
        )


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
        self,
        n_features: int,
        kernel: str,
        generator: torch.Generator | None = None,
        *,
        saved: bool = True,
    ) -> None:
        check_features(n_features, kernel)
        self.kernel = kernel
        projection = orthogonal(n_features, self.d_head, generator)
        self.register_buffer("projection", projection, persistent=saved)

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


@dataclass(frozen=True)
class RandomFeatures:
    """The method: which attention to put into a model's place. seed: of the projections.

    A seed gives the projection again, so it is not saved and no name in the model changes.
    """

    n_features: int = 256
    kernel: str = "softmax"
    seed: int = 0

    def __post_init__(self) -> None:
        check_features(self.n_features, self.kernel)

    def of(self, plain: MultiHeadAttention) -> FavorAttention:
        """Attention by random features with the parameters of `plain`, shared.

        Raises:
            ValueError: `plain` is a variant of its own, whose equation would be lost.
        """
        check_exact(plain, "RandomFeatures")
        made = with_maps_of(plain, FavorAttention)
        made.dropout = 0.0
        rng = torch.Generator().manual_seed(self.seed)
        made._begin(self.n_features, self.kernel, rng, saved=False)
        return made.to(plain.q_proj.weight.device)
