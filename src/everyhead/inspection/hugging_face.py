"""Any model of Hugging Face's, recorded as it is: on its own attention, without reloading.

transformers' models ask one table, `AttentionInterface`, for the function that attends. While
somebody records, the table's answer is wrapped: the parts are shown to the observers of
layers/probe.py and the model's own function still computes the output, bit by bit. Only where a
change wants other parts than the model's is attention computed here instead. Nothing is set on the
model or its config; the table is as it was when the last recording ends, errors included.

What torch.compile made of a model earlier never asks the table: meanwhile it runs uncompiled.
"""

import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from everyhead.inspection.given import Readings, given_of
from everyhead.layers import attention, masks, probe
from everyhead.layers.attention import Parts
from everyhead.layers.masks import Mask

Function = Callable[..., tuple[Tensor, Tensor | None]]


class Bridge:
    """Wraps the table while at least one recording is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._readings = Readings()
        self._before: dict[str, Any] = {}
        self._eager: Any = None  # while it is open, nothing runs compiled
        self._shown: dict[FunctionType, Shown] = {}  # every layer asks for the same

    def start(self) -> None:
        from transformers.modeling_utils import AttentionInterface

        with self._lock:
            if self._eager is None and "torch._dynamo" in sys.modules:
                self._eager = torch.compiler.set_stance("force_eager")  # now, until its exit
            self._open += 1
            if self._open > 1:
                return
            for name in ("get_interface", "__getitem__"):
                original = getattr(AttentionInterface, name, None)
                if original is not None:
                    self._before[name] = AttentionInterface.__dict__.get(name)
                    setattr(AttentionInterface, name, self._asked(original))

    def stop(self) -> None:
        from transformers.modeling_utils import AttentionInterface

        with self._lock:
            self._open -= 1
            if self._open:
                return
            for name, original in self._before.items():
                if original is None:
                    delattr(AttentionInterface, name)
                else:
                    setattr(AttentionInterface, name, original)
            self._before, self._shown = {}, {}
            self._readings.clear()
            if self._eager is not None:
                self._eager.__exit__(None, None, None)
                self._eager = None

    def _asked(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def answer(table: Any, *args: Any, **kwargs: Any) -> Any:
            function = original(table, *args, **kwargs)
            if isinstance(function, Shown) or not probe.active() or not callable(function):
                return function
            if not isinstance(function, FunctionType):
                return Shown(function, self._readings)
            known = self._shown.get(function)
            if known is None:
                known = self._shown[function] = Shown(function, self._readings)
            return known

        return answer


class Shown:
    """A model's own attention function, shown to the observers."""

    def __init__(self, function: Function, readings: Readings) -> None:
        self.function, self.readings = function, readings
        self.name = str(getattr(function, "__name__", type(function).__name__))

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        own: list[tuple[Tensor, tuple[Tensor, Tensor | None]]] = []
        rows: Tensor | None = None  # the weights, where the model's own function gives them
        parts, mask = self._parts(module, query, key, value, attention_mask, kwargs)

        def attend(used: Parts, rule: Mask | None) -> Tensor:
            nonlocal rows
            if used is not parts or rule is not mask:
                if "eager" in self.name:
                    rows = attention.weights(used, rule).to(query.dtype)
                return attention.attend(used, rule, float(kwargs.get("dropout") or 0.0))
            result = self.function(module, query, key, value, attention_mask, *args, **kwargs)
            out = result[0].transpose(1, 2)  # (B, H, T, D)
            own.append((out, result))
            rows = result[1]
            return out

        out = probe.attention(module, parts, mask, attend)
        for mine, result in own:
            if mine is out:  # the same tensor; through `out`, for its gradient is listened to
                return (out.transpose(1, 2), result[1]) if out.requires_grad else result
        return out.transpose(1, 2).contiguous(), rows

    def _parts(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        kwargs: dict[str, Any],
    ) -> tuple[Parts, Mask | None]:
        """What the function is about to use, in everyhead's words."""
        scale, bias = kwargs.get("scaling"), kwargs.get("position_bias")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        form = (float(scale), bias, kwargs.get("softcap"), kwargs.get("s_aux"))
        parts = Parts(query, key, value, *form)
        if attention_mask is None or "flash" in self.name:
            return self._by_rule(module, parts, attention_mask, kwargs)
        if not isinstance(attention_mask, Tensor):  # what flex attention is given
            size = query.shape[0], query.shape[1]
            return parts, Mask((ByFunction(attention_mask.mask_mod, *size),))
        given = self.readings.of(attention_mask, given_of)
        if _has_room(key, query, given.n_seen):
            n_seen = given.n_seen
            given = given_of(attention_mask[..., :n_seen])
            parts = _without_room(parts, n_seen)
        if given.bias is not None:
            parts = parts._replace(bias=given.bias if bias is None else bias + given.bias)
        return parts, given.mask

    def _by_rule(
        self, module: nn.Module, parts: Parts, real: Tensor | None, kwargs: dict[str, Any]
    ) -> tuple[Parts, Mask | None]:
        """Without a matrix causality is an argument or stands on the module."""
        name, n_queries = self.name, parts.q.shape[2]
        if "eager" in name:
            return parts, None
        causal = kwargs.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        mask = Mask()
        if causal and n_queries > 1:
            mask = masks.causal()
            if "flash" not in name:  # sdpa leaves out the room that a cache has left
                parts = _without_room(parts, n_queries)
        if "flash" in name:
            near = kwargs.get("sliding_window")
            if near is not None:
                mask = mask & masks.window(near - 1, 0 if causal else near - 1)
            mask = mask & (given_of(real).mask if real is not None else None)
        return parts, mask if mask.rules else None


class ByFunction(NamedTuple):
    """A mask rule: a function of batch, head, query and key numbers (flex attention's)."""

    function: Callable[..., Tensor]
    n_rows: int
    n_heads: int

    def visible(self, i: Tensor, j: Tensor, offset: int) -> Tensor:
        row = torch.arange(self.n_rows, device=i.device)[:, None, None, None]
        head = torch.arange(self.n_heads, device=i.device)[:, None, None]
        seen = self.function(row, head, i, j)  # broadcastable to (B, H, t, S)
        return seen.expand(*seen.shape[:-2], i.shape[0], j.shape[1])


def _without_room(parts: Parts, n_keys: int | None) -> Parts:
    """The first keys and values, copied: a cache writes into its own."""
    if parts.k.shape[2] == n_keys:
        return parts
    return parts._replace(k=parts.k[:, :, :n_keys].clone(), v=parts.v[:, :, :n_keys].clone())


def _has_room(key: Tensor, query: Tensor, n_seen: int | None) -> bool:
    """Are the last keys the empty room of a cache, which nobody sees?"""
    if n_seen is None or not query.shape[2] <= n_seen < key.shape[2]:
        return False
    return not bool(key[:, :, n_seen:].any())


bridge = Bridge()
