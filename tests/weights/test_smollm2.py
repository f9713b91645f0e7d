"""SmolLM2-135M-Instruct from its published .gguf file, beside transformers' loading of it."""

from functools import cache
from typing import Any

import gguf
import pytest
import torch
import transformers

import everyhead
from everyhead.weights import fetch
from everyhead.weights.wheel import install_set, is_whole

pytestmark = pytest.mark.slow
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was",
    "Water boils at",
    "def add(a, b):\n",
    "To be or not to be",
    "下雨了",
]


@pytest.fixture(scope="module")
def file():
    """The mirror's file, even where the Hub could be asked for the folder it was made of."""
    wheel = fetch.MIRRORS[fetch.SMOLLM2]
    folder = fetch.cache_folder() / "models" / fetch.SMOLLM2.replace("/", "--")
    if not is_whole(wheel, folder):
        install_set(wheel, folder)
    return folder / wheel.only


@pytest.fixture(scope="module")
def ours(file):
    return everyhead.load(file)


@pytest.fixture(scope="module")
def theirs(file) -> Any:
    """Loaded by transformers, which reads the file twice, and the same names for each tensor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))
        patch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))
        return transformers.LlamaForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        ).eval()


def greedy(model, ids: list[int], n: int) -> list[int]:
    cache, step, found = model.cache(len(ids) + n), torch.tensor([ids]), []
    while len(found) < n:
        number = int(model.head(model.hidden(step, cache=cache)[:, -1]).argmax())
        if number == model.config.eos_id:
            break
        found.append(number)
        step = torch.tensor([[number]])
    return found


def test_the_config_is_the_published_one(ours):
    model, tokenizer = ours
    c = model.config
    assert (c.n_layers, c.d_model, c.n_heads, c.n_kv_heads, c.d_ff) == (30, 576, 9, 3, 1536)
    assert (c.rotary_base, c.max_len, c.vocab_size, c.tie_output) == (1e5, 8192, 49_152, True)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (1, 2, 49_152)


def test_ids_are_the_published_tokenizers(ours):
    """Numbers that other readers of this vocabulary state for these texts."""
    for text, ids in {
        "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
        "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
        "  multiple   spaces": [216, 2701, 256, 5600],
        "The capital of France is": [504, 3575, 282, 4649, 314],
    }.items():
        assert ours[1].encode(text) == ids


@torch.inference_mode()
def test_logits_are_theirs(ours, theirs):
    model, tokenizer = ours
    for text in PROMPTS:
        ids = torch.tensor([tokenizer.encode(text)])
        torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=0, atol=1e-3)


@torch.inference_mode()
def test_a_batch_of_unequal_prompts_is_theirs_one_by_one(ours, theirs):
    model, tokenizer = ours
    rows = [tokenizer.encode(text) for text in PROMPTS]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    real = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows]).bool()
    last = model.head(model.hidden(ids, real)[:, -1])
    wanted = torch.cat([theirs(torch.tensor([row])).logits[:, -1] for row in rows])
    torch.testing.assert_close(last, wanted, rtol=0, atol=1e-3)


@torch.inference_mode()
def test_greedy_text_is_theirs(ours, theirs):
    model, tokenizer = ours
    for text in PROMPTS[:2]:
        ids = tokenizer.encode(text)
        wanted = theirs.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
        assert greedy(model, ids, 12) == [n for n in wanted[0, len(ids) :].tolist() if n != 2]


@torch.inference_mode()
def test_it_knows_the_capital_of_france(ours):
    model, tokenizer = ours
    ids = tokenizer.encode(CHAT.format("What is the capital of France?"))
    assert tokenizer.decode(greedy(model, ids, 32)) == "The capital of France is Paris."
    assert tokenizer.chat_template is not None and "<|im_start|>" in tokenizer.chat_template
