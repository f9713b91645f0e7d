"""The saved folder is read by Hugging Face's AutoTokenizer with the same result."""

import json

import pytest

from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.errors import UserError

from .conftest import KINDS, SIZES, SOURCE, TARGET
from .test_tokenizer import TRICKY


@pytest.fixture(params=[(kind, size) for kind in KINDS for size in SIZES], ids=str)
def shared(request, trained) -> PairTokenizer:
    return PairTokenizer(trained[request.param], trained[request.param])


@pytest.mark.slow
def test_auto_tokenizer_gives_our_ids_and_eos_and_decodes_the_same(shared, tmp_path):
    transformers = pytest.importorskip("transformers")
    shared.save(tmp_path, model_max_length=77)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = shared.source
    assert (theirs.eos_token_id, theirs.unk_token_id) == (ours.eos_id, ours.unk_id)
    assert theirs.pad_token_id == ours.pad_id
    assert len(theirs) == ours.vocab_size
    assert theirs.model_max_length == 77
    for text in [*SOURCE, *TARGET, *TRICKY, " ".join(TRICKY), "don't , you ."]:
        ids = theirs(text)["input_ids"]
        assert ids == [*ours.encode(text), ours.eos_id]
        assert theirs.decode(ids, skip_special_tokens=True) == text


@pytest.mark.slow
def test_auto_tokenizer_decodes_broken_bytes_the_same(shared, tmp_path):
    transformers = pytest.importorskip("transformers")
    shared.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = [2 + byte for byte in "回a".encode()[1:]] + [2 + 0xFF, 0, shared.target.pad_id]
    assert theirs.decode(ids, skip_special_tokens=True) == shared.target.decode(ids)


def test_a_shared_tokenizer_comes_back_as_one_object(shared, tmp_path):
    shared.save(tmp_path)
    again = PairTokenizer.load(tmp_path)
    assert again.shared
    assert again.sha256 == shared.sha256


@pytest.mark.parametrize("kind", KINDS)
def test_separate_tokenizers_come_back_as_two(kind, tmp_path):
    pair = PairTokenizer.train(SOURCE, TARGET, kind=kind, vocab_size=(330, 340), shared=False)
    pair.save(tmp_path)
    again = PairTokenizer.load(tmp_path)
    assert not again.shared
    assert again.sha256 == pair.sha256
    assert again.source.encode("bread") == pair.source.encode("bread")
    assert again.target.vocab_size == pair.target.vocab_size <= 340
    assert pair.source.sha256 != pair.target.sha256


def test_a_folder_never_holds_both_layouts(shared, tmp_path):
    separate = PairTokenizer.train(SOURCE, TARGET, vocab_size=300, shared=False)
    shared.save(tmp_path)
    separate.save(tmp_path)
    assert not PairTokenizer.load(tmp_path).shared
    shared.save(tmp_path)
    assert PairTokenizer.load(tmp_path).shared
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["tokenizer.json", "tokenizer_config.json"]


def test_the_config_says_what_other_tools_ask_for(shared, tmp_path):
    shared.save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert [config[f"{name}_token"] for name in ("eos", "unk", "pad")] == ["</s>", "<unk>", "<pad>"]
    assert config["clean_up_tokenization_spaces"] is False
    assert config["split_special_tokens"] is True


def test_a_folder_without_tokenizer_is_named(tmp_path):
    with pytest.raises(UserError, match="There is no tokenizer"):
        PairTokenizer.load(tmp_path)
