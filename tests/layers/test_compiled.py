"""The compiled programs give what PyTorch's calls give, and nothing depends on there being any."""

import copy
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from everyhead.layers import compiled, compiling
from everyhead.layers.compiled import CompiledRows, library, takes
from everyhead.layers.packed import PackedLinear

pytestmark = pytest.mark.skipif(library() is None, reason="there is no C compiler here")


@given(
    rows=st.integers(1, 20),
    n_in=st.integers(1, 70),
    n_out=st.integers(1, 70),
    narrow=st.booleans(),
    relu=st.booleans(),
    biased=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_product_of_any_shape_is_the_product_in_float64(
    rows: int, n_in: int, n_out: int, narrow: bool, relu: bool, biased: bool
) -> None:
    torch.manual_seed(rows)
    weight = torch.randn(n_out, n_in).to(torch.bfloat16 if narrow else torch.float32)
    bias = torch.randn(n_out).to(weight.dtype) if biased else None
    x = torch.randn(rows, n_in)
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    wanted = wanted.relu() if relu else wanted
    found = CompiledRows(weight, bias, relu=relu)(x)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_how_many_threads_there_are_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    rows, x = CompiledRows(torch.randn(500, 96), torch.randn(500)), torch.randn(13, 96)
    found = []
    for n in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=n: n)
        found.append(rows(x))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_what_is_no_number_stays_none() -> None:
    x = torch.tensor([[1.0, float("nan")], [1.0, float("inf")]])
    found = CompiledRows(torch.ones(20, 2), None, relu=True)(x)
    assert found[0].isnan().all() and found[1].isposinf().all()


def test_rows_that_need_a_gradient_are_not_taken() -> None:
    x = torch.randn(2, 8, requires_grad=True)
    assert not takes(x) and not takes(x.detach().double())
    assert not takes(x.detach().to("meta"))
    with torch.no_grad():
        assert takes(x)
    made = PackedLinear(torch.randn(16, 8), torch.randn(16), f="relu")
    made(x).sum().backward()
    assert x.grad is not None and bool(x.grad.any())


