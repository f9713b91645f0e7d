"""The parts of a model as inference wants them: the same equations in fewer calls.

    [Q K V] = x [s·W^Q  W^K  W^V]     one product for the maps of one x, the scale of scores in it

Where one position is added to a cache, the calls around the products cost as much as they do; a
block then takes a short way.
"""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyhead.layers import probe
from everyhead.layers.attention import Parts
from everyhead.layers.blocks import Block, Memory
from everyhead.layers.cache import KeyValueCache
from everyhead.layers.linear import Linear, stacked
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.norms import LayerNorm, RMSNorm
from everyhead.layers.packed import PackedLinear, packed_map
from everyhead.layers.packing import Packing
from everyhead.layers.residual import PreNorm
from everyhead.layers.rotary import Rotation, rotated
from everyhead.layers.sliding import SlidingAttention

Map = Callable[[Tensor], Tensor]

# Up to so many sentences the calls of a plain attention cost more than its products.
FEW_SENTENCES = 8


class StepMaps(NamedTuple):
    """The maps of a step as plain functions: a module finds its children by a slow search."""

    query: Map
    out: Map


class JointAttention(MultiHeadAttention):
    """Multi-head attention for inference: the maps of one x are one product, s is in W^Q."""

    def __init__(self, plain: MultiHeadAttention, *, cross: bool, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.n_heads, self.n_kv_heads, self.d_head = plain.n_heads, plain.n_kv_heads, plain.d_head
        self.scale, self.dropout = 1.0, 0.0
        query = _times(plain.q_proj, plain.scale)
        maps = (plain.k_proj, plain.v_proj) if cross else (query, plain.k_proj, plain.v_proj)
        joint = PackedLinear(*stacked(maps), dtype=dtype)
        self.q_proj = packed_map(query, dtype=dtype) if cross else joint
        self.k_proj = self.v_proj = joint
        self.o_proj = packed_map(plain.o_proj, dtype=dtype)
        self.maps = StepMaps(self.q_proj.forward, self.o_proj.forward)

    def _joined(self, x: Tensor, *maps: Linear) -> Tensor:
        return maps[0](x)  # all of them

    def step(self, x: Tensor, cache: KeyValueCache, rotation: Rotation | None = None) -> Tensor:
        """`forward` for one more position (B, 1, C) of rows whose cache is begun, in few calls."""
        maps, heads, width = self.maps, self.n_heads, self.d_head
        if rotation is not None or self.n_kv_heads != heads:
            return maps.out(self._grouped_step(maps.query(x), cache, rotation))
        if cache.fixed:
            k, v = cache.read()
            q = maps.query(x).view(k.shape[0], -1, heads, width).transpose(1, 2)
        else:
            joint = maps.query(x).view(-1, cache.beams, 3, heads, width)
            q, k, v = joint.permute(2, 0, 3, 1, 4).unbind()  # (n, H, beams, D) each
            k, v = cache.extend(k, v)
        out = self._attend_step(q, k, v, cache)  # (n, H, beams, D)
        return maps.out(out.transpose(1, 2).reshape(*x.shape[:-1], heads * width))

    def _grouped_step(
        self, joint: Tensor, cache: KeyValueCache, rotation: Rotation | None
    ) -> Tensor:
        """(B, 1, (H+2K)·D) → (B, 1, H·D)."""
        heads, groups = self.n_heads, self.n_kv_heads
        parts = joint.view(-1, heads + 2 * groups, 1, self.d_head)
        qk, v = parts[:, : heads + groups], parts[:, heads + groups :]
        qk = qk if rotation is None else rotated(qk, rotation)
        k, v = cache.append(qk[:, heads:], v)
        out = self._attend_step(qk[:, :heads], k, v, cache)  # (B, H, 1, D)
        return out.reshape(-1, 1, heads * self.d_head)

    def _attend_step(self, q: Tensor, k: Tensor, v: Tensor, cache: KeyValueCache) -> Tensor:
        """In the fewest calls; who looks is shown the parts, and the same calls give the output."""
        if not probe.active():
            return self.short(q, k, v, cache)
        parts = Parts(q, k, v, 1.0, cache.bias)

        def attend(used: Parts, mask: Mask | None) -> Tensor:
            if used is parts and mask is None:
                return self.short(q, k, v, cache)
            return self.attend(used, mask)

        return probe.attention(self, parts, None, attend)

    def short(self, q: Tensor, k: Tensor, v: Tensor, cache: KeyValueCache) -> Tensor:
        """The queries of a kv head ask it together: (n, H, T, D)."""
        if k.shape[1] == q.shape[1]:
            return attend_step(q, k, v, cache.bias)
        groups = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])  # (B, K, H / K, D)
        return attend_step(groups, k, v, cache.bias).reshape(q.shape)


class JointSlidingAttention(JointAttention, SlidingAttention):
    """Within a window (layers/sliding.py); a step's cache holds or hides what it does not see."""

    def __init__(self, plain: SlidingAttention, *, cross: bool, dtype: torch.dtype) -> None:
        super().__init__(plain, cross=cross, dtype=dtype)
        self.size, self.first = plain.size, plain.first


