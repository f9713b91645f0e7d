"""everyhead check: what it says of runs and other models, its exit codes, what it refuses."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import everyhead as library
from everyhead.cli.check import NAMES
from everyhead.cli.checked import law_names, open_model
from everyhead.cli.resumed import resumed
from everyhead.training import checkpoints
from everyhead.weights.folder import load, save_model
from tests.cli.conftest import everyhead, everything_in, refused
from tests.inspection.twelve import build

pytestmark = pytest.mark.slow  # many models or pictures; `make test-fast` leaves them out

FAST = ["--law", "repeat", "--law", "padding-left"]


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Hugging Face's whose model breaks one law: its positions count the padding."""
    folder = tmp_path_factory.mktemp("foreign") / "gpt2"
    build("gpt2").save_pretrained(folder)
    return folder


def test_help_names_the_laws():
    assert list(NAMES) == law_names()
    told = "".join(everyhead("check", "--help").out.split())  # without the line breaks
    assert all(name in told for name in NAMES)


@pytest.mark.slow
def test_a_run_keeps_every_law_and_is_not_touched(run: Path):
    before = everything_in(run)
    code, out, _ = everyhead("check", run)
    *lines, last = out.splitlines()
    assert code == 0 and last == "15 pass, 0 fail, 0 not applicable."
    assert [line.split()[:2] for line in lines] == [["pass", law] for law in law_names()]
    assert everything_in(run) == before


def test_json_has_a_finding_for_each_law(gpt2: Path):
    code, out, _ = everyhead("check", gpt2, "--json")
    told = json.loads(out)
    assert code == 1 and set(told) == {"model", "passed", "failed", "not_applicable", "findings"}
    assert told["model"] == str(gpt2) and told["failed"] == 1
    assert told["passed"] + told["failed"] + told["not_applicable"] == len(law_names())
    assert [finding["law"] for finding in told["findings"]] == law_names()
    for finding in told["findings"]:
        assert set(finding) == {"law", "verdict", "sentence", "smallest", "layer"}
        assert finding["verdict"] in ("pass", "fail", "not applicable")
        assert finding["sentence"].endswith(".") and "\n" not in finding["sentence"]
        assert (finding["smallest"] is not None) == (finding["verdict"] == "fail")
    [wrong] = [f for f in told["findings"] if f["verdict"] == "fail"]
    assert wrong["law"] == "padding-left" and wrong["layer"] == "before transformer.h.0"
    assert wrong["smallest"]["padding"] == {"on": "left", "tokens": 1}
    assert wrong["smallest"]["output"] == "logits" and wrong["smallest"]["difference"] > 0.01


def test_a_broken_law_is_shown_with_its_smallest_input(gpt2: Path):
    code, out, _ = everyhead("check", gpt2, *FAST)
    assert code == 1 and len(out.splitlines()) == 4
    passed, failed, smallest, last = out.splitlines()
    assert passed.startswith("pass  repeat") and failed.startswith("FAIL  padding-left")
    assert "position_ids" in failed and "first seen before transformer.h.0" in failed
    assert smallest.strip() == (
        "smallest input: tokens 3; 1 of padding on the left of tokens; wrong from token 0 on"
    )
    assert last == "1 pass, 1 fail, 0 not applicable."


def test_exit_code_is_0_where_nothing_is_broken(gpt2: Path):
    assert everyhead("check", gpt2, "--law", "future", "--law", "resume").code == 0


def test_a_model_folder_of_ours_is_no_run(run: Path, tmp_path: Path):
    model, tokenizer = load(run)
    save_model(model, tmp_path, tokenizer=tokenizer)
    code, out, _ = everyhead("check", tmp_path, "--law", "resume", "--law", "ties")
    assert code == 0 and "--    resume         It is a model, not a run" in out


def test_a_folder_that_everyhead_opens_but_did_not_write_is_read_as_hugging_faces(tmp_path: Path):
    build("marian").save_pretrained(tmp_path)
    assert type(open_model(tmp_path).model).__name__ == "MarianMTModel"


def test_wrong_calls_are_one_sentence(run: Path, pairs: Path, tmp_path: Path):
    before = everything_in(run)
    assert "no model folder" in refused("check", tmp_path / "none")
    assert "has no config.json" in refused("check", tmp_path)
    assert "is a file" in refused("check", pairs)
    words = refused("check", run, "--law", "futur")
    assert words.startswith("There is no law 'futur'; there are repeat, batch")
    assert "--device tpu cannot be used here" in refused("check", run, "--device", "tpu")
    assert everyhead("check").code == 2
    assert everything_in(run) == before


def test_an_object_and_a_path_give_the_same(run: Path):
    model, tokenizer = load(run)
    laws = ["cache", "greedy", "sum"]
    assert library.check(model, tokenizer, laws) == library.check(run, laws=laws)


# ------------------------------------------------------------------------------------------ resume


def verdict(run: Path) -> tuple[str, str]:
    state = torch.get_rng_state()
    [finding] = library.check(run, laws=["resume"])
    assert torch.equal(torch.get_rng_state(), state)
    return finding.verdict, finding.sentence


def test_random_states_that_are_not_put_back_are_found(copy: Path, monkeypatch: Any):
    before = everything_in(copy)
    monkeypatch.setattr(checkpoints, "restore_random_states", lambda states: None)
    finding = resumed(copy)
    assert finding.verdict == "fail" and finding.layer in finding.sentence
    assert finding.smallest == {"from_step": 6, "stopped_at": 16, "compared_at": 26}
    assert everything_in(copy) == before


def test_a_forgotten_optimizer_is_found(copy: Path, monkeypatch: Any):
    monkeypatch.setattr(checkpoints, "restore_optimizer", lambda *_: None)
    assert resumed(copy).verdict == "fail"


def test_a_run_that_was_stopped_before_its_first_checkpoint_is_tried_from_the_start(copy: Path):
    shutil.rmtree(copy / "checkpoints")
    assert verdict(copy)[0] == "pass"


def test_a_broken_checkpoint_is_a_failure(copy: Path):
    [folder] = (copy / "checkpoints").iterdir()
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    answer, words = verdict(copy)
    assert answer == "fail" and "weights.safetensors is broken or cut off" in words


def test_pairs_that_are_gone_make_it_not_applicable(copy: Path):
    recipe = copy / "recipe.toml"
    text = recipe.read_text(encoding="utf-8").replace("my.tsv", "gone.tsv")
    recipe.write_text(text, encoding="utf-8", newline="\n")
    answer, words = verdict(copy)
    assert answer == "not applicable" and "gone.tsv" in words
