"""It learns: copying and reversing, to more than 99 % of whole sentences, in seconds."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from everyhead.models.transformer import PRESETS, Transformer, TransformerConfig

END, FIRST, LAST, PAD = 0, 1, 10, 11
LONGEST = 5
SIZES = {**PRESETS["tiny"], "dropout": 0.0}
TASKS = {"copy": lambda row: row, "reverse": lambda row: row.flip(0)}


def examples(task: str, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Source (n, S), labels (n, T) and where they are real: both end in END, then padding."""
    source = torch.full((n, LONGEST + 1), PAD)
    labels = source.clone()
    for i, length in enumerate(torch.randint(2, LONGEST + 1, (n,), generator=rng).tolist()):
        row = torch.randint(FIRST, LAST + 1, (length,), generator=rng)
        source[i, :length], source[i, length] = row, END
        labels[i, :length], labels[i, length] = TASKS[task](row), END
    return source, labels, source != PAD


def train(model: Transformer, task: str, steps: int, rng: torch.Generator) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) / 30, (steps - n) / steps * 1.2)
    )
    model.train()
    for _ in range(steps):
        source, labels, real = examples(task, 64, rng)
        target = F.pad(labels[:, :-1], (1, 0), value=PAD)
        hidden = model.real_hidden(source, target, real, real)
        loss = F.cross_entropy(model.head(hidden), labels[real])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def greedy(model: Transformer, source: Tensor, real: Tensor) -> Tensor:
    """(n, T) ids, one step at a time with the cache; PAD after END."""
    memory = model.eval().encode(source, real)
    cache = model.cache(memory, LONGEST + 1)
    ids = torch.full((source.shape[0], 1), PAD)
    ended = torch.zeros(source.shape[0], dtype=torch.bool)
    for _ in range(LONGEST + 1):
        logits = model.head(model.decode(ids[:, -1:], memory, cache=cache))
        step = logits[:, -1].argmax(-1).masked_fill(ended, PAD)
        ended |= step == END
        ids = torch.cat([ids, step[:, None]], 1)
    return ids[:, 1:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "norm", "steps"), [("copy", "post", 250), ("reverse", "pre", 300)]
)
def test_the_tiny_preset_solves(task: str, norm: str, steps: int) -> None:
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    model = Transformer(TransformerConfig(vocab_size=12, norm=norm, **SIZES))
    train(model, task, steps, rng)
    source, labels, real = examples(task, 500, rng)
    right = (greedy(model, source, real) == labels).all(1)
    assert right.float().mean().item() > 0.99


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_tiny_preset_overfits_one_batch(norm: str) -> None:
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    model = Transformer(TransformerConfig(vocab_size=12, norm=norm, **SIZES))
    source, labels, real = examples("copy", 8, rng)
    target = F.pad(labels[:, :-1], (1, 0), value=PAD)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    losses = []
    for _ in range(100):
        loss = F.cross_entropy(model(source, target, real, real)[real], labels[real])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 2 and losses[-1] < 0.05
    assert torch.equal(greedy(model, source, real), labels)
