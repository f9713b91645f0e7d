"""One training at a time in a folder, and no lock that outlives who held it."""

import subprocess
import sys
from pathlib import Path

import pytest

from everyhead.errors import UserError
from everyhead.training.alone import alone

HOLDER = """
import sys, time
from pathlib import Path
from everyhead.training.alone import alone
with alone(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_folder_is_held_by_one_and_free_when_it_lets_go(tmp_path: Path) -> None:
    with alone(tmp_path):
        with pytest.raises(UserError, match="Another training is at work"), alone(tmp_path):
            raise AssertionError
        with pytest.raises(UserError), alone(tmp_path):  # who is refused lets nobody else in
            raise AssertionError
        (tmp_path / "inner").mkdir()
        with alone(tmp_path / "inner"):
            pass
    with alone(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]


def test_who_is_killed_holds_nothing(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="Another training"), alone(tmp_path):
            raise AssertionError
    finally:
        holder.kill()
        holder.wait()
    with alone(tmp_path):
        pass
