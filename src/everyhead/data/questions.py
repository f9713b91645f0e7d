"""Questions about pictures as rows of ids: several about one picture lie one after the other.

    [CLS] what color is it ? [SEP] blue [SEP]  [CLS] is there a circle ? [SEP] no [SEP]  …
                              ↑     ↑ learnt: the answer's pieces and the end

Which questions about a picture a batch takes, and how the picture is moved, follows from (seed,
epoch, picture) alone.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from everyhead.data.easy_vqa import EasyVQA, Pictured, Question
from everyhead.data.image_batches import STILL, Images, Moves
from everyhead.data.image_sets import ImageSet
from everyhead.data.splits import stable_fraction
from everyhead.data.text import read_lines
from everyhead.data.text_and_pictures import TextAndPictures
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError


class QuestionBatch(NamedTuple):
    """Rows of B pictures, T ids each, N pieces of answers to learn.

    pixels (B, ch, H, W) or None, ids (B, T), mask (B, T), documents (B, T): whose token;
    wanted (B, T): where an answer's piece follows, labels (N,): which; asked (N,): which question.
    """

    pixels: Tensor | None
    ids: Tensor
    mask: Tensor
    documents: Tensor
    wanted: Tensor
    labels: Tensor
    asked: Tensor

    @property
    def n_target(self) -> int:
        return self.labels.shape[0]

    def to(self, device: torch.device | str) -> Self:
        moved = {name: x.to(device) for name, x in self._asdict().items() if x is not None}
        return self._replace(**moved)


class Asked(NamedTuple):
    """One question and its answer as ids: the answer's first piece stands at `start`."""

    ids: list[int]
    start: int


def asked(tokenizer: TextTokenizer, text: str, answer: str) -> Asked:
    """
    Raises:
        UserError: an answer without a piece.
    """
    pieces = tokenizer.encode(answer, special=False, literal=True)
    if not pieces:
        raise UserError(f"The answer {answer!r} to {text!r} is empty.")
    question = tokenizer.encode(text, literal=True)
    return Asked([*question, *pieces, question[-1]], len(question))


class Questions:
    """The questions of a set, by row of its pictures."""

    def __init__(
        self, data: Pictured, companion: TextAndPictures, *, max_len: int, blind: bool = False
    ) -> None:
        numbers = sorted(data.pictures)
        paths = [data.pictures[i] for i in numbers]
        empty = np.zeros(len(paths), dtype=np.int64)
        self.images = Images(ImageSet(paths, empty, ("picture",)), companion.pictures)
        self.rows = [
            [asked(companion.text, q.text, q.answer) for q in data.questions[i]] for i in numbers
        ]
        self.pad_id = companion.text.pad_id or 0
        self.blind = blind
        longest = max((len(a.ids) - 1 for row in self.rows for a in row), default=0)
        if longest > max_len:
            raise UserError(
                f"A question with its answer has {longest} pieces and the model takes {max_len}: "
                "raise model.max_len or shorten it."
            )

    @property
    def size(self) -> int:
        """Pictures."""
        return len(self.rows)

    def batch(
        self,
        rows: Sequence[int],
        *,
        most: int | None = None,
        moves: Moves = STILL,
        seed: int = 0,
        epoch: int = 0,
    ) -> QuestionBatch:
        """Of each picture `most` questions, drawn anew in every epoch; None: all, in order."""
        chosen = [self._chosen(row, most, seed, epoch) for row in rows]
        pixels = None if self.blind else self.images.pixels(rows, moves, seed=seed, epoch=epoch)
        longest = max(sum(len(a.ids) - 1 for a in row) for row in chosen)
        ids = np.full((len(rows), longest), self.pad_id, dtype=np.int64)
        documents = np.full((len(rows), longest), -2, dtype=np.int64)
        wanted = np.zeros((len(rows), longest), dtype=bool)
        labels: list[int] = []
        numbers: list[int] = []
        count = 0
        for i, row in enumerate(chosen):
            place = 0
            for a in row:
                end = place + len(a.ids) - 1  # the end itself is never read
                ids[i, place:end], documents[i, place:end] = a.ids[:-1], count
                wanted[i, place + a.start - 1 : end] = True
                labels += a.ids[a.start :]
                numbers += [count] * (len(a.ids) - a.start)
                place, count = end, count + 1
        kept = torch.from_numpy(documents)
        given = map(torch.tensor, (labels, numbers))
        return QuestionBatch(
            pixels, torch.from_numpy(ids), kept >= 0, kept, torch.from_numpy(wanted), *given
        )

    def batches(self, size: int) -> list[QuestionBatch]:
        """All questions about all pictures, `size` pictures in a batch."""
        return [self.batch(range(i, min(i + size, self.size))) for i in range(0, self.size, size)]

    def _chosen(self, row: int, most: int | None, seed: int, epoch: int) -> list[Asked]:
        every = self.rows[row]
        if most is None:
            return every
        rng = np.random.default_rng([seed, epoch, row, 1])
        return [every[i] for i in rng.permutation(len(every))[:most]]


