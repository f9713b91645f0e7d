"""A forward pass without weights: products are counted, not made, so a model of any size runs.

Weights are one number seen as a whole matrix (a tensor with strides of zero), and whatever would
multiply by one gives zeros of the right shape. All else (norms, activations, residuals, masks)
runs as it is, on a few tokens. So shapes, floating-point operations and what autograd would keep
come out exactly, without a parameter in memory; PyTorch's meta device would do the same, but loads
its compiler for it, which takes seconds.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from everyhead.layers import probe
from everyhead.layers.attention import Parts
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention

MAKERS, LARGE = ("empty", "zeros", "ones"), 1 << 12
PLAIN = MultiHeadAttention.attend
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
CELLS = tuple(f"{name}_cell" for name in RECURRENT)


class _Made(torch.autograd.Function):
    """Zeros of a shape as if made from `inputs`, of which autograd keeps the first `n_kept`."""

    @staticmethod
    def forward(ctx: Any, shape: tuple[int, ...], n_kept: int, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs[:n_kept])
        return inputs[-1].new_zeros(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError("a weightless model is looked at, not trained")


class Unmade(TorchFunctionMode):
    """Inside, a model is made whose large tensors are one number each, seen as a whole matrix."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in MAKERS:
            shape = torch.Size(_shape(args, kwargs))
            if shape.numel() > LARGE:
                return torch.zeros(1, dtype=kwargs.get("dtype")).expand(shape)
        elif name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            if _weightless(written := args[0] if args else kwargs.get("tensor")):
                return written
        elif name == "linalg_qr" and args[0].numel() > LARGE:  # an orthogonal start, not kept
            return args[0], args[0][: args[0].shape[1]]
        return func(*args, **kwargs)


class Weightless(TorchFunctionMode):
    """Counts floating-point operations of products: a multiplication and an addition are two.

    Attention is counted over all pairs of query and key, also where a mask hides some. flops and
    kept (bytes that autograd keeps, each memory once, no parameters) are of the whole model,
    though of blocks that are alike only the first runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.kept = 0
        self.times = 1  # how often what runs now stands in the model
        self.shared: set[int] = set()  # storages that all of the blocks that are alike read
        self._held: dict[int, Tensor] = {}

    def pack(self, x: Tensor) -> Tensor:
        """Autograd keeps x."""
        storage = x.untyped_storage()
        if storage.data_ptr() not in self._held and not isinstance(x, nn.Parameter):
            self._held[storage.data_ptr()] = x  # or the place would be used again
            times = 1 if storage.data_ptr() in self.shared else self.times
            self.kept += times * storage.nbytes()
        return x

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "linear":
            return self._linear(*args, **kwargs)
        if name == "embedding":
            return _Made.apply((*args[0].shape, args[1].shape[1]), 1, *args[:2])
        if name in ("cat", "concat") and any(_weightless(x) for x in args[0]):
            return _joined(args[0], kwargs.get("dim", args[1] if args[1:] else 0))
        out = func(*args, **kwargs)
        if name.startswith("conv"):
            self.flops += self.times * 2 * out.numel() * args[1][0].numel()
        elif name in RECURRENT:
            weights = next(x for x in args if _are_weights(x))  # behind states and batch sizes
            self._recurrent(args[0], weights)
        elif name in CELLS:
            self._recurrent(args[0], args[2:4])
        elif name == "scaled_dot_product_attention":
            self.flops += self.times * 2 * (out.numel() + args[0].numel()) * args[1].shape[2]
        elif name == "einsum":
            self.flops += self.times * 2 * _labelled(*args)
        elif name in ("matmul", "__matmul__", "bmm"):
            self.flops += self.times * 2 * out.numel() * args[0].shape[-1]
        return out

    def _recurrent(self, x: Tensor, weights: Any) -> None:
        matrices = sum(w.numel() for w in weights if w.dim() == 2)
        self.flops += self.times * 2 * matrices * (x.numel() // x.shape[-1])

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        self.flops += self.times * 2 * x.numel() * weight.shape[0]
        return _Made.apply((*x.shape[:-1], weight.shape[0]), 1, x, weight)

    def attention(
        self, module: nn.Module, parts: Parts, mask: Mask | None, attend: probe.Attend
    ) -> Tensor:
        """The probe's call: what a fused kernel costs and keeps."""
        (b, h, t, d), s, dv = parts.q.shape, parts.k.shape[2], parts.v.shape[3]
        self.flops += self.times * 2 * b * h * t * s * (d + dv)
        out: Tensor = _Made.apply((b, h, t, dv), 3, parts.q, parts.k, parts.v)
        return out


