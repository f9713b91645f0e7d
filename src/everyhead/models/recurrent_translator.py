"""Translation by recurrent networks that align: "RNNsearch" of Bahdanau, Cho & Bengio 2015.

    h_j = [→h_j; ←h_j]                             a cell reads the source forwards, one backwards
    c_i = Σ_j α_ij h_j                             layers/additive.py, asked with s_{i−1}
    s_i = cell([E y_{i−1}; c_i], s_{i−1})          s_0 = tanh(W_s ←h_1 + b)
    t_i = maxout(U s_i + V E y_{i−1} + C c_i)      pairs of units, the larger goes on
    logits_i = W_o t_i

1409.0473 section 3 and appendix A; the readout has s_i as in its equation 4. The cells are
torch.nn's, and its GRU resets U h where the paper resets h (docs: torch.nn.GRU).
Where the decoder looks is `decoder.0.cross_attn` to those who record.
"""

from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from everyhead.layers import masks
from everyhead.layers.additive import AdditiveAttention, Step
from everyhead.layers.blocks import Memory
from everyhead.layers.dropout import Dropout
from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.linear import Linear
from everyhead.layers.packing import Packing
from everyhead.layers.states import State, StateDecoderCache
from everyhead.models.encoder_decoder import EncoderDecoder
from everyhead.models.recurrent import CELLS

STEPS: dict[str, Any] = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}


