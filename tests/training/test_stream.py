"""The row of batches: each sentence once an epoch, and a place that is two numbers."""

import torch

from everyhead.training.stream import Position
from tests.training import tiny


def read(stream, n: int) -> list[tuple[tuple, torch.Tensor]]:
    return [(tuple(stream.position), stream.take().source) for _ in range(n)]


def equal(one, other) -> bool:
    return all(p == q and torch.equal(a, b) for (p, a), (q, b) in zip(one, other, strict=True))


def test_an_epoch_has_every_sentence_once_and_the_next_another_order():
    ids = tiny.pairs(10)
    stream = tiny.stream(ids, batch_sentences=4)
    epochs = []
    for epoch in range(3):
        rows = []
        while stream.position.epoch == epoch:
            batch = stream.take()
            rows += [row[real].tolist() for row, real in zip(*batch[:2], strict=True)]
        assert sorted(rows) == sorted([*row, 0] for row in ids.source)
        epochs.append(rows)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_place_of_a_new_stream_in_the_middle_of_an_epoch_gives_the_same_batches():
    whole = read(tiny.stream(), 20)
    later = tiny.stream()
    later.position = Position(*whole[9][0])
    assert later.position == (1, 2)
    assert equal(read(later, 11), whole[9:])


def test_no_random_number_is_drawn_and_none_matters():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    one = read(tiny.stream(), 9)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(4)
    assert equal(one, read(tiny.stream(), 9))


def test_the_seed_decides_the_order():
    assert not equal(read(tiny.stream(seed=1), 5), read(tiny.stream(seed=2), 5))


def test_a_peek_does_not_move():
    stream = tiny.stream()
    stream.take()
    seen = stream.peek()
    assert stream.position == (0, 1)
    assert torch.equal(seen.labels, stream.take().labels)


def test_a_corpus_smaller_than_a_batch_is_one_batch_an_epoch():
    stream = tiny.stream(tiny.pairs(2), batch_sentences=50)
    assert [len(stream.take().source) for _ in range(3)] == [2, 2, 2]
    assert stream.position == (3, 0)


def test_the_fingerprint_tells_other_sentences_and_other_batches():
    fingerprints = [
        tiny.stream().fingerprint,
        tiny.stream(seed=2).fingerprint,
        tiny.stream(batch_sentences=5).fingerprint,
        tiny.stream(batch_sentences=None, batch_tokens=40).fingerprint,
        tiny.stream(sort=True).fingerprint,
        tiny.stream(tiny.pairs(25)).fingerprint,
        tiny.stream(tiny.pairs(seed=5)).fingerprint,
    ]
    assert len(set(fingerprints)) == len(fingerprints)
    assert tiny.stream().fingerprint == fingerprints[0]
