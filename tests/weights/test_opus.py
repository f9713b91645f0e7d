"""Published translation folders: opened, translated, looked at, checked, saved again."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("sentencepiece")
transformers = pytest.importorskip("transformers")

import everyhead  # noqa: E402
from everyhead.data.sentencepiece_tokenizer import SentencePiecePair  # noqa: E402
from everyhead.models.transformer import Transformer  # noqa: E402
from tests.cli.conftest import everyhead as program  # noqa: E402
from tests.weights.published_opus import LINES, write  # noqa: E402

LONGEST = 24


class Opus(NamedTuple):
    folder: Path
    model: Transformer
    tokenizer: SentencePiecePair
    theirs: Any
    their_tokenizer: Any


@pytest.fixture(scope="module", params=["safetensors", "old .bin"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opus:
    folder = tmp_path_factory.mktemp("opus-mt-en-zh")
    theirs = write(folder, old=request.param != "safetensors")
    theirs.generation_config.forced_eos_token_id = None  # at the limit alone
    model, tokenizer = everyhead.load(folder)
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return Opus(folder, model, tokenizer, theirs, their_tokenizer)


def test_the_config_is_read_as_published(both: Opus) -> None:
    c = both.model.config
    pad = both.tokenizer.vocab_size - 1
    assert (c.activation, c.norm, c.tie_output, c.positions) == ("silu", "post", True, "sinusoidal")
    assert (c.pad_id, c.source_pad_id, c.eos_id, c.max_len) == (pad, pad, 0, 512)
    assert isinstance(both.tokenizer, SentencePiecePair)


@torch.no_grad()
def test_the_logits_are_theirs(both: Opus) -> None:
    given = both.their_tokenizer(LINES, return_tensors="pt", padding=True)
    target = torch.cat([torch.full((len(LINES), 1), both.model.config.pad_id), given.input_ids], 1)
    got = both.model(given.input_ids, target, given.attention_mask.bool())
    wanted = both.theirs(**given, decoder_input_ids=target).logits
    torch.testing.assert_close(got[..., :-1], wanted[..., :-1], rtol=1e-4, atol=1e-4)
    assert got[..., -1].isneginf().all()  # padding, one of the bad words


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_are_theirs(both: Opus, beam: int) -> None:
    given = both.their_tokenizer(LINES, return_tensors="pt", padding=True)
    asked = {"early_stopping": "never"} if beam > 1 else {}
    rows = both.theirs.generate(**given, num_beams=beam, max_new_tokens=LONGEST, **asked)
    wanted = both.their_tokenizer.batch_decode(rows, skip_special_tokens=True)
    found = everyhead.translate(both.model, both.tokenizer, LINES, beam=beam, max_len=LONGEST)
    assert found == wanted
    assert len(set(found)) >= 5 and len({len(text) for text in found}) > 3


@pytest.mark.parametrize("both", ["safetensors"], indirect=True)
def test_the_program_translates_with_it(both: Opus) -> None:
    wanted = everyhead.translate(both.model, both.tokenizer, LINES[:3], beam=2, max_len=LONGEST)
    options = ("--beam", 2, "--max-len", LONGEST)
    said = program("translate", both.folder, *options, stdin="\n".join(LINES[:3]).encode())
    assert said == (0, "".join(line + "\n" for line in wanted), "")


@pytest.mark.parametrize("both", ["safetensors"], indirect=True)
def test_the_program_looks_at_it_and_checks_it(both: Opus, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out, err = program("look", both.folder, LINES[0], "--html", page)
    assert (code, err) == (0, "") and str(page) in out
    wanted = everyhead.translate(both.model, both.tokenizer, [LINES[0]])
    assert out.splitlines()[0].endswith(wanted[0]) and page.stat().st_size > 10_000
    laws = ("padding-left", "cache", "greedy", "save-load", "ties")
    code, out, err = program("check", both.folder, *(x for law in laws for x in ("--law", law)))
    assert (code, err) == (0, "") and out.endswith("5 pass, 0 fail, 0 not applicable.\n"), out


@pytest.mark.parametrize("both", ["safetensors"], indirect=True)
def test_what_is_saved_again_opens_here_and_there(both: Opus, tmp_path: Path) -> None:
    everyhead.save(both.model, both.tokenizer, tmp_path)
    model, tokenizer = everyhead.load(tmp_path)
    assert tokenizer.sha256 == both.tokenizer.sha256
    found = everyhead.translate(model, tokenizer, LINES, max_len=LONGEST)
    assert found == everyhead.translate(both.model, both.tokenizer, LINES, max_len=LONGEST)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    theirs_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    given = theirs_tokenizer(LINES[:1], return_tensors="pt")
    text = theirs_tokenizer.decode(theirs.generate(**given)[0], skip_special_tokens=True)
    assert text == everyhead.translate(both.model, both.tokenizer, LINES[:1])[0]
