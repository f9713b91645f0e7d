"""Models that torch.compile has wrapped: recorded, changed and named as they are without it."""

import threading

import pytest
import torch

from everyhead.inspection.changes import HeadOff
from everyhead.inspection.trace import Trace, record
from tests.inspection.foreign import inputs, make
from tests.laws.families import batch, build

NEAR = {"rtol": 0, "atol": 1e-5}
PLACE = "decoder.1.self_attn"


@pytest.fixture(autouse=True)
def nothing_stays_compiled():
    torch._dynamo.reset()
    yield
    assert torch._dynamo.eval_frame._stance.stance == "default"
    torch._dynamo.reset()


class Counts:
    """A backend that runs the graph as it is and counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, graph, example):
        def run(*args):
            self.runs += 1
            return graph.forward(*args)

        return run


def compiled(model, way: str, counts: Counts):
    if way == "wrapped":
        return torch.compile(model, backend=counts)
    if way == "in place":
        model.compile(backend=counts)
    else:
        model.forward = torch.compile(model.forward, backend=counts)
    return model


@pytest.mark.parametrize("way", ["wrapped", "in place", "forward"])
@torch.no_grad()
def test_a_change_reaches_a_model_that_has_run_compiled_before(way: str):
    given = inputs("gpt2")
    off = [HeadOff("decoder.0.self_attn", [0, 2])]
    with record(make("gpt2"), off) as wanted:
        changed = wanted.model(**given).logits
    counts = Counts()
    model = compiled(make("gpt2"), way, counts)
    plain = model(**given).logits
    runs = counts.runs
    assert runs > 0
    with record(model, off) as trace:
        found = model(**given).logits
    assert counts.runs == runs, "it ran as it was written"
    torch.testing.assert_close(found, changed, **NEAR)
    assert not torch.allclose(found, plain, atol=1e-3)
    assert trace.places() == wanted.places()
    torch.testing.assert_close(trace[PLACE].weights(), wanted[PLACE].weights(), **NEAR)
    torch.testing.assert_close(trace.residual("decoder.1"), wanted.residual("decoder.1"), **NEAR)
    torch.testing.assert_close(trace.logits("decoder.1"), found, **NEAR)
    torch.testing.assert_close(model(**given).logits, plain, **NEAR)
    assert counts.runs > runs, "and compiled again when nobody looks"


@torch.no_grad()
def test_two_recordings_that_overlap_leave_what_is_compiled_compiled():
    model, given = make("gpt2"), inputs("gpt2")
    inside, first_ended = threading.Event(), threading.Event()

    def other() -> None:
        with record(model):
            inside.set()
            first_ended.wait(30)

    thread = threading.Thread(target=other)
    with record(model):
        thread.start()
        inside.wait(30)
    first_ended.set()
    thread.join()
    assert torch._dynamo.eval_frame._stance.stance == "default"
    counts = Counts()
    compiled(model, "in place", counts)(**given)
    assert counts.runs > 0


@torch.no_grad()
def test_places_of_a_compiled_model_of_ours_have_their_own_names():
    plain = build("transformer-post")
    sides = batch(plain)
    real = sides.target_mask
    with record(plain) as wanted:
        plain(*sides)
    part = build("transformer-post")
    part.decoder.blocks[1] = torch.compile(part.decoder.blocks[1], backend="eager")
    with record(part) as trace, torch.compiler.set_stance("force_eager"):  # names alone: fast
        part(*sides)
    whole = torch.compile(plain, backend="eager")
    name = "decoder.1.cross_attn"
    for each in (trace, Trace(whole)):
        assert each.places() == wanted.places() and each.layers() == wanted.layers()
        place = each[name]
        assert "_orig_mod." in place.path and each[place.path] is place
        assert each["decoder.blocks.1.cross_attn"] is place
        assert each[place.path.replace(".blocks.", ".")] is place
    weights = [each[name].weights().transpose(1, 2)[real] for each in (trace, wanted)]
    torch.testing.assert_close(*weights, **NEAR)
    layer = "decoder.blocks.1._orig_mod"
    for read in (Trace.residual, Trace.logits):
        found, other = read(trace, layer), read(wanted, "decoder.1")
        torch.testing.assert_close(found[real], other[real], **NEAR)


@torch.no_grad()
def test_a_place_of_a_compiled_model_is_found_by_its_path_without_the_wrapper():
    model = torch.compile(make("gpt2"), backend="eager")
    with record(model) as trace:
        model(**inputs("gpt2"))
    place = trace[PLACE]
    for path in ("_orig_mod.transformer.h.1.attn", "transformer.h.1.attn", "h.1.attn"):
        assert trace[path] is place
