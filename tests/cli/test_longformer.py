"""A published Longformer folder through the program: fill, look, check and models."""

import json

import pytest
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer

from everyhead.weights.folder import load, save
from tests.cli.conftest import everyhead

TEXT = "To be or not to be, that is the question."
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SMALL = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "attention_window": [4, 8],
    "max_position_embeddings": 66,
    "type_vocab_size": 1,
}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """class → a folder of Hugging Face's with a byte-level tokenizer, RoBERTa's kind."""
    root = tmp_path_factory.mktemp("longformer")
    pieces = ByteLevelBPETokenizer()
    pieces.train_from_iterator([TEXT] * 3, vocab_size=320, special_tokens=SPECIALS)
    (root / "pieces").mkdir()
    pieces.save_model(str(root / "pieces"))
    tokenizer = transformers.RobertaTokenizerFast.from_pretrained(root / "pieces")
    config = transformers.LongformerConfig(vocab_size=len(tokenizer), **SMALL)
    folders = {}
    for name in ("LongformerForMaskedLM", "LongformerForSequenceClassification"):
        torch.manual_seed(0)
        folders[name] = root / name
        model = getattr(transformers, name)(config)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(6) if p.dim() > 1 else p
        model.save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    return folders


def test_gaps_are_filled_with_what_theirs_fills_them(published):
    folder = published["LongformerForMaskedLM"]
    code, out, err = everyhead("fill", folder, "To be [MASK] not to be", "--json", "--top", 3)
    assert (code, err) == (0, "")
    theirs = transformers.LongformerForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("To be <mask> not to be", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        (place,) = (ids[0] == tokenizer.mask_token_id).nonzero()
        best = theirs(ids).logits[0, place[0]].softmax(-1).topk(3)
    (gap,) = json.loads(out)["gaps"]
    assert [one["id"] for one in gap] == best.indices.tolist()
    assert [one["probability"] for one in gap] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("name", ["LongformerForMaskedLM", "LongformerForSequenceClassification"])
def test_look_shows_the_whole_matrix_of_a_published_folder(name, published, tmp_path):
    """Their code hides its attention, so the folder is opened as ours."""
    path = tmp_path / "look.json"
    code, _, err = everyhead(
        "look", published[name], TEXT, "--json", path, "--html", tmp_path / "a.html"
    )
    assert (code, err) == (0, "")
    (group,) = json.loads(path.read_text(encoding="utf-8"))["scenes"][0]["groups"]
    n, classified = len(group["keys"]), "Sequence" in name
    assert len(group["heads"]) == 8
    for head in group["heads"]:
        half = 2 if head["place"].endswith("encoder.0.self_attn") else 4
        seen = torch.tensor([[w is not None for w in row] for row in head["weights"]])
        shares = torch.tensor([[w or 0.0 for w in row] for row in head["weights"]])
        assert torch.allclose(shares.sum(-1), torch.ones(n), atol=1e-4)
        i = torch.arange(n)
        wanted = (i[:, None] - i).abs() <= half
        if classified:  # its first token is global
            wanted[0] = wanted[:, 0] = True
        assert torch.equal(seen, wanted)


def test_check_finds_the_laws_kept(published, tmp_path):
    for name, folder in published.items():
        save(*load(folder), tmp_path / name)
        code, out, _ = everyhead("check", tmp_path / name)
        assert code == 0 and "0 fail" in out
        for law in ("padding-left", "under-padding", "nan-padding", "save-load"):
            assert f"pass  {law}" in out


def test_models_lists_its_presets():
    code, out, _ = everyhead("models", "longformer")
    assert code == 0 and "148,711,257" in out
    code, out, _ = everyhead("models", "longformer/tiny")
    assert code == 0 and "WindowAttention" in out
