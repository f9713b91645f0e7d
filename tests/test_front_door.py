"""`import everyhead`: every public name is there, and none costs anything before it is used."""

import subprocess
import sys

import pytest

import everyhead

HEAVY = ("torch", "numpy", "tokenizers", "pydantic", "safetensors", "matplotlib", "typer", "rich")


@pytest.mark.parametrize("name", everyhead.__all__)
def test_every_public_name_is_there(name: str):
    assert name in dir(everyhead)
    thing = getattr(everyhead, name)
    assert callable(thing) or name in ("MODELS",)
    assert getattr(everyhead, name) is thing


def test_a_name_that_is_not_there_says_which_are():
    with pytest.raises(AttributeError, match=r"everyhead has no 'trnaslate'; it has .*translate"):
        everyhead.trnaslate  # noqa: B018
    assert not hasattr(everyhead, "_nothing")


def test_submodules_are_still_reachable_by_import():
    import everyhead.layers.masks as masks

    assert everyhead.causal is masks.causal


def test_the_first_names_of_the_house_are_public():
    promised = {"load", "save", "attention", "causal", "translate", "record", "MODELS", "prepare"}
    assert promised <= set(everyhead.__all__)
    assert everyhead.__version__.count(".") == 2


def loaded_by(statement: str) -> set[str]:
    """Which of the heavy packages a fresh Python has loaded after this statement."""
    code = f"import sys; {statement}; print(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=300
    )
    return set(done.stdout.decode("utf-8").split()) & set(HEAVY)


def test_import_loads_nothing_heavy():
    assert loaded_by("import everyhead; dir(everyhead)") == set()


def test_help_and_version_do_not_wait_for_torch():
    statement = "from everyhead.cli.app import main; main(['--version']); main(['train', '--help'])"
    assert loaded_by(statement) <= {"typer", "rich", "pydantic"}
