"""predict, evaluate and look on runs of pictures, as typed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from everyhead.data.image_batches import Images
from everyhead.data.image_preparation import Preparation
from everyhead.data.image_sets import ImageSet
from everyhead.errors import UserError
from everyhead.training.recipe import parse_recipe
from everyhead.training.run import make_trainer, prepare, write_beginnings
from tests.cli.conftest import everyhead, refused
from tests.training.picture_jobs import pictures
from tests.training.small_jobs import TOOLS, values


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One short run a job."""
    found = {}
    for job in ("image", "vqa", "clip"):
        folder = tmp_path_factory.mktemp(job)
        prepared = prepare(parse_recipe(values(job, folder / "data"), "a test"), None, TOOLS)
        found[job] = folder / "run"
        found[job].mkdir()
        prepared.write(found[job])
        write_beginnings(found[job], prepared)
        make_trainer(prepared, found[job]).fit()
    return found


@pytest.fixture
def dark(tmp_path: Path) -> Path:
    return pictures(tmp_path, n=1)["dark"][0]


pytestmark = pytest.mark.slow


def test_a_class_for_each_picture(runs, dark: Path) -> None:
    bright = dark.parent.parent / "bright/0.png"
    code, out, err = everyhead("predict", runs["image"], dark, bright)
    assert (code, out, err) == (0, "dark\nbright\n", "")
    code, out, _ = everyhead("predict", runs["image"], dark, "--top", "2")
    assert code == 0 and out.startswith("dark ") and "\tbright " in out
    row = json.loads(everyhead("predict", runs["image"], dark, "--json")[1])
    assert row["label"] == "dark" and 0.5 < row["probability"] <= 1


def test_a_list_of_pictures_on_standard_input_keeps_its_lines(runs, dark: Path) -> None:
    code, out, _ = everyhead("predict", runs["image"], stdin=f"{dark}\n\n{dark}\n".encode())
    assert code == 0 and out == "dark\n\ndark\n"


def test_pictures_that_keep_their_shapes_go_one_by_one(runs, tmp_path: Path) -> None:
    """shortest_edge without a crop: a wide and a tall one do not go into one batch."""
    run = Path(shutil.copytree(runs["image"], tmp_path / "run"))
    file = run / "preprocessor_config.json"
    told = json.loads(file.read_text(encoding="utf-8"))
    (side,) = set(told["size"].values())
    told |= {"image_processor_type": "CLIPImageProcessor", "do_center_crop": False}
    told |= {"size": {"shortest_edge": side}}
    file.write_text(json.dumps(told), encoding="utf-8")
    paths = [tmp_path / "wide.png", tmp_path / "tall.png"]
    for path, size in zip(paths, ((4 * side, side), (side, 2 * side)), strict=True):
        Image.new("L", size, 5).save(path)
    code, out, err = everyhead("predict", run, *paths)
    alone = [everyhead("predict", run, path).out for path in paths]
    assert (code, err) == (0, "") and out == "".join(alone)
    preparation = Preparation.load(run)
    images = Images(ImageSet(paths, np.zeros(2, np.int64), ("a",)), preparation)
    with pytest.raises(UserError, match="do not go into one batch"):
        images.batches(2)


def test_which_of_the_labels(runs, dark: Path) -> None:
    given = ("--labels", "a dark picture, a bright picture")
    code, out, _ = everyhead("predict", runs["clip"], dark, *given)
    assert code == 0 and out.startswith("a dark picture ") and "\ta bright picture " in out
    assert "--labels" in refused("predict", runs["clip"], dark)
    assert "leave --labels out" in refused("predict", runs["image"], dark, *given)


def test_an_answer_about_a_picture(runs, dark: Path) -> None:
    code, out, _ = everyhead("predict", runs["vqa"], dark, "how is it?")
    assert code == 0 and out.strip() in ("dark", "bright", "yes", "no", "")
    row = json.loads(everyhead("predict", runs["vqa"], dark, "how is it?", "--json")[1])
    assert row["question"] == "how is it?" and row["answer"] == out.strip()
    assert "picture and question" in refused("predict", runs["vqa"], dark)


@pytest.mark.parametrize("job", ["image", "vqa", "clip"])
def test_mistakes_are_sentences(runs, tmp_path: Path, job: str) -> None:
    more = {"image": (), "vqa": ("how?",), "clip": ("--labels", "a, b")}[job]
    assert "is not there; check the path" in refused(
        "predict", runs[job], tmp_path / "无.png", *more
    )
    (tmp_path / "b.png").write_bytes(b"no picture")
    assert "is no picture that can be opened" in refused(
        "predict", runs[job], tmp_path / "b.png", *more
    )


@pytest.mark.parametrize(("job", "score"), [("image", "accuracy"), ("vqa", "text_only")])
def test_evaluate_prints_scores_beside_what_is_known_without(runs, job: str, score: str) -> None:
    code, out, _ = everyhead("evaluate", runs[job], "--json")
    found = json.loads(out)
    assert code == 0 and score in found and "majority" in found


@pytest.mark.parametrize(
    ("job", "text"), [("image", ()), ("vqa", ("how?",)), ("clip", ("a dark",))]
)
def test_look_draws_over_the_picture(runs, dark: Path, tmp_path: Path, job: str, text) -> None:
    png = tmp_path / "look.png"
    code, out, _ = everyhead("look", runs[job], *text, "--image", dark, "--png", png)
    assert code == 0 and png.is_file() and out.splitlines()[-1] == str(png)
    assert "give the path of one, with --image" in refused("look", runs[job], *text)


def test_a_run_of_texts_alone_takes_no_picture(run: Path, dark: Path) -> None:
    assert "looks at no picture: leave --image out" in refused(
        "look", run, "a text", "--image", dark
    )
