"""Writing behind a window: as transformers' Mistral does, and on and on in bounded memory."""

from pathlib import Path

import pytest
import torch
import transformers

import everyhead
from everyhead import Window, prepare, swap
from everyhead.errors import UserError
from everyhead.generation.decoder import longest, read, room
from everyhead.models.llama import Llama, LlamaConfig
from everyhead.weights.folder import load_model
from tests.generation.decoders import END, VOCAB, livelier, prompts, their_llama
from tests.generation.test_decoding import greedy
from tests.weights import gguf_files

NEAR = {"rtol": 1e-4, "atol": 1e-4}
SIZES = {"d_model": 32, "n_heads": 4, "n_kv_heads": 2, "d_ff": 48, "n_layers": 2}


def llama(max_len: int = 64) -> Llama:
    torch.manual_seed(0)
    return livelier(Llama(LlamaConfig(vocab_size=VOCAB, max_len=max_len, eos_id=END, **SIZES)))


def mistral(ours: Llama, size: int) -> transformers.MistralForCausalLM:
    """The same weights under their sliding window."""
    plain = their_llama(ours)
    fields = plain.config.to_dict() | {"sliding_window": size, "model_type": "mistral"}
    config = transformers.MistralConfig(**fields, attn_implementation="eager")
    model = transformers.MistralForCausalLM(config).eval()
    model.load_state_dict(plain.state_dict())
    return model


@pytest.mark.parametrize("size", [1, 5, 16, 64])
@torch.no_grad()
def test_a_window_is_mistrals(size: int) -> None:
    ours, ids = llama(), torch.tensor(prompts([40, 40]))
    wanted = mistral(ours, size)(ids).logits
    torch.testing.assert_close(swap(ours, Window(size))(ids), wanted, **NEAR)


@torch.no_grad()
def test_greedy_tokens_behind_a_window_are_mistrals() -> None:
    ours, ids = llama(), prompts([12, 12])
    theirs = mistral(ours, 5).generate(
        torch.tensor(ids), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=END
    )
    wanted = [row[: row.index(END)] if END in row else row for row in theirs[:, 12:].tolist()]
    swap(ours, Window(5))
    assert greedy(ours, ids) == wanted == greedy(prepare(ours), ids)


@pytest.mark.parametrize("prepared", [False, True])
def test_a_text_goes_on_behind_the_models_longest_length(prepared: bool) -> None:
    model, ids = swap(llama(max_len=24), Window(6, first=2)), prompts([60, 35, 4])
    assert room(model, ids[0]) > 1000
    reader = prepare(model) if prepared else model
    together = greedy(reader, ids)
    assert together == [greedy(model, [row])[0] for row in ids]
    text = [*ids[0], *together[0]]
    with torch.no_grad():
        for n in range(60, len(text)):
            logits = model.head(read(model, [text[:n]], model.cache(n), at_once=5))
            assert int(logits.argmax()) == text[n]


@torch.no_grad()
def test_a_long_prompt_enters_in_pieces_that_leave_room_for_the_window() -> None:
    model, (ids,) = swap(llama(max_len=24), Window(6, first=2)), prompts([150])
    found = read(model, [ids], model.cache(150))
    torch.testing.assert_close(found, read(model, [ids], model.cache(150), at_once=1), **NEAR)


def test_without_a_window_or_with_one_too_wide_a_text_ends_where_the_model_does() -> None:
    (ids,) = prompts([60])
    for model in (llama(max_len=24), swap(llama(max_len=24), Window(24, first=1))):
        assert longest(model) == 24
        with pytest.raises(UserError, match="reads at most 24"):
            room(model, ids)
    assert longest(swap(llama(max_len=24), Window(23, first=1))) > 1000


def test_a_gguf_file_is_opened_with_a_window_and_cannot_be_with_lsh(tmp_path: Path) -> None:
    file = gguf_files.write(tmp_path / "small.gguf", gguf_files.llama())
    ids = torch.randint(3, 60, (1, 40))
    with torch.no_grad():
        wanted = swap(load_model(file), Window(5, first=2))(ids)
        assert torch.equal(load_model(file, attention=Window(5, first=2))(ids), wanted)
    with pytest.raises(UserError, match=r"small\.gguf cannot be opened with Lsh.*rotary positions"):
        everyhead.load(file, attention=everyhead.Lsh(2))


@torch.no_grad()
def test_a_prompt_within_the_longest_length_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, calls = swap(llama(), Window(60, first=4)), []
    plain = model.hidden
    monkeypatch.setattr(
        model, "hidden", lambda ids, *rest, **more: calls.append(1) or plain(ids, *rest, **more)
    )
    read(model, prompts([40]), model.cache(40))
    assert len(calls) == 1
