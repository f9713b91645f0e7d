"""What stands in gaps, beside Hugging Face's logits."""

import pytest
import torch
import transformers

from everyhead.errors import UserError
from everyhead.generation.fill import fill
from everyhead.weights.fetch import fetch
from everyhead.weights.folder import load, load_model

LINES = ["The [MASK] is muddy.", "A [MASK] and a [MASK].", "我们[MASK]家", "No end [MASK]"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A small random BERT of Hugging Face's that knows minilm's words, and ours of its folder."""
    place = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
    )
    theirs = transformers.BertForMaskedLM(config).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.mul_(8)
    theirs.save_pretrained(place)
    words = transformers.AutoTokenizer.from_pretrained(fetch("minilm").folder)
    words.save_pretrained(place)
    return theirs, words, *load(place)


def test_probabilities_are_theirs(pair):
    theirs, words, model, tokenizer = pair
    found = fill(model, tokenizer, LINES, top=3)
    for line, each in zip(LINES, found, strict=True):
        ids = words(line, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = theirs(ids).logits[0]
        places = (ids[0] == words.mask_token_id).nonzero()[:, 0]
        assert len(each.gaps) == len(places) == line.count("[MASK]") and each.text == line
        for candidates, place in zip(each.gaps, places, strict=True):
            best = logits[place].softmax(-1).topk(3)
            assert [one.id for one in candidates] == best.indices.tolist()
            found_p = torch.tensor([one.probability for one in candidates])
            assert torch.allclose(found_p, best.values, atol=1e-5)


def test_candidates_stand_in_their_line(pair):
    _, _, model, tokenizer = pair
    one, two = fill(model, tokenizer, LINES[:2], top=30_522)
    whole = {c.piece: c.line for c in one.gaps[0]}
    assert len(one.gaps[0]) == 30_522
    assert whole["road"] == "The road is muddy."
    assert whole["##way"] == "Theway is muddy."
    assert abs(sum(c.probability for c in one.gaps[0]) - 1) < 1e-3
    second = {c.piece: c.line for c in two.gaps[1]}
    assert second["dog"] == "A [MASK] and a dog."


def test_what_is_not_read_behind_a_gap_is_told(pair):
    _, _, model, tokenizer = pair
    with pytest.warns(UserWarning, match="1 of 2 lines are longer than 24 .* line 2.*is not read"):
        one, two = fill(model, tokenizer, ["a [MASK]", "[MASK] " + "word " * 30])
    assert len(one.gaps) == len(two.gaps) == 1


def test_mistakes_are_sentences(pair):
    _, _, model, tokenizer = pair
    with pytest.raises(UserError, match=r"Line 2 has no \[MASK\].*'no gap'"):
        fill(model, tokenizer, ["a [MASK]", "no gap"])
    with pytest.raises(UserError, match="beyond the 24 tokens"):
        fill(model, tokenizer, ["word " * 30 + "[MASK]"])
    with pytest.raises(UserError, match="1 or more"):
        fill(model, tokenizer, ["[MASK]"], top=0)
    with pytest.raises(UserError, match="no head for gaps"):
        fill(load_model(fetch("minilm").folder), tokenizer, ["[MASK]"])
    assert fill(model, tokenizer, []) == []
