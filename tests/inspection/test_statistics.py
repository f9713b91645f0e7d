"""Head statistics beside loops in NumPy float64, and heads whose work is known."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everyhead.inspection import rows
from everyhead.inspection.statistics import NUMBERS, head_statistics, table
from everyhead.layers.attention import Parts
from everyhead.layers.attention import weights as weights_of
from everyhead.layers.masks import causal


def softmax_rows(rng: np.random.Generator, *shape: int) -> np.ndarray:
    powers = np.exp(3 * rng.standard_normal(shape))
    return powers / powers.sum(-1, keepdims=True)


def naive(a: np.ndarray, special: list[bool], ids: list[int], kind: str) -> dict[str, float | None]:
    """The definitions, one cell after the other; a (T, S)."""
    n_queries, n_keys = a.shape
    found: dict[str, list[float]] = {name: [] for name in NUMBERS}
    for i in range(n_queries):
        row = [0.0 if math.isnan(x) else float(x) for x in a[i]]
        if sum(row) == 0:
            continue
        p = i + n_keys - n_queries
        found["entropy"].append(-sum(x * math.log(x) for x in row if x > 0))
        if any(special):
            found["special"].append(sum(x for x, s in zip(row, special, strict=True) if s))
        if kind == "cross":
            found["first"].append(row[0])
            continue
        found["distance"].append(sum(x * abs(p - j) for j, x in enumerate(row)))
        for name, key in (("self", p), ("previous", p - 1), ("next", p + 1)):
            if 0 <= key < n_keys:
                found[name].append(row[key])
        if p > 0:
            found["first"].append(row[0])
        copies = [j for j in range(max(0, p)) if ids[j] == ids[p] and not special[j]]
        if copies:
            found["duplicate"].append(sum(row[j] for j in copies))
            found["induction"].append(sum(row[j + 1] for j in copies))
    return {name: sum(x) / len(x) if x else None for name, x in found.items()}


def check(a: np.ndarray, special: list[bool], ids: list[int], kind: str = "self") -> None:
    got = head_statistics(a, special, ids, kind=kind)
    assert len(got) == len(a)
    for head, numbers in zip(a, got, strict=True):
        expected = naive(head, special, ids, kind)
        for name, value in numbers.numbers().items():
            if expected[name] is None:
                assert value is None, name
            else:
                assert value == pytest.approx(expected[name], abs=1e-12), name


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(0, 4), st.data())
def test_numbers_are_those_of_the_naive_loop(
    h: int, t: int, more: int, data: st.DataObject
) -> None:
    s = t + more
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    a = softmax_rows(rng, h, t, s)
    ids = data.draw(st.lists(st.integers(0, 3), min_size=s, max_size=s))
    special = data.draw(st.lists(st.booleans(), min_size=s, max_size=s))
    if data.draw(st.booleans()):  # causal, NaN where hidden
        seen = np.tril(np.ones((t, s), dtype=bool), s - t)
        a = np.where(seen, a, 0)
        a = np.where(seen, a / a.sum(-1, keepdims=True), np.nan)
    if data.draw(st.booleans()):
        a[:, rng.integers(t)] = 0  # a query that sees nothing
    check(a, special, ids, data.draw(st.sampled_from(["self", "cross"])))


def test_rows_in_chunks_are_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a = softmax_rows(np.random.default_rng(0), 3, 17, 17)
    special, ids = [True] + [False] * 16, [i % 5 for i in range(17)]
    whole = head_statistics(a, special, ids)
    monkeypatch.setattr(rows, "AT_ONCE", 3 * 17 * 4)
    chunks = [start for start, _ in rows.Matrix(a).chunks()]
    assert chunks == [0, 4, 8, 12, 16]
    for one, other in zip(whole, head_statistics(a, special, ids), strict=True):
        assert list(one.numbers().values()) == pytest.approx(list(other.numbers().values()))


class Lazy:
    """A place of a trace: rows are computed when asked; here two texts and a causal mask."""

    kind = "self"

    def __init__(self, n: int, heads: int = 2, batch: int = 2, queries: int | None = None) -> None:
        torch.manual_seed(0)
        q, k, v = torch.randn(3, batch, heads, n, 4)
        self.parts = Parts(q[:, :, -(queries or n) :], k, v, 0.5)
        self.shape, self.largest = (*self.parts.q.shape[:3], n), 0

    def weights(self, heads=None, rows=None):
        found = weights_of(self.parts, causal(), heads, rows)
        self.largest = max(self.largest, found.numel())
        return found


def test_a_place_is_read_by_its_rows() -> None:
    place = Lazy(9)
    ids, special = [1, 2, 3, 1, 2, 3, 1, 2, 3], [False] * 9
    full = place.weights().double().numpy()
    for batch in (0, 1):
        got = head_statistics(place, special, ids, batch=batch)
        for head, numbers in zip(full[batch], got, strict=True):
            expected = naive(head, special, ids, "self")
            for name, value in numbers.numbers().items():
                assert value == pytest.approx(expected[name], abs=1e-6), name
    with pytest.raises(ValueError, match="no text 2"):
        head_statistics(place, batch=2)


def test_16384_tokens_take_some_rows_at_a_time() -> None:
    n, last = 16_384, 256  # the last queries of a long text; all of them take 64 times as long
    place, ids = Lazy(n, heads=1, batch=1, queries=last), np.arange(n) % 5000
    (numbers,) = head_statistics(place, np.arange(n) == 0, ids)
    assert place.largest <= rows.AT_ONCE < last * n
    some = [0, 100, 255]
    sums = [naive_row(place, i, ids) for i in some]
    assert all(0 < entropy < math.log(n) for entropy, _ in sums)
    alone = [head_statistics(place, None, ids, queries=np.arange(last) == i)[0] for i in some]
    for found, (entropy, induction) in zip(alone, sums, strict=True):
        assert found.entropy == pytest.approx(entropy, rel=1e-4)
        assert found.induction == pytest.approx(induction, rel=1e-4)
    assert numbers.distance is not None and n / 4 < numbers.distance < n


def naive_row(place: Lazy, i: int, ids: np.ndarray) -> tuple[float, float]:
    """Entropy and induction of one query."""
    row = place.weights(rows=slice(i, i + 1))[0, 0, 0].double().numpy()
    p = i + len(ids) - place.shape[2]
    after = [j + 1 for j in range(p) if ids[j] == ids[p]]
    return -sum(x * math.log(x) for x in row if x > 0), sum(row[j] for j in after)


def shifted(n: int, by: int) -> np.ndarray:
    a = np.full((n, n), 0.2 / n)
    for i in range(n):
        a[i, max(0, min(n - 1, i + by))] += 0.8
    return a


def test_heads_whose_work_is_known_get_its_name() -> None:
    n, ids = 12, [0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 9]
    special = [i in (0, 11) for i in range(n)]
    induction, duplicate = np.full((2, n, n), 1 / n)
    for i in range(6, 11):
        induction[i] = np.eye(n)[i - 4]
        duplicate[i] = np.eye(n)[i - 5]
    first, specials, even = np.full((3, n, n), 0.1 / n)
    first[:, 0] += 0.9
    specials[:, 0] += 0.45
    specials[:, 11] += 0.45
    even[:] = 1 / n
    mixed = 0.45 * shifted(n, -1) + 0.45 * shifted(n, 1) + 0.1 / n
    heads = [shifted(n, 0), shifted(n, -1), shifted(n, 1), induction, duplicate, first, specials]
    numbers = head_statistics(np.array([*heads, even, mixed]), special, ids)
    assert [head.name for head in numbers] == [
        *("self", "previous token", "next token", "induction", "duplicate token"),
        *("first token", "special tokens", "broad", None),
    ]


def test_a_short_text_gives_nobody_a_name() -> None:
    two = np.array([[[0.1, 0.9], [0.9, 0.1]], [[0.9, 0.1], [0.1, 0.9]]])
    assert [head.name for head in head_statistics(two, [True, False], [1, 1])] == [None, None]
    lower = np.tril(np.ones((3, 3)))
    (even,) = head_statistics((lower / lower.sum(-1, keepdims=True))[None])
    assert even.name == "broad"


def test_padded_queries_are_left_out() -> None:
    a = softmax_rows(np.random.default_rng(1), 2, 6, 6)
    a[:, :, 4:] = 0
    a /= a.sum(-1, keepdims=True)
    real = np.arange(6) < 4
    short = head_statistics(a[:, :4, :4], None, [1, 2, 1, 2])
    padded = head_statistics(a, None, [1, 2, 1, 2, 0, 0], queries=real)
    for one, other in zip(short, padded, strict=True):
        for name in ("entropy", "distance", "self", "previous", "first", "duplicate", "induction"):
            assert one.numbers()[name] == pytest.approx(other.numbers()[name]), name


def test_numbers_as_a_table_for_the_page() -> None:
    a = softmax_rows(np.random.default_rng(2), 2, 4, 4)
    found = table([head_statistics(a), head_statistics(a[:1])])
    assert list(found) == list(NUMBERS) and [len(layer) for layer in found["self"]] == [2, 1]
    assert found["special"] == [[None, None], [None]]
    assert found["self"][0][0] == pytest.approx(np.diagonal(a[0]).mean())


def test_shapes_that_do_not_fit_are_refused() -> None:
    a = softmax_rows(np.random.default_rng(3), 2, 4, 4)
    with pytest.raises(ValueError, match=r"one text of a batch"):
        head_statistics(a[None])
    with pytest.raises(ValueError, match="special must have one mark for each of 4"):
        head_statistics(a, [True])
    with pytest.raises(ValueError, match="3 ids for 4 keys"):
        head_statistics(a, None, [1, 2, 3])
    with pytest.raises(ValueError, match="'sideways'"):
        head_statistics(a, kind="sideways")
