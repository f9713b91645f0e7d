"""What `look` shows of our own Bert, its tasks and text decoders."""

import numpy as np
import pytest
import torch

from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.explorer.own_texts import OwnTextReader
from everyhead.explorer.sessions import Asked
from everyhead.inspection.changes import HeadOff
from everyhead.models.bert import Bert, BertConfig
from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.models.tasks import SequenceClassifier, SequenceClassifierConfig
from everyhead.weights.folder import save
from tests.cli.conftest import everyhead

SMALL = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 24}
LINES = ["the cat sat on the mat", "a dog", "我们回家"]


@pytest.fixture(scope="module")
def words():
    return TextTokenizer.train(LINES, kind="wordpiece", vocab_size=200)


def bert(words, **more):
    torch.manual_seed(0)
    return BertConfig(vocab_size=words.vocab_size, d_ff=24, pad_id=words.pad_id, **SMALL, **more)


def test_an_encoder_s_heads_are_those_of_its_pass(words):
    model = Bert(bert(words)).eval()
    scene = OwnTextReader(model, words, name="ours").scene(Asked("the cat 我们", measured=True))
    (group,) = scene.groups
    assert [*group.rows] == ["[CLS]", "the", "cat", "我", "们", "[SEP]"]
    assert len(group.layers) == 2 and group.layers[0].n_heads == 2
    weights = group.layers[1].head(0)
    assert weights.shape == (6, 6) and np.allclose(weights.sum(-1), 1, atol=1e-5)
    assert "effect" in group.numbers


def test_two_texts_are_told_apart(words):
    model = Bert(bert(words)).eval()
    reader = OwnTextReader(model, words, name="ours")
    (group,) = reader.scene(Asked("the cat", "a dog")).groups
    assert group.segments is not None and set(group.segments[0]) == {0, 1}
    with torch.no_grad():
        ids = torch.tensor([words.encode("the cat", "a dog")])
        segments = torch.tensor([words.segments("the cat", "a dog")])
        told = model.hidden(ids, segments=segments)[0]
    scene = reader.scene(Asked("the cat", "a dog"))
    assert np.allclose(scene.states["encoder"], told.numpy(), atol=1e-5)
    off = reader.scene(Asked("the cat", "a dog", changes=(HeadOff("encoder.0.self_attn", [0]),)))
    assert not np.allclose(off.states["encoder"], told.numpy(), atol=1e-5)


def test_a_classifier_says_its_class_and_a_decoder_what_comes_next(words):
    config = SequenceClassifierConfig(family="bert", body=bert(words), labels=("yes", "no"))
    reader = OwnTextReader(SequenceClassifier(config).eval(), words, name="ours")
    scene = reader.scene(Asked("the cat"))
    assert scene.output["text"].split()[0] in ("yes", "no")
    assert [group.name for group in scene.groups] == ["encoder"]
    assert reader.next_words(Asked("the cat")) is None
    decoder = GPT2(GPT2Config(vocab_size=words.vocab_size, **SMALL)).eval()
    reader = OwnTextReader(decoder, words, name="ours")
    found = reader.next_words(Asked("the cat", tail=(7,)))
    with torch.no_grad():
        told = decoder(torch.tensor([[*words.encode("the cat"), 7]]))[0, -1]
    assert torch.allclose(found.logits, told, atol=1e-5)
    assert len(reader.scene(Asked("the cat")).output["next"]) == 3


def test_mistakes_are_sentences(words):
    model = Bert(bert(words)).eval()
    with pytest.raises(UserError, match="no tokenizer"):
        OwnTextReader(model, None, name="ours")
    with pytest.raises(UserError, match="24"):
        OwnTextReader(model, words, name="ours").scene(Asked("cat " * 40))


def test_the_verb_opens_our_folders(words, tmp_path):
    save(Bert(bert(words)).eval(), words, tmp_path / "bert")
    page = tmp_path / "a.html"
    code, out, err = everyhead("look", tmp_path / "bert", "the cat", "--html", page)
    assert (code, err) == (0, "") and str(page) in out and page.stat().st_size > 10_000
    code, out, err = everyhead("check", tmp_path / "bert")
    assert code == 0 and "0 fail" in out
