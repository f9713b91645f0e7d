"""The logit lens: what the states between the layers would say, read by the last norm and the head.

    logits(x) = head(norm(x))

nostalgebraist 2020, "interpreting GPT: the logit lens". A Hugging Face model names its norm and its
head as its family does, and may scale, cap or shift around them. What is put together here is
therefore held against the logits that the model gave itself, and is refused where it is another.
"""

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from everyhead.inspection.names import Spot
from everyhead.inspection.states import Wrap
from everyhead.layers.multi_head import MultiHeadAttention

# Of the largest logit: how far products of fewer rows may lie, in full and in half precision.
CLOSE, CLOSE_HALF = 1e-4, 2e-2
NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "layer_norm", "final_norm")
Read = Callable[[Tensor], Tensor]


class Lens:
    """The last norm and the head of a model, where they can be told."""

    def __init__(self, model: nn.Module, spots: list[Spot]) -> None:
        self.model = model
        halves = list(dict.fromkeys(spot.layer.partition(".")[0] for spot in spots))
        self.half = "decoder" if "decoder" in halves else halves[-1]
        self._last = [spot for spot in spots if spot.layer.partition(".")[0] == self.half][-1]
        self._given: Tensor | None = None  # (B, V) the model's own logits of its last row

    def hooks(self, here: Wrap) -> list[Callable[[], None]]:
        """Start to see the model's own logits; what comes back ends it."""
        return [self.model.register_forward_hook(here(self._keep, module=self.model)).remove]

    def _keep(self, module: nn.Module, args: Any, output: Any) -> None:
        logits = getattr(output, "logits", None)
        self._given = None
        if isinstance(logits, Tensor) and logits.dim() == 3 and logits.shape[1] > 0:
            self._given = logits[:, -1].detach().clone()

    @torch.no_grad()
    def logits(self, layer: str, states: Tensor, last: Tensor) -> Tensor:
        """States (B, t, C) of a layer → (B, t, V); last (B, C): the last row of the last layer.

        Raises:
            LookupError: no head reads this layer's stack, or it does more than can be told.
        """
        if layer.partition(".")[0] != self.half:
            raise LookupError(f"no head reads {layer}: the model's head reads the {self.half}")
        read = self._own() if isinstance(self._last.module, MultiHeadAttention) else self._foreign()
        given = self._given
        theirs = given is not None and given.shape[0] == last.shape[0]  # else of another pass
        if given is not None and theirs and not _are_close(read(last[:, None])[:, 0], given):
            raise LookupError(
                f"the head of {type(self.model).__name__} does more than a norm and a "
                "product, so states between the layers cannot be read by it"
            )
        return read(states)

    def _own(self) -> Read:
        stack = self.model.get_submodule(self._last.layer_path.rpartition(".blocks.")[0])
        head = getattr(self.model, "head", None)
        if head is None:
            raise LookupError(f"{type(self.model).__name__} has no head")
        norm, scale = getattr(stack, "norm", None), getattr(self.model, "output_scale", 1.0)
        return lambda x: head((x if norm is None else norm(x)) * scale)

    def _foreign(self) -> Read:
        model = cast(Any, self.model)
        table = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        path = next((path for path, module in model.named_modules() if module is table), None)
        if table is None or path is None:
            raise LookupError(f"{type(model).__name__} has no head that gives logits of tokens")
        head, norm = model.get_submodule(self._head(path)), self._norm()
        factor, after = self._around()
        return lambda x: after(head(factor * (x if norm is None else norm(x))))

    def _head(self, path: str) -> str:
        """The largest part around the product at `path` without the layers: BERT's transforms."""
        words = path.split(".")
        around = [".".join(words[: i + 1]) for i in range(len(words))]
        without = (one for one in around if not self._last.path.startswith(f"{one}."))
        return next((one for one in without if _takes_states(self.model.get_submodule(one))), path)

    def _norm(self) -> nn.Module | None:
        """The norm that stands behind the list of layers, beside it."""
        stack = self.model.get_submodule(
            self._last.layer_path.rpartition(".")[0].rpartition(".")[0]
        )
        found = [getattr(stack, name, None) for name in NORMS]
        return next((norm for norm in found if isinstance(norm, nn.Module)), None)

    def _around(self) -> tuple[float, Read]:
        """What families do before the head (T5 2019) and after it."""
        config = cast(Any, self.model).config
        scaled = getattr(config, "scale_decoder_outputs", None)
        if scaled is None:
            scaled = getattr(config, "model_type", "") == "t5" and config.tie_word_embeddings
        writer = config.get_text_config(decoder=True)  # of two halves, each with a config
        cap = getattr(writer, "final_logit_softcapping", None)
        times = getattr(config, "logit_scale", None) or 1 / (
            getattr(config, "logits_scaling", None) or 1
        )
        shift = getattr(self.model, "final_logits_bias", None)

        def after(logits: Tensor) -> Tensor:
            logits = logits * times if times != 1 else logits
            logits = cap * torch.tanh(logits / cap) if cap else logits
            return logits if shift is None else logits + shift

        return config.d_model**-0.5 if scaled else 1.0, after


def _are_close(found: Tensor, given: Tensor) -> bool:
    """Are these the same logits (B, V), computed in another order?"""
    if found.shape != given.shape:
        return False
    exact = given.dtype in (torch.float32, torch.float64)
    exact &= found.dtype == given.dtype and torch.get_float32_matmul_precision() == "highest"
    found, given, same = found.double(), given.double(), found == given  # −∞ is −∞
    furthest = (found - given).abs().masked_fill(same, 0).max()
    largest = given.abs().masked_fill(~given.isfinite(), 0).max()
    return bool(furthest <= (CLOSE if exact else CLOSE_HALF) * largest)


def _takes_states(module: nn.Module) -> bool:
    """Is one argument enough? BERT's heads for gaps and for neighbours want two together."""
    wanted = inspect.signature(module.forward).parameters.values()
    needed = [p for p in wanted if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return len([p for p in needed if p.kind is not p.VAR_POSITIONAL]) <= 1
