"""everyhead demo: stopped it goes on, done it prints the page."""

import signal
from pathlib import Path

import pytest
from transformers import BertConfig, BertModel, BertTokenizer

from everyhead.cli import demo, first_look, progress
from everyhead.training.metrics import read_rows
from tests.cli.conftest import SMALL, everyhead, everything_in, refused

FEW = [
    word
    for change in (
        *(change for change in SMALL if "n_layers" not in change),
        *("model.n_layers=1", "train.max_steps=4", "train.evaluate_every=4", "train.save_every=2"),
        *("evaluate.max_sentences=4", "evaluate.beam=1"),
        *("data.test_share=0.005", "data.validation_share=0.005"),
    )
    for word in ("--set", change)
]


def published(folder: Path) -> Path:
    """A tiny encoder that reads the demo's two sentences, as its publisher would write it."""
    words = sorted(set((first_look.RIVER + first_look.MONEY).lower().replace(".", " . ").split()))
    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8", newline="\n")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(vocabulary), intermediate_size=32, **sizes)
    BertModel(config).save_pretrained(folder)
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory):
    """A demo that was stopped and went on: its folder, and what was said each time."""
    run = tmp_path_factory.mktemp("demo") / "demo"

    def stepped(self: progress.TrainingDisplay, state, report, rate):
        if state.step == 3:
            signal.raise_signal(signal.SIGINT)

    model = published(run.parent / "published")
    published_here = pytest.MonkeyPatch()
    published_here.setattr(first_look, "MODEL", str(model))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress.TrainingDisplay, "stepped", stepped)
        stopped = everyhead("demo", "--run", run, *FEW)
    assert stopped.out == f"{(run / 'bank.html').resolve()}\n"  # seen before it trains
    assert not (run / "index.html").exists()
    yield run, stopped, everyhead("demo", "--run", run)
    published_here.undo()


@pytest.mark.slow
def test_an_interrupted_demo_goes_on_where_it_stopped(toured):
    run, stopped, gone_on = toured
    assert stopped.code == 130 and "Stopped at step 3; everything is saved" in stopped.err
    assert gone_on.code == 0 and "1 steps to go" in gone_on.err
    assert gone_on.out == f"{(run / 'index.html').resolve()}\n"
    assert [row["step"] for row in read_rows(run)] == [2, 4, 4]


@pytest.mark.slow
def test_a_second_time_it_only_prints_the_page(toured):
    run, _, gone_on = toured
    before = everything_in(run)
    assert everyhead("demo", "--run", run) == (0, gone_on.out, "")
    assert everything_in(run) == before


@pytest.mark.slow
def test_the_page_is_made_anew_from_a_finished_run_without_page_or_curve(toured, monkeypatch):
    run = toured[0]
    monkeypatch.setattr(demo, "N_PICTURES", 1)
    page = (run / "index.html").read_bytes()
    for name in ("index.html", "learning-curve.png"):  # as where it was stopped at the last step
        (run / name).unlink()
    code, _, err = everyhead("demo", "--run", run)
    assert code == 0 and "steps to go" not in err and (run / "index.html").is_file()
    assert (run / "learning-curve.png").is_file()
    (run / "index.html").write_bytes(page)


@pytest.mark.slow
def test_the_page_shows_scores_examples_pictures_and_whose_the_data_are(toured):
    run = toured[0]
    page = (run / "index.html").read_text(encoding="utf-8")
    for words in ("BLEU", "chrF", "95 %", "tok:zh", "HSK 3.0 graded sentences", "CC BY-SA 4.0"):
        assert words in page
    assert page.count("data:image/png;base64,") == 4
    licence = (run / "DATA-LICENCE.txt").read_text(encoding="utf-8")
    assert "CC-BY-SA-4.0" in licence and "hsk-sentences-audio" in licence
    assert {path.name for path in (run / "pictures").iterdir()} == {
        f"cross-attention-{i}.png" for i in range(3)
    }


@pytest.mark.slow
def test_the_page_holds_the_pages_of_the_published_model_and_of_its_own(toured):
    run = toured[0]
    page = (run / "index.html").read_text(encoding="utf-8")
    assert page.count("<iframe") == 2 == page.count('sandbox="allow-scripts allow-downloads"')
    assert first_look.RIVER in page and "Look inside this model" in page


def test_the_published_models_page_is_kept_only_where_this_version_wrote_it_of_that_model(
    tmp_path: Path, monkeypatch
):
    kept = tmp_path / "run" / "bank.html"
    kept.parent.mkdir()
    kept.write_text("<p>another page", encoding="utf-8")
    (kept.parent / "look.html").write_text("<p>of another model", encoding="utf-8")
    monkeypatch.setattr(first_look, "MODEL", str(published(tmp_path / "published")))
    page = first_look.first_look(tmp_path / "run")
    assert page is not None and first_look.RIVER in page
    assert kept.read_text(encoding="utf-8") == page
    monkeypatch.setattr(first_look, "find_spec", lambda name: None)
    assert first_look.first_look(tmp_path / "run") == page
    for name, value in (("MODEL", "another"), ("VERSION", "9.9")):
        with monkeypatch.context() as changed:
            changed.setattr(first_look, name, value)
            assert first_look.first_look(tmp_path / "run") is None  # not the page that is there


def test_without_the_published_model_the_demo_goes_on(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(first_look, "MODEL", str(tmp_path / "nowhere"))
    assert first_look.first_look(tmp_path / "run") is None
    assert "left out" in capsys.readouterr().err and not (tmp_path / "run").exists()
    monkeypatch.setattr(first_look, "find_spec", lambda name: None)
    assert first_look.first_look(tmp_path / "run") is None
    assert "everyhead[hf]" in capsys.readouterr().err


@pytest.mark.slow
def test_a_recipe_cannot_be_changed_midway(toured):
    assert "--set cannot change" in refused("demo", "--run", toured[0], "--set", "train.seed=2")


def test_what_the_page_needs_is_asked_for_before_the_training(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    words = refused("demo", "--run", tmp_path / "x")
    assert "sacrebleu and matplotlib" in words and "everyhead[demo,train]" in words
    assert not (tmp_path / "x").exists()


def test_examples_are_chosen_by_their_hash_alone():
    lines = [f"line {i}" for i in range(50)]
    chosen = [lines[i] for i in demo.by_hash(lines)]
    assert sorted(chosen) == sorted(lines) and chosen != lines
    assert [lines[::-1][i] for i in demo.by_hash(lines[::-1])] == chosen


@pytest.mark.parametrize(
    ("sentence", "quoted"),
    [
        ("I'm home.", '"I\'m home."'),
        ('He said "no".', "'He said \"no\".'"),
        ("It costs $5.", "'It costs $5.'"),
    ],
)
def test_commands_on_the_page_can_be_typed(sentence: str, quoted: str):
    assert (
        demo._commands(Path("runs/demo"), sentence)[0] == f"everyhead translate runs/demo {quoted}"
    )
    assert "'my runs/demo'" in demo._commands(Path("my runs/demo"), sentence)[0]
