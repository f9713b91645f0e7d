"""Defect: a batch padded on the left has, silently, another loss: 13.59 where it was 4.50."""

import pytest
import torch
from torch import Tensor

from everyhead.data.batching import Batch
from everyhead.training.losses import batch_loss
from tests.training import tiny

N_PAD = range(9)


def padded_left(ids: Tensor, n: int, value: int | bool) -> Tensor:
    return torch.cat([ids.new_full((ids.shape[0], n), value), ids], 1)


def with_left_padding(batch: Batch, n: int, pad_id: int) -> Batch:
    """The same sentences behind n more places of padding on both sides' left."""
    return batch._replace(
        source=padded_left(batch.source, n, pad_id),
        source_mask=padded_left(batch.source_mask, n, False),
        target_in=padded_left(batch.target_in, n, pad_id),
        labels=padded_left(batch.labels, n, pad_id),
        target_mask=padded_left(batch.target_mask, n, False),
    )


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_0_to_8_places_of_padding_on_the_left_change_no_loss(positions: str) -> None:
    model = tiny.model(dropout=0.0, positions=positions, max_len=32).double()
    plain = tiny.batch(tiny.pairs(), [0, 1, 2, 3])
    expected = batch_loss(model, plain, 0.1).smoothed
    for n in N_PAD:
        found = batch_loss(model, with_left_padding(plain, n, tiny.CONFIG.pad_id), 0.1).smoothed
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
