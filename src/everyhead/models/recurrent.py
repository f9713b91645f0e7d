"""Recurrent networks as language models: a state goes from word to word (B17-21).

    RNN    h_t = tanh(W x_t + U h_{t−1} + b)                    Elman 1990
    LSTM   gates write into, keep and read a cell                Hochreiter & Schmidhuber 1997
    GRU    two gates mix the old state with a new one            Cho et al. 2014 (1406.1078)

    hidden = layers(E[ids])        logits = hidden Eᵀ, or of a table of its own

The layers are torch.nn.RNN, LSTM and GRU. The family owns its loop, as there are no blocks: the
depth of the computation grows with the text, and the state is all that is left of the past.
"""

from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from everyhead.layers.dropout import Dropout
from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.states import State, StateCache

CELLS: dict[str, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class RecurrentConfig(BaseModel):
    """One width for embeddings and states, so that the table can be the output's too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = Field(10_000, gt=0)
    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    d_model: int = Field(256, gt=0)
    n_layers: int = Field(2, gt=0)
    dropout: float = Field(0.1, ge=0, lt=1)  # of embeddings, between layers and of the last states
    tie_output: bool = True
    max_len: int = Field(1024, gt=0)  # of the texts it learns from; it reads longer ones as well
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None


_COLUMNS = ("cell", "d_model", "n_layers")
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {
        "tiny":      ("lstm", 64,  2),
        "small":     ("lstm", 512, 2),
        "tiny-gru":  ("gru",  64,  2),
        "small-gru": ("gru",  512, 2),
        "tiny-rnn":  ("rnn",  64,  2),
        "small-rnn": ("rnn",  512, 2),
    }.items()
}
# fmt: on


class Recurrent(nn.Module):
    """Next pieces: `hidden`, `real_hidden`, `head`, forward = head of hidden, `cache`."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        c = self.config = config
        between = c.dropout if c.n_layers > 1 else 0.0
        self.token_embed = TokenEmbedding(c.vocab_size, c.d_model, scale=1.0)
        self.cells = CELLS[c.cell](
            c.d_model, c.d_model, c.n_layers, batch_first=True, dropout=between
        )
        self.stream_dropout = Dropout(c.dropout)
        tied = self.token_embed.weight if c.tie_output else None
        self.output_head = VocabularyHead(c.vocab_size, c.d_model, tied=tied, pad_id=None)
        self._start()

    def _start(self) -> None:
        """The table N(0, 1/C); the cells as torch.nn draws them, uniform in ±1/√C."""
        nn.init.normal_(self.output_head.weight, std=self.config.d_model**-0.5)
        nn.init.normal_(self.token_embed.weight, std=self.config.d_model**-0.5)

    def hidden(
        self, ids: Tensor, mask: Tensor | None = None, *, cache: StateCache | None = None
    ) -> Tensor:
        """ids int64 (B, T), mask bool (B, T) True = token → (B, T, C), zeros at padding.

        Padding is left out wherever it stands: the cells read the real tokens one after the other.
        With a cache, ids are the new positions alone.

        Raises:
            ValueError: more positions than the cache holds.
        """
        if cache is not None:
            cache.check(ids.shape[1])
        x = self.stream_dropout(self.token_embed(ids))  # (B, T, C)
        before = None if cache is None else cache.state
        if mask is None:
            out, state = self.cells(x, self._to_cells(before))
        else:
            x = x.masked_fill(~mask[..., None], 0)
            out, state = self._real_alone(x, mask, before)
        if cache is not None:
            cache.append(ids.shape[1], self._from_cells(state))
        return self.stream_dropout(out)

    def _real_alone(
        self, x: Tensor, real: Tensor, before: State | None
    ) -> tuple[Tensor, Tensor | tuple[Tensor, ...]]:
        """The cells over real tokens, and the state after each row's last; (B, T, C) as x lies."""
        padding = real.logical_not().to(torch.uint8)
        order = padding.sort(dim=1, stable=True).indices  # real ones first
        places = order[..., None].expand_as(x)
        lengths = real.sum(1)  # (B,)
        state = self._to_cells(self._started(before, x))
        packed = pack_padded_sequence(
            x.gather(1, places), lengths.clamp_min(1).cpu(), batch_first=True, enforce_sorted=False
        )
        out, after = self.cells(packed, state)
        rows, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        rows = torch.zeros_like(rows).scatter(1, places, rows)
        rows = rows.masked_fill(~real[..., None], 0)
        # A row without a token was given one of zeros: its state stays what it was.
        empty = (lengths == 0)[None, :, None]
        if isinstance(after, tuple):
            kept = tuple(torch.where(empty, a, b) for a, b in zip(state, after, strict=True))
            return rows, kept
        return rows, torch.where(empty, state, after)

    def _started(self, before: State | None, x: Tensor) -> State:
        if before is not None:
            return before
        zeros = x.new_zeros(x.shape[0], self.config.n_layers, self.config.d_model)
        return (zeros, zeros) if self.config.cell == "lstm" else (zeros,)

    def _to_cells(self, state: State | None) -> Any:
        """(B, L, C) each → as torch.nn wants it: (L, B, C), a pair for the LSTM."""
        if state is None:
            return None
        turned = tuple(x.transpose(0, 1).contiguous() for x in state)
        return turned if self.config.cell == "lstm" else turned[0]

    def _from_cells(self, state: Tensor | tuple[Tensor, ...]) -> State:
        several = state if isinstance(state, tuple) else (state,)
        return tuple(x.transpose(0, 1) for x in several)

    def real_hidden(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """`hidden` at the real tokens alone, row by row: (N, C), what a loss needs."""
        out = self.hidden(ids, mask)
        return out.flatten(0, 1) if mask is None else out[mask]

    def head(self, hidden: Tensor) -> Tensor:
        """(…, C) → logits (…, V)."""
        return self.output_head(hidden)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits (B, T, V) of the piece after each place."""
        return self.head(self.hidden(ids, mask))

    def cache(
        self, max_len: int, rows: int = 1, device: torch.device | str | None = None
    ) -> StateCache:
        """An empty cache for at most max_len positions; rows and device come with the first ids."""
        return StateCache(max_len)
