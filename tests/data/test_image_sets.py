"""Folders, lists and the digits: what is read, how it is cut, and what is said of wrong ones."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from everyhead.data.image_batches import Images, Moves
from everyhead.data.image_preparation import Preparation
from everyhead.data.image_sets import ImageSet, digits, from_folder, from_list, from_path, split
from everyhead.errors import UserError

SHARES = {"validation": 0.2, "test": 0.2}
GREY = Preparation(size=(8, 8), mean=(0.5,), std=(0.5,))


def pictures(folder: Path, *, names: tuple[str, ...] = ("猫", "dog"), n: int = 20, seed: int = 0):
    rng = np.random.default_rng(seed)
    for name in names:
        (folder / name).mkdir(parents=True)
        for i in range(n):
            pixels = rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def test_a_folder_a_class(tmp_path: Path) -> None:
    (pictures(tmp_path) / "dog" / ".hidden.png").write_bytes(b"")
    (tmp_path / "dog" / "notes.txt").write_bytes(b"")
    found = from_folder(tmp_path)
    assert found.names == ("dog", "猫") and found.size == 40
    assert all(found.names[y] == p.parent.name for p, y in zip(*found[:2], strict=True))


def test_equal_pictures_fall_on_the_same_side_and_none_is_lost(tmp_path: Path) -> None:
    folder = pictures(tmp_path)
    for i in range(10):  # the same bytes under another name, in another class
        (folder / "dog" / f"again{i}.png").write_bytes((folder / "猫" / f"{i}.png").read_bytes())
    splits = from_path(folder, **SHARES)
    contents = [{part.content(i) for i in range(part.size)} for part in splits]
    assert sum(part.size for part in splits) == 50 and len(set.union(*contents)) == 40
    assert not contents[0] & contents[1] and not contents[0] & contents[2]
    assert not contents[1] & contents[2]
    again = from_path(folder, **SHARES)
    assert [part.pictures for part in again] == [part.pictures for part in splits]


@pytest.mark.parametrize("given", [("train", "val", "test"), ("Training", "test"), ("train",)])
def test_a_folder_that_is_cut_already(tmp_path: Path, given: tuple[str, ...]) -> None:
    for seed, name in enumerate(given):
        pictures(tmp_path / name, seed=seed)
    splits = from_path(tmp_path, **SHARES)
    if "test" in given:
        assert {p.parent.parent.name for p in splits.test.pictures} == {"test"}
    if "val" in given:
        assert {p.parent.parent.name for p in splits.validation.pictures} == {"val"}
    train = set(splits.train.pictures)
    assert {p.parent.parent.name.lower() for p in train} <= {"train", "training"}
    assert not train & set(splits.validation.pictures) and not train & set(splits.test.pictures)
    assert not set(splits.validation.pictures) & set(splits.test.pictures)


def test_a_list_of_paths_and_classes(tmp_path: Path) -> None:
    pictures(tmp_path / "all", n=3)
    lines = ["all/dog/0.png\ta dog", "", "all/猫/1.png\t猫"]
    (tmp_path / "list.tsv").write_text("\n".join(lines), encoding="utf-8")
    found = from_list(tmp_path / "list.tsv")
    assert found.names == ("a dog", "猫") and [p.name for p in found.pictures] == ["0.png", "1.png"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("all/dog/0.png", "line 1: a path, a tab and a class"),
        ("all/none.png\tx", "line 1: there is no picture"),
        ("", "is empty"),
    ],
)
def test_a_wrong_list_is_a_sentence(tmp_path: Path, line: str, sentence: str) -> None:
    pictures(tmp_path / "all", n=1)
    (tmp_path / "list.tsv").write_text(line, encoding="utf-8")
    with pytest.raises(UserError, match=sentence):
        from_list(tmp_path / "list.tsv")


def test_wrong_folders_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a folder nor a list"):
        from_path(tmp_path / "none", **SHARES)
    with pytest.raises(UserError, match="make a folder for each class"):
        from_path(tmp_path, **SHARES)
    pictures(tmp_path / "one", names=("dog",))
    with pytest.raises(UserError, match=r"of one class \(dog\)"):
        from_path(tmp_path / "one", **SHARES)
    pictures(tmp_path / "cut/train", names=("a", "b"))
    pictures(tmp_path / "cut/test", names=("c",))
    with pytest.raises(UserError, match="no training pictures of the class 'c'"):
        from_path(tmp_path / "cut", **SHARES)
    pictures(tmp_path / "few", n=1)
    with pytest.raises(UserError, match="Too few pictures"):
        from_path(tmp_path / "few", **SHARES)


@pytest.mark.slow
def test_the_digits_are_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    theirs, found = datasets.load_digits(), digits()
    assert found.pictures.shape == (1797, 8, 8, 1) and found.names == tuple("0123456789")
    assert np.array_equal(found.labels, theirs.target)
    np.testing.assert_allclose(found.pictures[..., 0] * (16 / 255), theirs.images, atol=0.04)


def test_digits_are_cut_into_three_without_a_shared_picture() -> None:
    splits = split(digits(), validation=0.1, test=0.2)
    assert sum(part.size for part in splits) == 1797
    contents = [{part.content(i) for i in range(part.size)} for part in splits]
    assert not contents[0] & contents[2] and not contents[0] & contents[1]


def test_batches_are_prepared_pictures_with_their_labels() -> None:
    part = digits().pick(range(5, 25))
    images = Images(part, GREY)
    batch = images.batch([3, 0, 19])
    assert (
        batch.pixels.shape == (3, 1, 8, 8)
        and batch.labels.tolist() == part.labels[[3, 0, 19]].tolist()
    )
    assert np.array_equal(batch.pixels[1].numpy(), GREY(part.pictures[0]))
    assert sum(b.n_target for b in images.batches(8)) == 20


def test_moves_follow_from_seed_epoch_and_row_alone() -> None:
    images, moves = Images(digits().pick(range(8)), GREY), Moves(2, flip=True)
    one = images.pixels([1, 5], moves, seed=1, epoch=3)
    alone = images.pixels([5], moves, seed=1, epoch=3)
    assert np.array_equal(one[1], alone[0])
    others = [images.pixels([5], moves, seed=1, epoch=e) for e in range(6)]
    assert len({o.numpy().tobytes() for o in others}) > 1


def test_a_shift_moves_the_picture_and_repeats_its_border() -> None:
    picture = np.arange(16, dtype=np.uint8).reshape(4, 4, 1)
    padded = np.pad(picture, ((1, 1), (1, 1), (0, 0)), mode="edge")
    found = {Moves(1).moved(picture, np.random.default_rng(seed)).tobytes() for seed in range(200)}
    wanted = {padded[i : i + 4, j : j + 4].tobytes() for i in range(3) for j in range(3)}
    assert found == wanted
    flipped = {Moves(0, True).moved(picture, np.random.default_rng(s)).tobytes() for s in range(20)}
    assert flipped == {picture.tobytes(), picture[:, ::-1].tobytes()}


def test_large_sets_are_read_again_instead_of_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    part = digits().pick(range(3))
    images = Images(part, GREY)
    images._room = 64 * 2  # two pictures
    for row in (0, 1, 2, 2):
        assert np.array_equal(images.shaped(row), part.pictures[row])
    assert isinstance(part, ImageSet) and sorted(images._kept) == [0, 1]