@contextmanager
def counting(model: nn.Module) -> Iterator[Weightless]:
    """Inside, products of the model are counted and not made, and one of many blocks stands."""
    mode = Weightless()
    observed = not has_variants(model)  # a variant may go another way while somebody looks
    if observed:
        probe.attach(mode)
    try:
        with _one_of_many(model, mode), saved_tensors_hooks(mode.pack, lambda x: x), mode:
            yield mode
    finally:
        if observed:
            probe.detach(mode)


def has_variants(model: nn.Module) -> bool:
    """Does any attention attend in a way of its own (windows, buckets, features)?"""
    return any(
        isinstance(part, MultiHeadAttention) and type(part).attend is not PLAIN
        for part in model.modules()
    )


def stacks(model: nn.Module) -> list[tuple[nn.Module, int]]:
    """Each part with `blocks` in a row that are alike, and how many these are."""
    found = []
    for part in model.modules():
        blocks = getattr(part, "blocks", None)
        if isinstance(blocks, nn.ModuleList) and len({_likeness(b) for b in blocks}) == 1:
            found.append((part, len(blocks)))
    return found


@contextmanager
def _one_of_many(model: nn.Module, mode: Weightless) -> Iterator[None]:
    whole: list[tuple[Any, nn.ModuleList]] = []
    hooks = []
    try:
        for part, n in stacks(model):
            holder: Any = part
            whole.append((holder, holder.blocks))
            holder.blocks = nn.ModuleList([holder.blocks[0]])
            hooks += _counted_times(holder.blocks[0], n, mode)
        yield
    finally:
        for holder, blocks in whole:
            holder.blocks = blocks
        for hook in hooks:
            hook.remove()


def _counted_times(block: nn.Module, n: int, mode: Weightless) -> list[Any]:
    def enter(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        mode.times *= n
        mode.shared |= {
            x.untyped_storage().data_ptr() for x in _tensors((*given[1:], *named.values()))
        }

    def leave(*_: Any) -> None:
        mode.times //= n

    return [
        block.register_forward_pre_hook(enter, with_kwargs=True),
        block.register_forward_hook(leave),
    ]


def _tensors(given: Any) -> Iterator[Tensor]:
    for each in given if isinstance(given, tuple | list) else ():
        yield from [each] if isinstance(each, Tensor) else _tensors(each)


def _likeness(block: nn.Module) -> tuple[Any, ...]:
    """What tells one block from another: kinds, shapes, and every plain setting of its parts."""
    shapes = tuple((name, tuple(p.shape)) for name, p in block.named_parameters())
    plain = (bool, int, float, str, tuple, type(None))
    settings = tuple(
        (type(part).__name__, key, repr(value))
        for part in block.modules()
        for key, value in sorted(vars(part).items())
        if isinstance(value, plain) and key != "training"
    )
    return shapes, settings


def arguments(function: Callable[..., Any]) -> set[str]:  # their names
    return set(inspect.signature(function).parameters)


def _shape(args: Any, kwargs: Any) -> Any:
    if "size" in kwargs:
        return kwargs["size"]
    return args[0] if args and not isinstance(args[0], int) else args


def _labelled(equation: str, *operands: Tensor) -> int:
    """The product of all axes of an einsum, each label once."""
    names = equation.replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for labels, operand in zip(names, operands, strict=True):
        sizes |= zip(labels, operand.shape, strict=True)
    return math.prod(sizes.values())


def _are_weights(x: Any) -> bool:
    """Of a recurrent layer: a list that begins with a matrix (states have three axes)."""
    return isinstance(x, list | tuple) and bool(x) and isinstance(x[0], Tensor) and x[0].dim() == 2


def _weightless(x: Any) -> bool:
    if not isinstance(x, Tensor) or x.numel() == 1:
        return False
    return not any(step for n, step in zip(x.shape, x.stride(), strict=True) if n > 1)


def _joined(tensors: Any, dim: int) -> Tensor:
    shape = list(tensors[0].shape)
    shape[dim] = sum(x.shape[dim] for x in tensors)
    return torch.zeros(1, requires_grad=any(x.requires_grad for x in tensors)).expand(shape)
