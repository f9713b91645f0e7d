"""Which ids end a text: generation_config.json's, as Hugging Face's generate takes them."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from everyhead.errors import UserError
from everyhead.generation.prompted_beam import prompted_beam
from everyhead.weights.folder import load_model, save_model
from tests.generation.decoders import PAIRS, prompts, sequences

LIMIT = 24


def published(folder: Path, family: str, ends: object, further: object) -> None:
    """A folder of theirs whose two files tell of other ends."""
    make, twin = PAIRS[family]
    twin(make()).save_pretrained(folder)
    for name, told in (("config.json", ends), ("generation_config.json", further)):
        values = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps(values | {"eos_token_id": told}), encoding="utf-8")


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("where", ["several there", "another there", "several in both"])
@pytest.mark.parametrize("family", PAIRS)
def test_texts_end_where_theirs_end(family, where, beam, tmp_path) -> None:
    ids = prompts([5, 1, 9, 3, 7, 2], seed=3)
    endless = prompted_beam(PAIRS[family][0](), ids, beam=beam, limit=LIMIT)
    told = [endless[0][0].ids[2], endless[4][0].ids[11], endless[1][0].ids[6]]  # some will end
    told = list(dict.fromkeys(told))[: 1 if where == "another there" else 3]
    further = told[0] if where == "another there" else told
    published(tmp_path, family, told if where == "several in both" else 0, further)
    ours = load_model(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert [ours.config.eos_id, *ours.config.more_eos_ids] == told
    more = {"num_beams": beam, "early_stopping": "never"} if beam > 1 else {}
    wanted = sequences(theirs, ids, max_new_tokens=LIMIT, **more)
    found = prompted_beam(
        ours, ids, beam=beam, limit=LIMIT, ends=frozenset(told), length_penalty=float(beam > 1)
    )
    assert any(best.ended for (best,) in found)
    for (best,), row in zip(found, wanted, strict=True):
        n = len(best.ids)
        assert row[:n] == best.ids and not set(best.ids) & set(told)
        assert row[n : n + 1] == [] or row[n] in {*told, 0}


def test_several_ends_come_back(tmp_path) -> None:
    published(tmp_path / "theirs", "gpt2", 0, [0, 17])
    save_model(load_model(tmp_path / "theirs"), tmp_path / "ours")
    again = load_model(tmp_path / "ours").config
    assert (again.eos_id, again.more_eos_ids) == (0, (17,))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert theirs.generation_config.eos_token_id == [0, 17]


@pytest.mark.parametrize("told", ["</s>", [0, None], 1.5])
def test_an_end_that_is_no_id_is_a_sentence(told, tmp_path) -> None:
    published(tmp_path, "llama", 0, told)
    with pytest.raises(UserError, match="must be an id or a list of ids"):
        load_model(tmp_path)


def test_gpt2_reads_as_many_positions_as_theirs(tmp_path) -> None:
    """n_ctx is an older name that their code does not read."""
    published(tmp_path, "gpt2", 0, 0)
    values = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(values | {"n_ctx": 7}), encoding="utf-8")
    ours = load_model(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert ours.config.max_len == theirs.config.n_positions == 64
    ids = torch.arange(30)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-5, atol=1e-4)


def test_an_end_that_is_asked_for_is_the_only_one(tmp_path) -> None:
    published(tmp_path, "gpt2", 0, [3, 4])
    found = load_model(tmp_path, changes={"eos_id": 7}).config
    assert (found.eos_id, found.more_eos_ids) == (7, ())
    found = load_model(tmp_path, changes={"eos_id": 7, "more_eos_ids": (8,)}).config
    assert (found.eos_id, found.more_eos_ids) == (7, (8,))
