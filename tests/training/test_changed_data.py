"""Data that are no longer what a run learnt from: said, and never scored under other names."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from everyhead.errors import UserError
from everyhead.training.job import DATA, learnt_labels
from everyhead.training.recipe import parse_recipe
from everyhead.training.run import prepare, write_beginnings
from tests.training.reading import TOOLS, body, recipe_of, written

NEW = {"classify": "nobody left bonn\taaa\n", "tag": "\n\nanna\tB-aaa\nleft\tO\n"}


def begun(recipe, run: Path):
    """As a training does before its first step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare(recipe, None, TOOLS)
    run.mkdir()
    prepared.write(run)
    write_beginnings(run, prepared)
    return prepared


@pytest.mark.parametrize("job", NEW)
def test_a_label_that_the_run_did_not_learn_is_refused(job, tmp_path):
    files, start = written(tmp_path), body(tmp_path / "start")
    recipe, run = recipe_of(job, start, files), tmp_path / "run"
    before = begun(recipe, run)
    text = files[job].read_text(encoding="utf-8")
    files[job].write_text(text + NEW[job], encoding="utf-8")
    with pytest.raises(UserError, match=r"did not learn the label '(B-)?aaa'"):
        prepare(recipe, run, TOOLS)
    # Fewer labels than it learnt: each keeps its place.
    fewer = [line for line in text.split("\n") if "bonn" not in line]
    files[job].write_text("\n".join(fewer), encoding="utf-8")
    after = prepare(recipe, run, TOOLS)
    labels = {"classify": "labels", "tag": "tags"}[job]
    assert getattr(after, labels) == getattr(before, labels)


def test_pictures_keep_the_places_of_their_classes(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("dog", "cat"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(20):
            noise = rng.integers(0, 255, (8, 8), np.uint8)
            Image.fromarray(noise).save(tmp_path / "pictures" / name / f"{i}.png")
    numbers = {"d_model": 8, "n_heads": 2, "n_layers": 1, "d_ff": 8}
    model = {"image_size": 8, "patch_size": 4, "channels": None, **numbers}
    values = {
        "name": "pictures",
        "job": "image",
        "data": {"files": [str(tmp_path / "pictures")]},
        "model": {key: value for key, value in model.items() if value is not None},
    }
    recipe, run = parse_recipe(values, "test"), tmp_path / "run"
    assert begun(recipe, run).config.labels == ("cat", "dog")
    assert json.loads((run / DATA).read_text(encoding="utf-8"))["labels"] == ["cat", "dog"]
    shutil.copytree(tmp_path / "pictures" / "dog", tmp_path / "pictures" / "aardvark")
    with pytest.raises(UserError, match="did not learn the label 'aardvark'"):
        prepare(recipe, run, TOOLS)
    (tmp_path / "pictures" / "aardvark").rename(tmp_path / "pictures" / ".away")
    values = json.loads((run / DATA).read_text(encoding="utf-8"))
    values["labels"] = ["ape", "cat", "dog"]  # as if apes had been there once
    (run / DATA).write_text(json.dumps(values), encoding="utf-8")
    test = prepare(recipe, run, TOOLS).sets["test"].images
    assert test.names == ("ape", "cat", "dog")
    assert [test.names[n] for n in test.labels] == [path.parent.name for path in test.pictures]


def test_a_run_that_says_nothing_of_labels_has_those_of_the_data(tmp_path):
    assert learnt_labels(None, ["b", "a"]) == ("b", "a")
    assert learnt_labels(tmp_path, ["b", "a"]) == ("b", "a")
    (tmp_path / "config.json").write_text(
        '{"id2label": {"10": "z", "2": "b", "0": "a"}}', encoding="utf-8"
    )
    assert learnt_labels(tmp_path, ["b", "a"]) == ("a", "b", "z")  # of its weights, once saved
