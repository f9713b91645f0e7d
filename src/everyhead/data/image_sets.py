"""Pictures with a class each: folders, lists, and the digits that come with scikit-learn.

    pictures/cat/1.png  pictures/dog/1.png            a folder a class
    pictures/train/cat/1.png  pictures/test/cat/2.png …  cut already
    list.tsv: cat/1.png TAB cat                       paths beside the list, and the class

Whatever is not cut already is cut by what the pictures hold: equal pictures fall on the same side.
"""

import gzip
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from everyhead.data.corpora import package_folder
from everyhead.data.images import SUFFIXES, Bytes, read_picture
from everyhead.data.splits import stable_fraction
from everyhead.data.text import read_lines
from everyhead.errors import UserError

Labels = NDArray[np.int64]
SETS = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid", "dev"),
    "test": ("test", "testing"),
}


class ImageSet(NamedTuple):
    """Pictures as files, or as bytes (height, width, channels) already; labels count `names`."""

    pictures: Sequence[Path] | Bytes
    labels: Labels
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.labels)

    def picture(self, row: int, channels: int) -> Bytes:
        """(height, width, channels); raises UserError as `read_picture`."""
        found = self.pictures[row]
        return read_picture(found, channels) if isinstance(found, Path) else found

    def content(self, row: int) -> bytes:
        """The bytes that make a picture the same as another."""
        found = self.pictures[row]
        return found.read_bytes() if isinstance(found, Path) else found.tobytes()

    def pick(self, rows: Sequence[int]) -> "ImageSet":
        """These rows alone."""
        rows, labels = list(rows), self.labels[list(rows)]
        if isinstance(self.pictures, np.ndarray):
            return ImageSet(self.pictures[rows], labels, self.names)
        return ImageSet([self.pictures[row] for row in rows], labels, self.names)


class ImageSplits(NamedTuple):
    train: ImageSet
    validation: ImageSet
    test: ImageSet


def split(images: ImageSet, *, validation: float, test: float) -> ImageSplits:
    """About these shares are held out.

    Raises:
        UserError: a set would be empty.
    """
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for row in range(images.size):
        point = stable_fraction(hashlib.sha256(images.content(row)).hexdigest())
        parts[2 if point < test else 1 if point < test + validation else 0].append(row)
    return checked(ImageSplits(*(images.pick(rows) for rows in parts)))


def checked(splits: ImageSplits) -> ImageSplits:
    """
    Raises:
        UserError: a set is empty, or there is one class alone.
    """
    sizes = [part.size for part in splits]
    if 0 in sizes:
        raise UserError(
            f"Too few pictures to train and to measure: they fall into {sizes[0]} for training, "
            f"{sizes[1]} for validation and {sizes[2]} for test; give more, or raise "
            "data.validation_share and data.test_share."
        )
    if len(splits.train.names) < 2:
        raise UserError(
            f"All pictures are of one class ({splits.train.names[0]}); there is nothing to tell "
            "apart: give a folder with one folder a class."
        )
    return splits


def from_path(path: Path, *, validation: float, test: float) -> ImageSplits:
    """A folder of classes, a folder of train/validation/test, or a list.

    Raises:
        UserError: it is not there, or holds no such thing.
    """
    if path.is_file():
        return split(from_list(path), validation=validation, test=test)
    if not path.is_dir():
        raise UserError(f"There is neither a folder nor a list of pictures at {path}.")
    given = {
        part: folder
        for part, names in SETS.items()
        for folder in _folders(path)
        if folder.name.lower() in names
    }
    if "train" not in given:
        return split(from_folder(path), validation=validation, test=test)
    names = [folder.name for folder in _folders(given["train"])]
    train = from_folder(given["train"], names)
    held = {
        part: from_folder(given[part], names) for part in ("validation", "test") if part in given
    }
    if not held:
        return split(train, validation=validation, test=test)
    if len(held) == 2:
        return checked(ImageSplits(train, held["validation"], held["test"]))
    share = validation if "test" in held else test
    cut = split(train, validation=share / 2, test=share / 2)
    rest = _joined(cut.validation, cut.test)
    return checked(ImageSplits(cut.train, held.get("validation", rest), held.get("test", rest)))


def renumbered(splits: ImageSplits, names: Sequence[str]) -> ImageSplits:
    """The same pictures, their labels as places in `names`, which holds all of theirs."""
    place = {name: i for i, name in enumerate(names)}

    def one(part: ImageSet) -> ImageSet:
        labels = np.array([place[name] for name in part.names], dtype=np.int64)[part.labels]
        return part._replace(labels=labels, names=tuple(names))

    return ImageSplits(*map(one, splits))


def _joined(a: ImageSet, b: ImageSet) -> ImageSet:
    return ImageSet([*a.pictures, *b.pictures], np.concatenate([a.labels, b.labels]), a.names)


def from_folder(folder: Path, names: Sequence[str] | None = None) -> ImageSet:
    """A folder a class, of `names` where they are given.

    Raises:
        UserError: no pictures, or a class that is not among the names.
    """
    found = _folders(folder)
    names = [each.name for each in found] if names is None else names
    for each in found:
        if each.name not in names:
            raise UserError(f"{each}: there are no training pictures of the class {each.name!r}.")
    rows = [(path, each.name) for each in found for path in _pictures(each)]
    if not rows:
        raise UserError(
            f"{folder} has no pictures in it: make a folder for each class, with its "
            f"{', '.join(SUFFIXES)} files inside."
        )
    return _of(rows, names)


def from_list(path: Path) -> ImageSet:
    """path TAB class, one picture a line; paths count from the list's own folder.

    Raises:
        UserError: a line is not like that, or its file is not there.
    """
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        name, tab, label = line.partition("\t")
        file = path.parent / name.strip()
        if not tab or not label.strip():
            raise UserError(f"{path}, line {number}: a path, a tab and a class are needed.")
        if not file.is_file():
            raise UserError(f"{path}, line {number}: there is no picture {file}.")
        rows.append((file, label.strip()))
    if not rows:
        raise UserError(f"{path} is empty: give a path, a tab and a class on each line.")
    return _of(rows, sorted({label for _, label in rows}))


def digits() -> ImageSet:
    """1,797 handwritten digits, 8 × 8, grey: white on black, 0 … 255.

    Optical recognition of handwritten digits, E. Alpaydin and C. Kaynak, UCI 1998 (CC BY 4.0), as
    scikit-learn's file has them; nothing of scikit-learn is run.

    Raises:
        UserError: scikit-learn is not installed, or its file is another.
    """
    where = package_folder("sklearn", needed_for="digits", extra="images")
    path = where / "datasets" / "data" / "digits.csv.gz"
    try:
        table = np.loadtxt(gzip.decompress(path.read_bytes()).decode().splitlines(), delimiter=",")
        pixels = np.rint(table[:, :64] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
        return ImageSet(pixels, table[:, 64].astype(np.int64), tuple(map(str, range(10))))
    except (OSError, ValueError, EOFError, IndexError) as error:
        raise UserError(
            f"{path} is not the file that the digits are made of; install it anew: "
            "pip install --force-reinstall scikit-learn"
        ) from error


def _of(rows: Iterable[tuple[Path, str]], names: Sequence[str]) -> ImageSet:
    rows, number = list(rows), {name: i for i, name in enumerate(names)}
    labels = np.array([number[label] for _, label in rows], dtype=np.int64)
    return ImageSet([path for path, _ in rows], labels, tuple(names))


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _pictures(folder: Path) -> list[Path]:
    files = (p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    return sorted(p for p in files if not p.name.startswith("."))