def test_rows_that_are_not_contiguous_and_no_rows_at_all() -> None:
    weight, x = torch.randn(33, 8), torch.randn(8, 6)
    made = PackedLinear(weight)
    torch.testing.assert_close(made(x.T), F.linear(x.T, weight), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(made(x.T[:0]), F.linear(x.T[:0], weight))
    assert made(x.T.view(2, 3, 8)).shape == (2, 3, 33)


@pytest.mark.filterwarnings("ignore")
def test_defect_tangents_batches_and_traces_go_through_pytorchs_calls() -> None:
    made, x = PackedLinear(torch.randn(33, 8)).requires_grad_(False), torch.randn(2, 8)
    wanted, moved = made(x), made(2 * x)
    told = torch.func.jvp(made, (x,), (2 * x,))
    torch.testing.assert_close(told, (wanted, moved), rtol=1e-5, atol=1e-5)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(made(forward_ad.make_dual(x, 2 * x))).tangent
    torch.testing.assert_close(tangent, moved, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.func.vmap(made)(x), wanted, rtol=1e-5, atol=1e-5)
    traced = torch.jit.trace(made, x, check_trace=False)
    torch.testing.assert_close(traced(2 * x), moved, rtol=1e-5, atol=1e-5)


def test_defect_a_tensor_without_numbers_is_not_read() -> None:
    made = PackedLinear(torch.randn(33, 8))
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert made(torch.randn(2, 8)).shape == (2, 33)


@pytest.mark.parametrize("width", [4, 16, 24])
def test_defect_rows_of_another_width_are_an_error_and_write_nowhere(width: int) -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        PackedLinear(torch.randn(33, 8))(torch.randn(2, width))


def test_a_copy_reads_its_own_weights() -> None:
    made = PackedLinear(torch.randn(33, 8), torch.randn(33))
    other, x = copy.deepcopy(made), torch.randn(2, 8)
    wanted = made(x)
    assert isinstance(made.row, CompiledRows)
    made.row.weight.zero_()
    assert torch.equal(other(x), wanted) and not torch.equal(made(x), wanted)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, in which nothing is compiled yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_it_is_compiled_once_and_found_again(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.__wrapped__() is not None
    (place,) = (fresh / "everyhead" / "compiled").iterdir()  # and no scratch beside it
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    monkeypatch.setattr(compiled, "compile_into", None)  # a call would fail
    assert library.__wrapped__() is not None


def test_a_relative_cache_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert compiling.cache_folder() == tmp_path / "home" / ".cache" / "everyhead" / "compiled"


@pytest.mark.parametrize("compiler", ["'", "false", "no-such-compiler", f"{sys.executable} -c 1"])
def test_a_compiler_that_fails_is_as_none(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert library.__wrapped__() is None


def test_a_compiler_that_hangs_is_waited_for_once(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, calls = fresh / "cc", fresh / "calls"
    hanging.write_text(f"#!/bin/sh\necho >> {calls}\nexec sleep 60\n", encoding="utf-8")
    hanging.chmod(0o755)
    monkeypatch.setenv("CC", str(hanging))
    monkeypatch.setattr(compiling, "LONGEST", 0.2)
    assert library.__wrapped__() is None
    assert len(calls.read_text(encoding="utf-8").splitlines()) == 1


def test_it_can_be_forbidden(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERYHEAD_COMPILE", "0")
    assert library.__wrapped__() is None and not list(fresh.iterdir())


def test_defect_a_library_where_others_may_write_is_never_run(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fresh / "everyhead" / "compiled"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert library.__wrapped__() is None and not list(folder.iterdir())
    folder.chmod(0o700)
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: 12345)
        assert library.__wrapped__() is None and not list(folder.iterdir())
    (fresh / "everyhead").chmod(0o777)  # another folder could be put in its place
    assert library.__wrapped__() is None and not list(folder.iterdir())
    (fresh / "everyhead").chmod(0o1777)  # there only the owner could
    assert library.__wrapped__() is not None


def test_a_cache_folder_behind_a_link_is_judged_where_it_lies(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fresh / "open" / "mine").mkdir(parents=True)
    (fresh / "open").chmod(0o777)
    (fresh / "link").symlink_to(fresh / "open" / "mine")
    monkeypatch.setenv("XDG_CACHE_HOME", str(fresh / "link"))
    assert compiling.cache_folder() is None
    (fresh / "open").chmod(0o755)
    wanted = (fresh / "open" / "mine" / "everyhead" / "compiled").resolve()
    assert compiling.cache_folder() == wanted


def test_the_group_that_is_the_users_own_may_write(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.chmod(0o770)
    for own in (True, False):
        monkeypatch.setattr(compiling, "_is_private_group", lambda _, own=own: own)
        assert (compiling.cache_folder() is not None) == own


def test_folders_that_are_made_are_the_users_alone(fresh: Path) -> None:
    before = os.umask(0)
    try:
        assert compiling.cache_folder() is not None
    finally:
        os.umask(before)
    for each in (fresh / "everyhead", fresh / "everyhead" / "compiled"):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700


def test_where_nothing_may_run_nothing_is_compiled(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = os.statvfs(fresh)
    flags = SimpleNamespace(f_flag=told.f_flag | os.ST_NOEXEC)
    monkeypatch.setattr(os, "statvfs", lambda _: flags)
    assert library.__wrapped__() is None
    assert not list((fresh / "everyhead" / "compiled").iterdir())


def test_a_file_that_is_no_library_is_compiled_anew(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library.__wrapped__() is not None
    (made,) = (fresh / "everyhead" / "compiled").iterdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(fresh / "other"))
    place = fresh / "other" / "everyhead" / "compiled" / made.name
    place.parent.mkdir(parents=True, mode=0o700)
    place.write_bytes(b"no library")
    assert library.__wrapped__() is not None and place.stat().st_size > 1000


def test_a_library_that_gives_another_product_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "allclose", lambda *_, **__: False)
    assert library.__wrapped__() is None


def test_defect_what_the_default_type_and_device_are_does_not_matter() -> None:
    """The trial product read and wrote a tensor of that kind as float32 on the processor."""
    with torch.device("meta"):
        assert library.__wrapped__() is not None
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert library.__wrapped__() is not None
    finally:
        torch.set_default_dtype(before)