class RecurrentTranslatorConfig(BaseModel):
    """One width for embeddings, states, scores and readout; annotations are twice as wide."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = Field(gt=0)  # of the target, or of both sides when joint
    source_vocab_size: int | None = None  # None: one joint vocabulary
    cell: Literal["rnn", "lstm", "gru"] = "gru"
    d_model: int = Field(256, gt=0)
    n_encoder_layers: int = Field(1, gt=0)  # the decoder has one
    dropout: float = Field(0.1, ge=0, lt=1)  # of embeddings, between layers and of the readout
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    max_len: int = Field(512, gt=0)  # of what it learns from and writes; it reads longer ones too
    pad_id: int = -1  # −1: the last id; also what a translation starts from
    source_pad_id: int = -1
    eos_id: int = 0
    tie_output: bool = True

    @model_validator(mode="after")
    def _resolve(self) -> "RecurrentTranslatorConfig":
        source = self.source_vocab_size or self.vocab_size
        for name, size in (("pad_id", self.vocab_size), ("source_pad_id", source)):
            if getattr(self, name) < 0:
                object.__setattr__(self, name, size + getattr(self, name))
            if not 0 <= getattr(self, name) < size:
                raise ValueError(f"{name} {getattr(self, name)} lies outside 0 … {size - 1}")
            if self.source_vocab_size is None and name == "pad_id" and self.source_pad_id < 0:
                object.__setattr__(self, "source_pad_id", self.pad_id)
        if not 0 <= self.eos_id < self.vocab_size or self.eos_id == self.pad_id:
            raise ValueError(f"eos_id {self.eos_id} must be an id other than pad_id {self.pad_id}")
        return self

    @property
    def n_decoder_layers(self) -> int:
        return 1


_COLUMNS = ("cell", "d_model", "n_encoder_layers")
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {
        "tiny":  ("gru", 64,   1),
        "small": ("gru", 256,  1),
        "base":  ("gru", 1000, 1),
    }.items()
}
# fmt: on


class RecurrentTranslator(EncoderDecoder):
    """A bidirectional encoder and a decoder that aligns; see EncoderDecoder for the verbs."""

    def __init__(self, config: RecurrentTranslatorConfig) -> None:
        super().__init__()
        c = self.config = config
        self.target_embed = TokenEmbedding(c.vocab_size, c.d_model, pad_id=c.pad_id, scale=1.0)
        self.source_embed = self.target_embed
        if c.source_vocab_size is not None:
            self.source_embed = TokenEmbedding(
                c.source_vocab_size, c.d_model, pad_id=c.source_pad_id, scale=1.0
            )
        self.stream_dropout = Dropout(c.dropout)
        self.encoder = CELLS[c.cell](
            c.d_model,
            c.d_model,
            c.n_encoder_layers,
            batch_first=True,
            bidirectional=True,
            dropout=c.dropout if c.n_encoder_layers > 1 else 0.0,
        )
        self.first_state = Linear(c.d_model, c.d_model)
        self.decoder = nn.ModuleList([AligningCell(c)])
        tied = self.target_embed.weight if c.tie_output else None
        self.output_head = VocabularyHead(c.vocab_size, c.d_model, tied=tied, pad_id=c.pad_id)
        self._start()

    def _start(self) -> None:
        """Matrices N(0, 1/fan-in), recurrent ones orthogonal, vectors 0, v N(0, 1/C).

        The paper's (appendix B.1) are smaller, N(0, 0.01²), and v is 0; it learns by Adadelta.
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                nn.init.zeros_(parameter)
            elif "weight_hh" in name:
                for gate in parameter.detach().split(self.config.d_model):
                    nn.init.orthogonal_(gate)
            else:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        for part in self.modules():
            if isinstance(part, AdditiveAttention):
                nn.init.normal_(part.score, std=self.config.d_model**-0.5)
        for table in (self.source_embed, self.target_embed):
            nn.init.zeros_(table.weight[table.pad_id])

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Memory:
        """source int64 (B, S), mask bool (B, S) True = token → annotations (B, S, 2C)."""
        x = self.stream_dropout(self.source_embed(source))  # (B, S, C)
        if source_mask is None:
            return Memory(self.encoder(x)[0])
        x = x.masked_fill(~source_mask[..., None], 0)
        places = _real_first(source_mask)
        lengths = source_mask.sum(1).clamp_min(1).cpu()  # an empty row is given one, then hidden
        packed = pack_padded_sequence(
            x.gather(1, places[..., None].expand_as(x)),
            lengths,
            batch_first=True,
            enforce_sorted=False,
        )
        rows, _ = pad_packed_sequence(
            self.encoder(packed)[0], batch_first=True, total_length=source.shape[1]
        )
        states = torch.zeros_like(rows).scatter(1, places[..., None].expand_as(rows), rows)
        states = states.masked_fill(~source_mask[..., None], 0)
        return Memory(states, masks.keys(source_mask, zeroed=True))

    def read_target(
        self,
        target: Tensor,
        memory: Memory,
        target_mask: Tensor | None,
        packing: Packing | None,
        cache: Any = None,
    ) -> Tensor:
        """The readouts t_i, step by step: (B, T, C), or packed (N, C)."""
        places = None if target_mask is None else _real_first(target_mask)
        x = self.stream_dropout(self.target_embed(target))  # (B, T, C)
        if target_mask is not None and places is not None:
            x = x.masked_fill(~target_mask[..., None], 0)
            x = x.gather(1, places[..., None].expand_as(x))
        cache = self.cache(memory, target.shape[1]) if cache is None else cache
        cache.states.check(target.shape[1])
        state, start, parents = cache.states.state, cache.length, cache.parents
        state = self._first_state(memory, target.shape[0]) if state is None else state
        rows = [x[:, :0]]
        for i in range(target.shape[1]):
            step = Step(start + i, parents if i == 0 else None)
            row, state = self.decoder[0](x[:, i : i + 1], state, memory, cache.cross_attn[0], step)
            rows.append(row)
        cache.append(target.shape[1], state)
        out = self.stream_dropout(torch.cat(rows, 1))
        if target_mask is None or places is None:
            return out
        out = torch.zeros_like(out).scatter(1, places[..., None].expand_as(out), out)
        return packing.pack(out) if packing else out.masked_fill(~target_mask[..., None], 0)

    def cache(self, memory: Memory, max_len: int, *, beams: int = 1) -> Any:
        """An empty cache for max_len target positions; how many rows come with the first ids."""
        return StateDecoderCache(
            max_len, memory_mask=None if memory.mask is None else memory.mask.key_mask
        )

    def _first_state(self, memory: Memory, n_rows: int) -> State:
        """s_0 of what the backward cell has read when it reaches the first token."""
        states, real = memory.states, None if memory.mask is None else memory.mask.key_mask
        first = states.new_zeros(states.shape[0], dtype=torch.long)
        first = first if real is None else real.byte().argmax(1)
        backwards = states[torch.arange(states.shape[0]), first, self.config.d_model :]
        s = torch.tanh(self.first_state(backwards))
        s = s.repeat_interleave(n_rows // max(1, s.shape[0]), 0)
        return (s, torch.zeros_like(s)) if self.config.cell == "lstm" else (s,)


class AligningCell(nn.Module):
    """One step of the decoder: look, move on, say."""

    def __init__(self, c: RecurrentTranslatorConfig) -> None:
        super().__init__()
        self.cross_attn = AdditiveAttention(
            c.d_model, 2 * c.d_model, d_score=c.d_model, dropout=c.attention_dropout
        )
        self.cell = STEPS[c.cell](3 * c.d_model, c.d_model)
        self.readout = Linear(4 * c.d_model, 2 * c.d_model)

    def forward(
        self, x: Tensor, state: State, memory: Memory, cache: Any, step: Step
    ) -> tuple[Tensor, State]:
        """E y_{i−1} (B, 1, C) and the state s_{i−1} (B, C) → t_i (B, 1, C) and s_i."""
        y = x[:, 0]
        context = self.cross_attn.read(state[0], memory.states, memory.mask, cache, step)
        moved = self.cell(torch.cat([y, context], 1), state if len(state) == 2 else state[0])
        state = moved if isinstance(moved, tuple) else (moved,)
        pairs = self.readout(torch.cat([state[0], y, context], 1)).unflatten(1, (-1, 2))
        return pairs.amax(-1)[:, None], state


def _real_first(real: Tensor) -> Tensor:
    """(B, T) places of each row: the real ones in order, then the others."""
    return real.logical_not().to(torch.uint8).sort(dim=1, stable=True).indices