class Baselines(NamedTuple):
    """What can be known without the picture: the commonest answer, of all or of each question."""

    commonest: str
    of_question: dict[str, str]

    @classmethod
    def of(cls, data: Pictured) -> "Baselines":
        every = [q for questions in data.questions.values() for q in questions]
        counts: dict[str, Counter[str]] = {}
        for q in every:
            counts.setdefault(q.text, Counter())[q.answer] += 1
        commonest = Counter(q.answer for q in every).most_common(1)[0][0]
        return cls(commonest, {text: c.most_common(1)[0][0] for text, c in counts.items()})

    def scores(self, data: Pictured) -> dict[str, float]:
        """Shares right: `majority` and `text_only`."""
        every = [q for questions in data.questions.values() for q in questions]
        majority = sum(q.answer == self.commonest for q in every)
        text_only = sum(q.answer == self.of_question.get(q.text, self.commonest) for q in every)
        return {"majority": majority / len(every), "text_only": text_only / len(every)}


def from_list(path: Path, *, validation: float, test: float) -> EasyVQA:
    """picture TAB question TAB answer, one a line; paths count from the list's own folder.

    Whole pictures are held out, so no question about a held-out picture is trained on.

    Raises:
        UserError: a line is not like that, its picture is not there, or a set would be empty.
    """
    numbers: dict[str, int] = {}
    pictures: dict[int, Path] = {}
    questions: dict[int, list[Question]] = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 3 or not all(cells):
            raise UserError(
                f"{path}, line {number}: a picture, a tab, a question, a tab and an answer are "
                "needed."
            )
        if not (path.parent / cells[0]).is_file():
            raise UserError(f"{path}, line {number}: there is no picture {path.parent / cells[0]}.")
        i = numbers.setdefault(cells[0], len(numbers))
        pictures[i] = path.parent / cells[0]
        questions.setdefault(i, []).append(Question(cells[1], cells[2], i))
    return _cut(Pictured(pictures, questions), validation, test, path)


def _cut(data: Pictured, validation: float, test: float, path: Path) -> EasyVQA:
    paths = [data.pictures[i] for i in sorted(data.pictures)]
    images = ImageSet(paths, np.zeros(len(paths), dtype=np.int64), ("picture",))
    parts: tuple[list[int], ...] = ([], [], [])
    for i in range(images.size):
        point = stable_fraction(images.content(i).hex())
        parts[2 if point < test else 1 if point < test + validation else 0].append(i)
    if not all(parts):
        sizes = ", ".join(str(len(part)) for part in parts)
        raise UserError(
            f"{path}: too few pictures; they fall into {sizes} for training, validation and test."
        )
    return EasyVQA(*map(data.pick, parts))
