"""Decoders beside Hugging Face's: the same weights in both, batches padded on either side."""

from typing import Any

import torch
from torch import Tensor, nn

from everyhead.weights.kind import Kind
from everyhead.weights.state import collect


def stirred(model: nn.Module, scale: float = 1.0) -> nn.Module:
    """No bias left at zero and no gain at one; maps and tables `scale` times as large."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(scale) if p.dim() > 1 else p.add_(0.2 * torch.randn_like(p))
    return model.eval()


def beside(ours: nn.Module, kind: Kind, make: Any, config: Any, **choices: Any) -> Any:
    """Their model with our weights, by the table of names that folders are written with."""
    values = kind.values(ours)
    theirs = make(config(**values, attn_implementation="eager", **choices)).eval()
    told = theirs.load_state_dict(collect(ours, kind.slots(ours)), strict=False)
    tied = ["lm_head.weight"] if ours.config.tie_output else []
    assert (told.missing_keys, told.unexpected_keys) == (tied, [])
    theirs.tie_weights()
    return theirs


def batch(
    vocab_size: int, lengths: tuple[int, ...] = (9, 1, 5), *, left: bool = False, extra: int = 2
) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(5)
    width = max(lengths) + extra
    ids = torch.randint(0, vocab_size, (len(lengths), width), generator=rng)
    places, n = torch.arange(width)[None], torch.tensor(lengths)[:, None]
    return ids, places >= width - n if left else places < n


def their_logits(theirs: Any, ids: Tensor, real: Tensor) -> Tensor:
    positions = (real.long().cumsum(1) - 1).clamp_min(0)
    return theirs(ids, attention_mask=real.long(), position_ids=positions).logits


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def check_gradients(ours: nn.Module, theirs: Any, kind: Kind, *, left: bool) -> None:
    """Of a sum that weighs every real logit otherwise, for every parameter."""
    ids, real = batch(ours.config.vocab_size, left=left)
    rng = torch.Generator().manual_seed(6)
    n = int(real.sum())
    share = torch.randn(n, ours.config.vocab_size, generator=rng)
    (ours(ids, real)[real] * share).sum().backward()
    (their_logits(theirs, ids, real)[real] * share).sum().backward()
    for slot in kind.slots(ours):
        wanted = slot.to_ours(theirs.get_parameter(slot.theirs[0]).grad)
        found = ours.get_parameter(slot.ours[0]).grad
        error = float((found - wanted).abs().max())
        assert error <= 1e-5 * max(1.0, float(wanted.abs().max())), slot.ours
