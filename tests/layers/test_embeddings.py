"""Embeddings below, the vocabulary head above, tied, with a padding row that stays zero."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.heads import VocabularyHead


def test_rows_are_scaled_by_the_root_of_the_width() -> None:
    table = TokenEmbedding(7, 16)
    ids = torch.tensor([[1, 6], [0, 1]])
    assert torch.equal(table(ids), table.weight[ids] * 4)


def test_scaled_rows_start_with_variance_one() -> None:
    torch.manual_seed(0)
    table = TokenEmbedding(500, 64)
    assert table(torch.arange(500)).var().item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("pad_id", [0, 6, -1])
def test_the_padding_row_starts_at_zero_and_nothing_else_does(pad_id: int) -> None:
    table = TokenEmbedding(7, 16, pad_id=pad_id)
    assert torch.equal(table(torch.tensor([pad_id % 7])), torch.zeros(1, 16))
    assert (table.weight.detach().abs().sum(1) == 0).sum() == 1
    assert table.weight.is_leaf


def test_without_a_padding_id_no_row_is_zero() -> None:
    assert (TokenEmbedding(7, 16).weight.abs().sum(1) > 0).all()


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    ],
)
def test_the_padding_row_stays_zero_while_a_tied_head_trains(optimizer) -> None:
    table = TokenEmbedding(7, 8, pad_id=6)
    head = VocabularyHead(7, 8, tied=table.weight, pad_id=6)
    steps = optimizer(nn.ModuleList([table, head]).parameters())
    before = table.weight.detach().clone()
    for _ in range(5):
        ids = torch.randint(0, 7, (4, 5))  # padding is among the inputs, and never a label
        loss = F.cross_entropy(head(table(ids)).flatten(0, 1), torch.randint(0, 6, (20,)))
        steps.zero_grad()
        loss.backward()
        steps.step()
        assert loss.isfinite()
    assert torch.equal(table.weight[6], torch.zeros(8))
    assert (table.weight[:6] - before[:6]).abs().min() > 0


def test_padding_is_never_predicted_and_takes_no_probability() -> None:
    head = VocabularyHead(5, 8, tied=None, pad_id=4)
    hidden = torch.randn(3, 2, 8)
    logits = head(hidden)
    assert logits[..., 4].eq(float("-inf")).all()
    torch.testing.assert_close(logits[..., :4], hidden @ head.weight[:4].T, rtol=0, atol=1e-6)
    assert logits.softmax(-1)[..., 4].eq(0).all()
    head.half()
    assert head(hidden.half())[..., 4].eq(float("-inf")).all()


def test_a_tied_head_is_the_table_itself_and_an_untied_one_is_not() -> None:
    table = TokenEmbedding(5, 8)
    both = nn.ModuleList([table, VocabularyHead(5, 8, tied=table.weight, pad_id=None)])
    assert both[1].weight is table.weight and len(list(both.parameters())) == 1
    assert both[1].bias.eq(0).all()
    assert VocabularyHead(5, 8, tied=None, pad_id=None).weight.shape == (5, 8)


def test_the_heads_bias_is_saved_and_not_trained() -> None:
    head = VocabularyHead(5, 8, tied=None, pad_id=4)
    assert set(head.state_dict()) == {"weight", "bias"}
    assert [name for name, _ in head.named_parameters()] == ["weight"]
