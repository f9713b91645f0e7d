"""The probe: nobody looks and nothing happens; somebody looks and sees, or changes, the parts."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from everyhead.layers import masks, probe
from everyhead.layers.attention import Parts, attend, mix, weights
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention


class Notes:
    """Keeps all that it is shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[nn.Module, Parts, Mask | None]] = []

    def attention(
        self, module: nn.Module, parts: Parts, mask: Mask | None, attend: probe.Attend
    ) -> Tensor:
        self.seen.append((module, parts, mask))
        return attend(parts, mask)


class Silence:
    """Replaces every value by zero."""

    def attention(
        self, module: nn.Module, parts: Parts, mask: Mask | None, attend: probe.Attend
    ) -> Tensor:
        return attend(parts._replace(v=torch.zeros_like(parts.v)), mask)


@pytest.fixture
def notes() -> Iterator[Notes]:
    observer = Notes()
    probe.attach(observer)
    yield observer
    probe.detach(observer)
    assert not probe.active()


def test_nobody_looks_unless_attached() -> None:
    assert not probe.active()
    observer = Notes()
    probe.attach(observer)
    assert probe.active()
    probe.detach(observer)
    assert not probe.active()
    with pytest.raises(ValueError):
        probe.detach(observer)


def test_looking_changes_nothing_and_shows_the_finished_parts(notes: Notes) -> None:
    layer = MultiHeadAttention(8, 2).eval()
    x, mask = torch.randn(2, 5, 8), masks.causal()
    seen = layer(x, mask)
    ((module, parts, rule),) = notes.seen
    assert module is layer and rule is mask
    probe.detach(notes)
    assert torch.equal(layer(x, mask), seen)
    probe.attach(notes)
    heads = mix(weights(parts, rule), parts, rule)
    torch.testing.assert_close(attend(parts, rule), heads, rtol=0, atol=1e-6)
    joined = layer.o_proj(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(joined, seen, rtol=0, atol=1e-6)


def test_an_observer_may_change_the_parts_and_the_next_sees_it(notes: Notes) -> None:
    silence = Silence()
    layer = MultiHeadAttention(8, 2, bias=False).eval()
    probe.detach(notes)
    probe.attach(silence)
    probe.attach(notes)
    out = layer(torch.randn(2, 5, 8))
    probe.detach(silence)
    assert torch.equal(out, torch.zeros(2, 5, 8))
    assert notes.seen[0][1].v.eq(0).all()


def test_forward_leaves_nothing_on_the_module(notes: Notes) -> None:
    layer = MultiHeadAttention(8, 2)
    before = dict(vars(layer))
    layer(torch.randn(1, 3, 8), masks.causal())
    assert vars(layer) == before


def test_an_observer_sees_its_own_thread_alone(notes: Notes) -> None:
    layer = MultiHeadAttention(8, 2)
    seen = []

    def elsewhere() -> None:
        seen.append(probe.active())
        layer(torch.randn(1, 3, 8))
        other = Notes()
        probe.attach(other)
        layer(torch.randn(1, 3, 8))
        probe.detach(other)
        seen.append(len(other.seen))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [False, 1] and not notes.seen and probe.active()


def test_many_threads_that_look_at_once_leave_nobody_looking() -> None:
    layer = MultiHeadAttention(8, 2)

    def look() -> int:
        count = 0
        for _ in range(20):
            observer = Notes()
            probe.attach(observer)
            layer(torch.randn(1, 3, 8))
            probe.detach(observer)
            count += len(observer.seen)
        return count

    with ThreadPoolExecutor(4) as pool:
        assert [x.result() for x in [pool.submit(look) for _ in range(4)]] == [20] * 4
    assert not probe.active() and probe._anywhere == 0


@pytest.mark.slow
def test_a_traced_graph_sees_nobody_and_is_traced_anew_for_who_looks() -> None:
    layer = MultiHeadAttention(8, 2).eval()
    x = torch.randn(1, 3, 8)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    plain = compiled(x)
    torch.testing.assert_close(plain, layer(x))
    loose = torch.compile(layer, backend="eager")
    observer = Notes()
    probe.attach(observer)
    try:
        torch.testing.assert_close(loose(x), plain)
    finally:
        probe.detach(observer)
    assert len(observer.seen) == 1
    torch.testing.assert_close(loose(x), plain)
    assert len(observer.seen) == 1
