"""Prompts in, texts out: order, limits, seeds, streams, and refusals."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from everyhead.errors import UserError
from everyhead.generation.generate import generate, generate_stream
from everyhead.generation.sampling import Sampling
from everyhead.generation.tasks import Options, Task, end_ids, groups, prompt_ids
from everyhead.generation.text import Written, texts
from everyhead.generation.text_stream import Alphabet
from tests.generation.decoders import LONGEST, gpt2, llama, plain_greedy
from tests.generation.models import lively
from tests.generation.spellings import Spelled, byte_fallback, byte_level, metaspace

PROMPTS = ["The cat", "To be, or not", "我看见一只猫。", "a", "🙂 the dog sat by"]
MODELS = [(gpt2, byte_level), (llama, metaspace)]
pairs = pytest.mark.parametrize(
    ("make", "spelling"), MODELS, ids=["gpt2, byte level", "llama, metaspace"]
)


def pair(make: Any, spelling: Any, seed: int = 0) -> tuple[torch.nn.Module, Spelled]:
    tokenizer = spelling()
    return make(seed, tokenizer.vocab_size), tokenizer


def written(model: Any, tokenizer: Spelled, prompts: Sequence[str], **asked: Any) -> list[Written]:
    return [one for (one,) in texts(model, tokenizer, prompts, Options(**asked))]


@pairs
def test_greedy_text_is_that_of_the_whole_text_each_time(make, spelling) -> None:
    model, tokenizer = pair(make, spelling)
    found = written(model, tokenizer, PROMPTS, max_new_tokens=9, sampling=Sampling(temperature=0))
    for prompt, one in zip(PROMPTS, found, strict=True):
        ids = tokenizer.encode(prompt)
        assert one.ids == plain_greedy(model, ids, 9)
        before, whole = tokenizer.decode(ids), tokenizer.decode([*ids, *one.ids])
        # After a byte of the prompt, broken bytes break what the tokenizer makes of both.
        assert whole in (before + one.text, f"{before}{one.text}\ufffd") or (
            not whole.startswith(before)
        )


@pairs
def test_a_seed_gives_the_same_text_whatever_stands_beside_it(make, spelling) -> None:
    model, tokenizer = pair(make, spelling)
    asked: dict[str, Any] = {"max_new_tokens": 8, "seed": 3}
    together = generate(model, tokenizer, PROMPTS, **asked)
    assert together == [generate(model, tokenizer, prompt, **asked) for prompt in PROMPTS]
    assert together[::-1] == generate(model, tokenizer, PROMPTS[::-1], **asked)
    options = Options(8, Sampling(0.8), 3, batch_tokens=1, chunk_prompts=2)
    assert [one.text for (one,) in texts(model, tokenizer, PROMPTS, options)] == together
    assert generate(model, tokenizer, PROMPTS, max_new_tokens=8, seed=4) != together
    longer = generate(model, tokenizer, PROMPTS, max_new_tokens=11, seed=3)
    assert all(long.startswith(short) for long, short in zip(longer, together, strict=True))


def test_without_a_seed_texts_differ_and_follow_torch_s_own() -> None:
    model, tokenizer = pair(*MODELS[0])
    torch.manual_seed(1)
    first = generate(model, tokenizer, ["The cat"] * 3, max_new_tokens=9)
    assert len(set(first)) == 3
    torch.manual_seed(1)
    assert generate(model, tokenizer, ["The cat"] * 3, max_new_tokens=9) == first
    assert generate(model, tokenizer, ["The cat"] * 3, max_new_tokens=9) != first


def test_samples_of_a_prompt_are_its_own_numbers_in_any_list() -> None:
    model, tokenizer = pair(*MODELS[0])
    asked: dict[str, Any] = {"max_new_tokens": 7, "seed": 5, "samples": 3, "temperature": 9}
    (one, other) = generate(model, tokenizer, ["The cat", "a"], **asked)
    assert len(set(one)) == len(set(other)) == 3
    assert generate(model, tokenizer, "The cat", **asked) == one
    assert generate(model, tokenizer, "The cat", max_new_tokens=7, seed=5, temperature=9) == one[0]


@pairs
def test_a_stream_is_the_text_in_pieces(make, spelling) -> None:
    model, tokenizer = pair(make, spelling, 2)
    for prompt in PROMPTS:
        asked: dict[str, Any] = {"max_new_tokens": 30, "seed": 1}
        pieces = list(generate_stream(model, tokenizer, prompt, **asked))
        text = generate(model, tokenizer, prompt, **asked)
        assert "".join(pieces) == text and all(pieces)
        stop = text[len(text) // 2 :][:2]
        stopped = list(generate_stream(model, tokenizer, prompt, stop=stop, **asked))
        assert "".join(stopped) == text[: text.index(stop)]
        assert generate(model, tokenizer, prompt, stop=[stop, "never"], **asked) == "".join(stopped)


def test_a_stream_writes_no_further_than_it_is_read(monkeypatch) -> None:
    model, tokenizer = pair(*MODELS[0])
    calls, head = [], model.head

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return head(hidden)

    monkeypatch.setattr(model, "head", counted)
    pieces = generate_stream(model, tokenizer, "The", max_new_tokens=40, seed=1)
    assert not calls
    next(pieces)
    assert len(calls) < 8
    assert not torch.is_inference_mode_enabled()


def test_why_a_text_ended_is_said() -> None:
    model, tokenizer = pair(*MODELS[0])
    prompt = tokenizer.decode(tokenizer.encode("The cat sat on the mat. " * 9)[: LONGEST - 6])
    n = len(tokenizer.encode(prompt))
    asked: dict[str, Any] = {"seed": 1, "max_new_tokens": LONGEST - n}
    (one,) = written(model, tokenizer, [prompt], **asked)
    assert (len(one.ids), one.reason) == (LONGEST - n, "length")
    (one,) = written(model, tokenizer, [prompt], seed=1, max_new_tokens=LONGEST)
    assert (len(one.ids), one.reason) == (LONGEST - n, "context")
    first, second = one.ids[:2]
    (one,) = written(model, tokenizer, [prompt], seed=1, ends=frozenset([second]))
    assert (one.ids, one.reason) == ([first], "end")


def test_a_blank_prompt_in_a_list_stays_blank_and_alone_is_refused() -> None:
    model, tokenizer = pair(*MODELS[0])
    found = generate(model, tokenizer, ["", "The", " "], max_new_tokens=3, seed=0)
    assert found == ["", generate(model, tokenizer, "The", max_new_tokens=3, seed=0), ""]
    for empty in (generate, generate_stream):
        with pytest.raises(UserError, match="prompt is empty"):
            empty(model, tokenizer, "")
    assert generate(model, tokenizer, []) == []


def test_progress_counts_prompts() -> None:
    model, tokenizer = pair(*MODELS[0])
    done: list[int] = []
    options = Options(2, batch_tokens=1, chunk_prompts=2)
    list(texts(model, tokenizer, ["a", "", "b", "c", "d"], options, progress=done.append))
    assert done == [2, 3, 4, 5]


def test_prompts_are_read_no_further_than_a_chunk_ahead() -> None:
    model, tokenizer = pair(*MODELS[0])

    def endless():
        while True:
            yield "The cat"

    found = texts(model, tokenizer, endless(), Options(1, chunk_prompts=4))
    assert len([next(found) for _ in range(6)]) == 6


def test_beams_find_the_most_probable_text() -> None:
    model, tokenizer = pair(*MODELS[0], seed=1)
    prompt = "The cat sat on the mat, and the dog sat by the door. "[:-1]
    near = tokenizer.decode(tokenizer.encode(prompt * 3)[: LONGEST - 4])
    found = generate(model, tokenizer, [prompt, "a", "", near], max_new_tokens=6, beam=3)
    assert found[2] == ""
    assert generate(model, tokenizer, "a", max_new_tokens=6, beam=3) == found[1]
    (one,) = written(
        model, tokenizer, [near], max_new_tokens=6, beam=3, sampling=Sampling(temperature=0)
    )
    assert one.text == found[3] and one.reason in ("context", "end") and len(one.ids) <= 4
    several = generate(model, tokenizer, "a", max_new_tokens=6, beam=3, samples=3)
    assert several[0] == found[1] and len(several) == 3


def test_groups_hold_their_budget_and_fit_into_the_model() -> None:
    tasks = [Task([1] * n, min(20, 60 - n), "length") for n in (1, 55, 3, 40, 39, 2, 58, 55)]
    found = list(groups(tasks, Options(samples=2, batch_tokens=200), 60))
    assert sorted(i for group in found for i in group) == list(range(8))
    for group in found:
        width = max(len(tasks[i].prompt) for i in group) + max(tasks[i].limit for i in group)
        assert width <= 60
        assert len(group) == 1 or len(group) * 2 * width <= 200


def test_beams_are_rows_of_a_group_too() -> None:
    tasks = [Task([1] * 10, 10, "length")] * 6
    asked = Options(sampling=Sampling(temperature=0), beam=5, batch_tokens=200)
    assert list(groups(tasks, asked, 60)) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("seed", [5, None])
def test_samples_of_one_prompt_hold_the_budget_and_are_the_same(seed: int | None) -> None:
    model, tokenizer = pair(*MODELS[0])
    rows, read = [], model.hidden

    def counted(ids: torch.Tensor, *given: Any, **more: Any) -> torch.Tensor:
        rows.append(ids.shape[0])
        return read(ids, *given, **more)

    asked = Options(7, Sampling(9), seed, samples=11)
    torch.manual_seed(1)
    (together,) = texts(model, tokenizer, ["The cat"], asked)
    model.hidden = counted
    budget = 4 * (len(tokenizer.encode("The cat")) + 7) + 1
    (apart,) = texts(model, tokenizer, ["The cat"], asked._replace(batch_tokens=budget))
    assert max(rows) == 4 and len(apart) == 11
    assert len({one.text for one in apart}) > 4
    assert seed is None or apart == together


def test_what_is_put_around_a_text_begins_a_prompt_and_does_not_end_it() -> None:
    tokenizer = byte_fallback()
    begin = tokenizer.inner.token_to_id("<|begin|>")
    assert prompt_ids(tokenizer, "the")[0] == begin

    class Ended(Spelled):
        def encode(self, text: str, pair: str | None = None, *, special: bool = True) -> list[int]:
            ids = super().encode(text, pair, special=special)
            return [*ids, int(self.eos_id)] if special else ids

    ended = Ended(tokenizer.inner)
    assert prompt_ids(ended, "the") == tokenizer.encode("the")
    assert prompt_ids(ended, "the<|end|>") == tokenizer.encode("the<|end|>")


def test_ids_that_end_a_text_are_the_model_s_and_the_tokenizer_s() -> None:
    model, tokenizer = pair(*MODELS[1])
    model = type(model)(model.config.model_copy(update={"eos_id": 7, "more_eos_ids": (8, 9)}))
    assert end_ids(model, tokenizer) == {tokenizer.eos_id, 7, 8, 9}


def test_ids_that_the_tokenizer_does_not_have_are_never_written() -> None:
    tokenizer = byte_level()
    model = gpt2(0, tokenizer.vocab_size + 200)
    found = generate(model, tokenizer, ["The", "a"], max_new_tokens=40, temperature=2.0)
    assert all(found)
    generate(model, tokenizer, ["The", "a"], max_new_tokens=9, beam=2)


def test_an_alphabet_knows_silent_tokens_and_bytes() -> None:
    tokenizer = byte_fallback()
    alphabet = Alphabet(tokenizer)
    assert alphabet.silent == {tokenizer.inner.token_to_id(x) for x in ("<|end|>", "<|begin|>")}
    assert len(alphabet.bytes) == 256 and not Alphabet(byte_level()).bytes


WRONG = [
    ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    ({"samples": 0}, "samples is 0"),
    ({"stop": ""}, "stop string is empty"),
    ({"temperature": -1}, "temperature is -1"),
    ({"beam": 0}, "beam is 0"),
    ({"beam": 2, "samples": 3}, "n_best is 3"),
    ({"beam": 2, "temperature": 1.0}, "temperature 0"),
    ({"beam": 2, "stop": "x"}, "leave out stop strings"),
]


@pytest.mark.parametrize(("asked", "sentence"), WRONG)
def test_options_that_make_no_sense_are_refused(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        generate(*pair(*MODELS[0]), "The", **asked)


def test_a_prompt_that_is_too_long_is_refused_with_its_number() -> None:
    model, tokenizer = pair(*MODELS[0])
    with pytest.raises(UserError, match=f"Prompt 2: .* reads at most {LONGEST}"):
        generate(model, tokenizer, ["a", "The cat " * 99])
    with pytest.raises(UserError, match="shorten the prompt"):
        generate_stream(model, tokenizer, "The cat " * 99)


def test_a_model_that_does_not_write_or_another_model_s_tokenizer_is_refused() -> None:
    tokenizer = byte_level()
    with pytest.raises(UserError, match="Transformer does not go on with a text"):
        generate(lively(9), tokenizer, "The")
    with pytest.raises(UserError, match="do not belong together"):
        generate(gpt2(), tokenizer, "The")
