"""Small models whose next-piece distributions are worth searching, and plain oracles for them."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from everyhead.data.batching import pad_rows
from everyhead.layers.blocks import Memory
from everyhead.models.transformer import Transformer, TransformerConfig

SMALL = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 2, "d_ff": 32}


def lively(vocab_size: int, seed: int = 0, **choices: object) -> Transformer:
    """A random model that seldom repeats itself, since strong positions move it along."""
    torch.manual_seed(seed)
    choices = SMALL | {"tie_output": False, "positions": "learned", "max_len": 64} | choices
    model = Transformer(TransformerConfig(vocab_size=vocab_size, **choices)).eval()
    with torch.no_grad():
        _redraw(model, seed)
        model.output_head.weight.normal_(std=0.7)
        for places in (model.source_positions, model.target_positions):
            for p in places.parameters():  # the sinusoid has none
                p.normal_(std=1.5)
        for block in model.decoder.blocks:
            for attention in (block.self_attn, block.cross_attn):
                attention.o_proj.weight.mul_(0.5)
            block.feed_forward.down_proj.weight.mul_(0.5)
    return model


def _redraw(model: Transformer, seed: int) -> None:
    """Weights larger than learning starts from: tables of variance 1/d, maps by Xavier's rule."""
    torch.manual_seed(seed)
    for table in dict.fromkeys((model.target_embed, model.source_embed)):
        nn.init.normal_(table.weight, std=model.config.d_model**-0.5)
        nn.init.zeros_(table.weight[table.pad_id])
    for places in dict.fromkeys((model.source_positions, model.target_positions)):
        for p in places.parameters():
            nn.init.normal_(p)
    for block in (*model.encoder.blocks, *model.decoder.blocks):
        for part in (block.cross_attn, block.self_attn, block.feed_forward):
            for p in () if part is None else part.parameters():
                if p.dim() > 1:
                    nn.init.xavier_uniform_(p)
    if not model.config.tie_output:
        nn.init.xavier_uniform_(model.output_head.weight)


def sources(lengths: Sequence[int], vocab_size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random sentences ending in `</s>`, padded on the right: ids (B, S) and mask."""
    rng = torch.Generator().manual_seed(seed)
    rows = [torch.randint(1, vocab_size - 1, (n,), generator=rng).tolist() for n in lengths]
    return pad_rows([[*row[:-1], 0] if row else [] for row in rows], vocab_size - 1)


@torch.inference_mode()
def log_probs(model: Transformer, source: Tensor, answers: Sequence[Sequence[int]]) -> Tensor:
    """Σ log p of each answer's pieces, teacher forcing without a cache; source (S,)."""
    pad_id = model.config.pad_id
    target, _ = pad_rows([[pad_id, *answer[:-1]] for answer in answers], pad_id)
    labels, real = pad_rows(answers, pad_id)
    memory = model.encode(source[None])
    rows = model.head(model.decode(target, memory, target_mask=real)).log_softmax(-1)
    return rows.gather(2, labels[..., None])[..., 0].masked_fill(~real, 0).sum(1)


@torch.inference_mode()
def next_log_probs(model: Transformer, source: Tensor, prefix: list[int]) -> Tensor:
    """log p (V,) of the piece after the prefix, without a cache."""
    target = torch.tensor([[model.config.pad_id, *prefix]])
    return model(source[None], target)[0, -1].log_softmax(-1)


def every_answer(n_pieces: int, longest: int) -> list[list[int]]:
    """All sequences of the pieces 1 … n that end in `</s>`, or are cut at the longest length."""
    words = range(1, n_pieces + 1)
    found = [list(ids) for n in range(longest + 1) for ids in product(words, repeat=n)]
    return [[*ids, 0] if len(ids) < longest else ids for ids in found]


@cache
def all_log_probs(seed: int, i: int, longest: int) -> tuple[list[list[int]], Tensor]:
    """Every answer of `lively(4, seed)` to sentence i of `sources([3, 5, 1], 4, seed)`."""
    model = lively(4, seed)
    source, real = sources([3, 5, 1], 4, seed)
    answers = every_answer(2, longest)
    return answers, log_probs(model, source[i, real[i]], answers)


def plain_greedy(model: Transformer, source: Tensor, longest: int) -> list[int]:
    """Pieces, `</s>` included, by the whole prefix each time."""
    ids: list[int] = []
    while len(ids) < longest and 0 not in ids:
        ids.append(int(next_log_probs(model, source, ids).argmax()))
    return ids


def plain_beam(
    model: Transformer, source: Tensor, longest: int, *, beam: int, length_penalty: float
) -> list[tuple[float, list[int]]]:
    """Beam search to the limit as one writes it down first: no cache, no batch, no stop."""
    open_: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for step in range(1, longest + 1):
        rows = [(s, ids, next_log_probs(model, source, ids).tolist()) for s, ids in open_]
        grown = [(s + p, [*ids, piece]) for s, ids, row in rows for piece, p in enumerate(row)]
        grown = sorted((c for c in grown if c[0] > -1e9), key=lambda c: -c[0])[: 2 * beam]
        ends = [c for c in grown[:beam] if c[1][-1] == 0 or step == longest]
        finished += [(s / step**length_penalty, ids) for s, ids in ends]
        open_ = [c for c in grown if c[1][-1] != 0][:beam]
    return sorted(finished, key=lambda c: -c[0])


class ScriptCache:
    """The prefixes themselves."""

    key_mask = None

    def __init__(self) -> None:
        self.prefix: Tensor | None = None

    def reorder(self, index: Tensor) -> None:
        self.prefix = self.prefix.index_select(0, index)

    def keep(self, sentences: Tensor) -> None:
        pass


class Script(nn.Module):
    """A model that says what `rows(prefix)` says: probabilities of each piece after a prefix."""

    def __init__(self, n_pieces: int, rows: Callable[[tuple[int, ...]], list[float]]) -> None:
        super().__init__()
        self.config = SimpleNamespace(pad_id=n_pieces - 1, eos_id=0, max_len=50)
        self.rows = rows

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Memory:
        return Memory(source[..., None].float())

    def cache(self, memory: Memory, max_len: int, *, beams: int = 1) -> ScriptCache:
        return ScriptCache()

    def decode(self, target: Tensor, memory: Memory, *, cache: ScriptCache) -> Tensor:
        prefix = target if cache.prefix is None else torch.cat([cache.prefix, target], 1)
        cache.prefix = prefix
        rows = [self.rows(tuple(ids[1:])) for ids in prefix.tolist()]
        return torch.tensor(rows)[:, None]

    def head(self, hidden: Tensor) -> Tensor:
        return hidden.log()
