"""easy-VQA and lists of questions: rows of ids, what is learnt, cuts by picture, baselines."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from everyhead.data import captions, easy_vqa, packages, questions
from everyhead.data.easy_vqa import CLASSES, Question
from everyhead.data.image_preparation import Preparation
from everyhead.data.questions import Baselines, Questions
from everyhead.data.text_and_pictures import TextAndPictures
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError

ASKED = [
    ("what color is the shape?", "blue"),
    ("what is the blue shape?", "circle"),
    ("is there a red shape?", "no"),
]


def package(folder: Path, n: int = 40) -> Path:
    """A data folder as easy-vqa has it: pictures of one shade each, three questions about each."""
    for part, first in (("train", 0), ("test", 1000)):
        (folder / part / "images").mkdir(parents=True)
        rows = []
        for i in range(n):
            pixels = np.full((8, 8, 3), (first + 7 * i) % 256, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / part / "images" / f"{i}.png")
            rows += [[text, answer, i] for text, answer in ASKED]
        (folder / part / "questions.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder


@pytest.fixture
def data(tmp_path: Path) -> easy_vqa.EasyVQA:
    return easy_vqa.read(package(tmp_path), validation=0.3)


def companion() -> TextAndPictures:
    lines = [text for pair in ASKED for text in pair] + ["a blue circle", "a red circle"]
    tokenizer = TextTokenizer.train(lines * 3, kind="wordpiece", vocab_size=200)
    return TextAndPictures(tokenizer, Preparation(size=(8, 8)))


def test_validation_is_cut_from_training_pictures_never_by_question(data) -> None:
    assert len(data.train.pictures) + len(data.validation.pictures) == 40
    assert not data.train.pictures.keys() & data.validation.pictures.keys()
    assert all(len(q) == 3 for part in data for q in part.questions.values())
    assert len(data.test.pictures) == 40 and data.test.n_questions == 120


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ([("what color is the shape?", "blue"), ("is there a circle?", "yes")], ("blue", "circle")),
        ([("what is the red shape?", "triangle")], ("red", "triangle")),
        ([("what color is the circle?", "teal")], ("teal", "circle")),
        ([("is there not a gray shape?", "no"), ("what is it?", "circle")], ("gray", "circle")),
        ([("does the image not contain a circle?", "no"), ("is no red shape present?", "no")],
         ("red", "circle")),
        ([("is there a circle?", "no"), ("what color is it?", "red")], None),
        ([("is there not a circle?", "yes"), ("what color is it?", "red")], None),
        ([], None),
    ],
)  # fmt: skip
def test_what_questions_tell_of_a_picture(told, wanted) -> None:
    assert easy_vqa.shown(Question(text, answer, 0) for text, answer in told) == wanted


@pytest.mark.slow
def test_the_real_package_has_what_the_table_says() -> None:
    try:
        found = easy_vqa.read(packages.fetch("easy-vqa"))
    except UserError as error:
        pytest.skip(f"the real package cannot be had here: {error}")
    train = found.train.n_questions + found.validation.n_questions
    assert (train, found.test.n_questions) == (38_575, 9_673)
    splits = easy_vqa.shapes(found)
    assert splits.train.size + splits.validation.size == 3_542 and splits.test.size == 880
    assert set(splits.train.labels) == set(range(24))
    scores = Baselines.of(found.train).scores(found.test)
    assert scores["majority"] < 0.38 and 0.66 < scores["text_only"] < 0.68


def test_a_row_holds_the_questions_one_after_the_other(data) -> None:
    beside = companion()
    asked = Questions(data.train, beside, max_len=20)
    batch, text = asked.batch([0, 1]), beside.text
    written = text.decode(batch.ids[0].tolist(), skip_special=False)
    assert written == (
        "[CLS] what color is the shape? [SEP] blue [CLS] what is the blue shape? [SEP] circle "
        "[CLS] is there a red shape? [SEP] no"
    )
    labels = ["blue", "[SEP]", "circle", "[SEP]", "no", "[SEP]"] * 2
    assert [text.piece(i) for i in batch.labels.tolist()] == labels
    assert batch.asked.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5] and batch.n_target == 12
    before = batch.ids[batch.wanted]  # what is read where an answer's piece follows
    assert [text.piece(i) for i in before.tolist()][:4] == ["[SEP]", "blue", "[SEP]", "circle"]
    assert batch.documents[0].unique().tolist() == [0, 1, 2]


def test_fewer_questions_are_drawn_by_seed_epoch_and_picture(data) -> None:
    asked = Questions(data.train, companion(), max_len=20)
    drawn = [asked.batch([2, 3], most=1, seed=1, epoch=e) for e in range(8)]
    again = asked.batch([3], most=1, seed=1, epoch=0)
    mine = drawn[0].ids[1, drawn[0].mask[1]]
    assert mine.tolist() == again.ids[0].tolist()
    assert len({tuple(b.ids[1].tolist()) for b in drawn}) > 1
    assert all(b.labels.shape[0] == 4 for b in drawn)


def test_without_pictures_there_are_none(data) -> None:
    batch = Questions(data.train, companion(), max_len=20, blind=True).batch([0])
    assert batch.pixels is None and batch.to("cpu").pixels is None


def test_a_question_that_is_too_long_is_a_sentence(data) -> None:
    with pytest.raises(UserError, match=r"has \d+ pieces and the model takes 5"):
        Questions(data.train, companion(), max_len=5)


def test_baselines_know_the_commonest_answers(data) -> None:
    known = Baselines.of(data.train)
    assert known.of_question["is there a red shape?"] == "no"
    scores = known.scores(data.test)
    assert scores["text_only"] == 1.0 and scores["majority"] == pytest.approx(1 / 3)


def test_a_list_of_ones_own_is_cut_by_picture(tmp_path: Path) -> None:
    package(tmp_path)
    lines = [f"train/images/{i}.png\t{q}\t{a}" for i in range(40) for q, a in ASKED]
    (tmp_path / "mine.tsv").write_text("\n".join(lines), encoding="utf-8")
    found = questions.from_list(tmp_path / "mine.tsv", validation=0.2, test=0.3)
    paths = [set(part.pictures.values()) for part in found]
    assert sum(map(len, paths)) == 40 and not paths[0] & paths[2] and not paths[0] & paths[1]
    odd = lines[0].replace("\t", "\t\u2028\x85 ", 1)  # no line ends there
    (tmp_path / "odd.tsv").write_bytes("\r\n".join([odd, *lines[1:]]).encode("utf-8"))
    again = questions.from_list(tmp_path / "odd.tsv", validation=0.2, test=0.3)
    assert [part.pictures for part in again] == [part.pictures for part in found]
    (tmp_path / "bad.tsv").write_text("train/images/0.png\twhat?", encoding="utf-8")
    with pytest.raises(UserError, match="line 1: a picture, a tab, a question"):
        questions.from_list(tmp_path / "bad.tsv", validation=0.2, test=0.2)
    (tmp_path / "bad.tsv").write_text("none.png\twhat?\tno", encoding="utf-8")
    with pytest.raises(UserError, match=r"there is no picture .*none\.png"):
        questions.from_list(tmp_path / "bad.tsv", validation=0.2, test=0.2)


def test_another_folder_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not what easy-vqa 1\.0 has there"):
        easy_vqa.read(tmp_path)


def test_unseen_classes_are_tested_on_alone(data) -> None:
    found = captions.shapes(data, ["blue circle"])
    blue = CLASSES.index("blue circle")
    assert found.unseen == (blue,) and blue in found.sets.test.labels
    with pytest.raises(UserError, match=r"data\.unseen names 'pink circle'"):
        captions.shapes(data, ["pink circle"])


def test_captions_are_drawn_anew_in_every_epoch(data) -> None:
    beside = companion()
    splits = captions.CaptionSplits(easy_vqa.shapes(data), [["a blue circle", "a red circle"]] * 24)
    pairs = captions.Captioned(splits.sets.train, splits.texts, companion=beside, max_len=12)
    plain = pairs.batch([0, 1])[1]
    assert beside.text.decode(plain[0].tolist()) == "a blue circle"
    drawn = {tuple(pairs.batch([0], seed=1, epoch=e)[1][0].tolist()) for e in range(12)}
    assert len(drawn) == 2
    with pytest.raises(UserError, match="and the model takes 3"):
        captions.Captioned(splits.sets.train, splits.texts, companion=beside, max_len=3)
