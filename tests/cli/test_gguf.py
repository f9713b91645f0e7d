"""Every verb that reads a text takes a .gguf file as it takes a folder."""

import json
from pathlib import Path

import pytest

from everyhead import load, save
from tests.cli.conftest import everyhead, refused
from tests.weights.gguf_files import llama, write
from tests.weights.test_gguf_tokenizer import SMOLLMS, byte_level, values_of


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a tokenizer of its own."""
    values = values_of(byte_level(SMOLLMS), "smollm")
    n = len(values["tokenizer.ggml.tokens"])
    told = {name.replace(".", "__"): value for name, value in values.items()}
    path = tmp_path_factory.mktemp("models") / "small.gguf"
    return write(path, llama(vocab_size=n), "Q8_0", **told)


def test_look_shows_what_a_decoder_may_see(file: Path, tmp_path: Path) -> None:
    picture, page, values = (tmp_path / f"x.{each}" for each in ("png", "html", "json"))
    code, out, err = everyhead(
        "look", file, "the cat 猫", "--png", picture, "--html", page, "--json", values
    )
    assert (code, err) == (0, "") and len(out.splitlines()) == 3
    assert picture.stat().st_size > 5000 and "decoder" in page.read_text(encoding="utf-8")
    told = json.loads(values.read_text(encoding="utf-8"))
    (group,) = told["scenes"][0]["groups"]
    rows = group["heads"][-1]["weights"]
    assert len(rows) > 4
    for i, row in enumerate(rows):
        assert sum(row[: i + 1]) == pytest.approx(1, abs=1e-3)
        assert row[i + 1 :] == [None] * (len(rows) - i - 1)


def test_check_passes_and_models_counts(file: Path) -> None:
    laws = [part for law in ("batch", "future", "cache", "save-load") for part in ("--law", law)]
    code, out, _ = everyhead("check", file, *laws)
    assert code == 0 and "4 pass, 0 fail" in out
    code, out, _ = everyhead("models", file)
    model, _ = load(file)
    assert code == 0 and f"{sum(p.numel() for p in model.parameters()):,} parameters" in out


def test_generate_is_the_same_from_the_file_and_from_its_folder(file: Path, tmp_path: Path) -> None:
    save(*load(file), tmp_path / "folder")
    said = [
        everyhead("generate", place, "the cat", "--temperature", 0, "--max-new-tokens", 5)
        for place in (file, tmp_path / "folder")
    ]
    assert said[0] == said[1] and said[0].code == 0


@pytest.mark.parametrize("verb", [("look", "a"), ("check",), ("generate", "a"), ("models",)])
def test_a_broken_or_absent_file_is_one_sentence(
    verb: tuple[str, ...], file: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(file.read_bytes()[:500])
    assert "no whole GGUF file" in refused(verb[0], broken, *verb[1:])
    assert "absent.gguf" in refused(verb[0], tmp_path / "absent.gguf", *verb[1:])