class StepBlock(Block):
    """A block for inference that takes the short way where one position is added to a cache."""

    def __init__(self, plain: Block) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(plain.__dict__)
        own, cross = plain.self_attn, plain.cross_attn
        assert isinstance(own, JointAttention)
        self.own_step, self.cross_step = own.step, None
        norms: list[nn.Module | None] = [plain.self_attn_norm, plain.feed_forward_norm]
        if isinstance(cross, JointAttention):
            self.cross_step = cross.step
            norms.insert(1, plain.cross_attn_norm)
        self.feed_forward_step = plain.feed_forward.forward
        self.norm_steps = tuple(_norm_step(norm) for norm in norms)
        self.norm_first = isinstance(plain.residual, PreNorm)

    def forward(
        self,
        x: Tensor,
        mask: Mask | None = None,
        memory: Memory | None = None,
        *,
        packing: Packing | None = None,
        caches: tuple[KeyValueCache, KeyValueCache] | None = None,
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """As `Block.forward`."""
        moved = bias is not None or (rotation is not None and self.cross_step is not None)
        if caches is None or moved or not _is_step(x, mask, memory, caches):
            return super().forward(
                x,
                mask,
                memory,
                packing=packing,
                caches=caches,
                bias=bias,
                rotation=rotation,
            )
        if self.cross_step is None:
            return self._short_step(x, caches[0], rotation)
        return self._step(x, *caches)

    def _short_step(self, x: Tensor, own: KeyValueCache, rotation: Rotation | None) -> Tensor:
        """Of a block that reads no memory."""
        norm_own, norm_last = self.norm_steps
        if self.norm_first:
            x = self.own_step(norm_own(x), own, rotation).add_(x)
            return self.feed_forward_step(norm_last(x)).add_(x)
        x = norm_own(self.own_step(x, own, rotation).add_(x))
        return norm_last(self.feed_forward_step(x).add_(x))

    def _step(self, x: Tensor, own: KeyValueCache, cross: KeyValueCache) -> Tensor:
        norm_own, norm_cross, norm_last = self.norm_steps
        assert self.cross_step is not None
        if self.norm_first:  # x + f(norm x), the sum in f's own memory
            x = self.own_step(norm_own(x), own).add_(x)
            x = self.cross_step(norm_cross(x), cross).add_(x)
            return self.feed_forward_step(norm_last(x)).add_(x)
        x = norm_own(self.own_step(x, own).add_(x))
        x = norm_cross(self.cross_step(x, cross).add_(x))
        return norm_last(self.feed_forward_step(x).add_(x))


class NormStep:
    """A norm in one call of PyTorch's; its weights are found without a module's slow search."""

    def __init__(self, norm: LayerNorm | RMSNorm) -> None:
        self.norm, self.held = norm, norm._parameters

    def centred(self, x: Tensor) -> Tensor:
        """Of a `LayerNorm`."""
        weight, bias = self.held["weight"], self.held["bias"]
        assert weight is not None
        return torch.layer_norm(x, weight.shape, weight, bias, self.norm.eps)

    def scaled(self, x: Tensor) -> Tensor:
        """Of an `RMSNorm`."""
        weight = self.held["weight"]
        assert weight is not None
        return torch.rms_norm(x, weight.shape, weight, self.norm.eps)


def _norm_step(norm: nn.Module | None) -> Map:
    """The norm as a plain function, that a copy of the block takes along."""
    if isinstance(norm, LayerNorm):
        return NormStep(norm).centred
    if isinstance(norm, RMSNorm) and norm.weight.dtype == torch.float32:
        return NormStep(norm).scaled
    assert norm is not None
    return norm.forward


def _is_step(
    x: Tensor,
    mask: Mask | None,
    memory: Memory | None,
    caches: tuple[KeyValueCache, KeyValueCache],
) -> bool:
    """One position is added, all rows see their whole history, and the memory's mask is cached."""
    own, cross = caches
    begun = own.length > 0 and own.width == own.beams and x.shape[1] == 1
    whole = mask is None or mask.only_causal
    return begun and whole and (cross.bias is not None or memory is None or memory.mask is None)


def attend_step(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(QKᵀ + B) V for few queries (n, H, T, D), in the fewest calls."""
    if q.shape[0] <= FEW_SENTENCES or q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2))  # (n·H, T, S)
    if bias is not None:
        scores.unflatten(0, q.shape[:2]).add_(bias)
    out = torch.bmm(torch.softmax(scores, -1), v.flatten(0, 1))  # (n·H, T, D)
    return out.unflatten(0, q.shape[:2])


def _times(plain: Linear, factor: float) -> Linear:
    """factor · (x Wᵀ + b) as a map of its own."""
    scaled = copy.deepcopy(plain)
    with torch.no_grad():
        for p in scaled.parameters():
            p.mul_(factor)
    return scaled
