"""(a) One training step on real pairs: everyhead beside torch.nn.Transformer and Marian.

Same batches (sorted, by a token budget), same sizes, fused AdamW, clipping, label smoothing 0.1,
dropout 0.1, everyone's best precision on this machine. The figure is real target tokens a second.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from bench.timing import Row, System, gemm_rate, rounds, rows_of
from everyhead.data.batching import Batch, BatchPlan, EncodedPairs, collate
from everyhead.layers.positions import sinusoid
from everyhead.models.transformer import PRESETS, Transformer, TransformerConfig
from everyhead.training.losses import batch_loss
from everyhead.training.optimizers import make_optimizer, set_rate
from everyhead.training.precision import autocast, resolve_precision
from everyhead.training.step import train_step

CPU = torch.device("cpu")
Step = Callable[[Batch], None]


class PlainTransformer(nn.Module):
    """torch.nn.Transformer with tied embeddings, as its tutorials use it."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.scale = math.sqrt(c.d_model)
        self.embed = nn.Embedding(c.vocab_size, c.d_model, padding_idx=c.pad_id)
        nn.init.normal_(self.embed.weight, std=c.d_model**-0.5)
        self.table: Tensor
        self.register_buffer("table", sinusoid(c.max_len, c.d_model), persistent=False)
        self.drop = nn.Dropout(c.dropout)
        self.inner = nn.Transformer(
            c.d_model,
            c.n_heads,
            c.n_encoder_layers,
            c.n_decoder_layers,
            c.d_ff,
            c.dropout,
            batch_first=True,
        )

    def forward(self, batch: Batch) -> Tensor:
        def embed(ids: Tensor) -> Tensor:
            return self.drop(self.embed(ids) * self.scale + self.table[: ids.shape[1]])

        causal = nn.Transformer.generate_square_subsequent_mask(batch.target_in.shape[1])
        hidden = self.inner(
            embed(batch.source),
            embed(batch.target_in),
            tgt_mask=causal,
            src_key_padding_mask=~batch.source_mask,
            tgt_key_padding_mask=~batch.target_mask,
            memory_key_padding_mask=~batch.source_mask,
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.embed.weight)


def marian(c: TransformerConfig) -> MarianMTModel:
    """Hugging Face's Marian of the same numbers, its attention through SDPA."""
    config = MarianConfig(
        vocab_size=c.vocab_size,
        d_model=c.d_model,
        encoder_layers=c.n_encoder_layers,
        decoder_layers=c.n_decoder_layers,
        encoder_attention_heads=c.n_heads,
        decoder_attention_heads=c.n_heads,
        encoder_ffn_dim=c.d_ff,
        decoder_ffn_dim=c.d_ff,
        dropout=c.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function=c.activation,
        max_position_embeddings=c.max_len,
        scale_embedding=True,
        pad_token_id=c.pad_id,
        eos_token_id=c.eos_id,
        decoder_start_token_id=c.pad_id,
        forced_eos_token_id=None,
    )
    return MarianMTModel._from_config(config, attn_implementation="sdpa")


def everyhead_step(c: TransformerConfig, precision: str) -> Step:
    torch.manual_seed(0)
    model = Transformer(c).train()
    optimizer = make_optimizer(model, "adamw")
    set_rate(optimizer, 1e-4)

    def step(batch: Batch) -> None:
        settings = {"loss": batch_loss, "smoothing": 0.1, "limit": 1.0}
        train_step(model, optimizer, [batch], precision=precision, **settings)

    return step


def peer_step(model: nn.Module, forward: Callable[[Batch], Tensor], precision: str) -> Step:
    """The usual loop: logits, smoothed cross-entropy, backward, clip, fused AdamW."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(batch: Batch) -> None:
        labels = batch.labels.masked_fill(~batch.target_mask, -100)
        with autocast(precision, CPU):
            logits = forward(batch)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def marian_step(c: TransformerConfig, precision: str) -> Step:
    torch.manual_seed(0)
    model = marian(c)

    def forward(batch: Batch) -> Tensor:
        return model(
            input_ids=batch.source,
            attention_mask=batch.source_mask.long(),
            decoder_input_ids=batch.target_in,
            use_cache=False,
        ).logits

    return peer_step(model, forward, precision)


def plain_step(c: TransformerConfig, precision: str) -> Step:
    torch.manual_seed(0)
    model = PlainTransformer(c)
    return peer_step(model, model, precision)


def training_rows(
    ids: EncodedPairs, vocab_size: int, size: str, *, batch_tokens: int, n_rounds: int
) -> list[Row]:
    """One row a system at this size, and the share of the measured GEMM rate that ours reaches."""
    c = TransformerConfig(vocab_size=vocab_size, max_len=512, **PRESETS[size])
    precision = resolve_precision("auto", CPU)
    plan = BatchPlan(ids.source_lengths, ids.target_lengths, batch_tokens=batch_tokens, seed=0)
    batches = [
        collate(ids, rows, pad_id=c.pad_id, eos_id=c.eos_id) for rows in plan.epoch(0)[:n_rounds]
    ]
    steps = {
        "everyhead": everyhead_step(c, precision),
        "Hugging Face Marian": marian_step(c, precision),
        "torch.nn.Transformer": plain_step(c, precision),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    rates = []
    for step in steps.values():
        step(batches[0])
    for batch in batches:
        rates.append(gemm_rate())
        # a step before the timed one: training never lets its weights grow cold
        systems = [System(n, lambda s=s, b=batch: s(b)) for n, s in steps.items()]
        for name, values in rounds(systems, 1, rest=0.05).items():
            seconds[name].append(values[0] / batch.n_target)
    setting = f"{size}, {precision}, {batch_tokens} padded tokens"
    rows = rows_of("training", setting, seconds, 1.0, "real target tokens/s")
    flops = _flops_per_token(c, batches)
    peak = sum(rates) / len(rates)
    share = 100 * flops / (1e9 * peak * sorted(seconds["everyhead"])[len(batches) // 2])
    return [*rows, Row("training", setting, "everyhead", round(share, 1), "% of GEMM rate", None)]


def _flops_per_token(c: TransformerConfig, batches: list[Batch]) -> float:
    """Floating-point operations of a step's products with weights, per real target token."""
    n_target = sum(batch.n_target for batch in batches)
    n_source = sum(int(batch.source_mask.sum()) for batch in batches)
    encoder = c.n_encoder_layers * (4 * c.d_model**2 + 2 * c.d_model * c.d_ff)
    cross = c.n_decoder_layers * 2 * c.d_model**2
    decoder = c.n_decoder_layers * (6 * c.d_model**2 + 2 * c.d_model * c.d_ff)
    head = c.vocab_size * c.d_model
    return 6 * ((encoder + cross) * n_source / n_target + decoder + head)
