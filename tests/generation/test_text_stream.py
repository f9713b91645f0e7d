"""Streamed text: all pieces are the whole text, and none is half a character or past a stop."""

from collections.abc import Sequence

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from everyhead.generation.text_stream import Alphabet, TextStream, Writing
from tests.generation.spellings import (
    BEGIN,
    END,
    LINES,
    SPELLINGS,
    Spelled,
    byte_fallback,
    byte_level,
)

kinds = pytest.mark.parametrize("kind", SPELLINGS)
BROKEN = "\ufffd"


def pieces(tokenizer: Spelled, prompt: Sequence[int], ids: Sequence[int]) -> list[str]:
    stream = TextStream(Alphabet(tokenizer), prompt)
    return [*(stream.push(number) for number in ids), stream.close()]


def written(tokenizer: Spelled, text: str, stops: Sequence[str] = ()) -> tuple[list[str], Writing]:
    """What is shown while the ids of a text come, and what shows it."""
    writing = Writing(TextStream(Alphabet(tokenizer)), stops)
    shown = [writing.push(number) for number in tokenizer.encode(text, special=False)]
    return [*shown, writing.close()], writing


def after(tokenizer: Spelled, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """What the tokenizer makes of all of it, without what it makes of the prompt."""
    whole, before = tokenizer.decode([*prompt, *ids]), tokenizer.decode(prompt)
    assume(whole.startswith(before))  # else broken bytes have broken the prompt's own
    return whole[len(before) :]


def whole_characters(tokenizer: Spelled, prompt: Sequence[int], ids: Sequence[int]) -> list[str]:
    """What a text may be shown as: itself, or where it is cut within a character, without that."""
    whole = after(tokenizer, prompt, ids)
    if not whole.endswith(BROKEN):
        return [whole]
    visible = [number for number in ids if tokenizer.decode([number], False) not in (END, BEGIN)]
    shorter = [after(tokenizer, prompt, visible[: len(visible) - n]) for n in (1, 2, 3)]
    return [whole[:-1], *(text for text in shorter if not text.endswith(BROKEN))]


@kinds
@given(data=st.data())
def test_all_pieces_are_the_text_after_the_prompt(kind: str, data: st.DataObject) -> None:
    tokenizer = SPELLINGS[kind]()
    prompt = tokenizer.encode(data.draw(st.sampled_from(["", "The cat", "你好", "🙂 the", "猫"])))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))
    shown = "".join(pieces(tokenizer, prompt, ids))
    assert shown in whole_characters(tokenizer, prompt, ids)


@kinds
@given(text=st.text(max_size=12) | st.sampled_from(LINES))
def test_no_piece_of_a_text_is_half_a_character(kind: str, text: str) -> None:
    tokenizer = SPELLINGS[kind]()
    ids = tokenizer.encode(text, special=False)
    text = tokenizer.decode(ids)  # kinds without bytes know not every character
    if BROKEN in text:
        return
    shown = pieces(tokenizer, [], ids)
    assert BROKEN not in "".join(shown)
    assert "".join(shown) == text


@pytest.mark.parametrize("emoji", ["🙂", "👍🏽", "👨‍👩‍👧", "🇫🇷", "❤️"])
@pytest.mark.parametrize("spelling", [byte_level, byte_fallback])
def test_a_joined_emoji_is_shown_whole(spelling, emoji: str) -> None:
    shown, writing = written(spelling(), f"a {emoji} b")
    assert writing.text == "".join(shown) == f"a {emoji} b"
    assert [piece for piece in shown if emoji in piece]


@pytest.mark.parametrize("spelling", [byte_level, byte_fallback])
def test_a_text_that_is_cut_within_a_character_ends_before_it(spelling) -> None:
    tokenizer = spelling()
    ids = tokenizer.encode("a 你好", special=False)
    shown = {"".join(pieces(tokenizer, [], ids[:n])) for n in range(len(ids) + 1)}
    assert {"", "a", "a 你", "a 你好"} <= shown <= {"", "a", "a ", "a 你", "a 你好"}


def test_text_appears_as_soon_as_it_is_certain() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("The cat 猫 sat", special=False)
    for number, piece in zip(ids, pieces(tokenizer, [], ids), strict=False):
        alone = tokenizer.decode([number])
        assert BROKEN in alone or piece == alone


def test_a_word_keeps_the_space_before_it_and_specials_are_silent() -> None:
    tokenizer = byte_fallback()
    vocabulary = tokenizer.inner.get_vocab()
    ids = [vocabulary[word] for word in ("▁cat", END, "s", "▁sat")]
    assert pieces(tokenizer, tokenizer.encode("the"), ids) == [" cat", "", "s", " sat", ""]


STOPS = [
    *(["\n\n"], ["cat"], ["at on", "t on the"], ["sat by", "dog"]),
    *(["🙂"], ["。 你"], ["t"], ["never"]),
]


@pytest.mark.parametrize("spelling", [byte_level, byte_fallback])
@pytest.mark.parametrize("stops", STOPS)
def test_a_text_ends_before_the_first_stop_string(spelling, stops: list[str]) -> None:
    text = f"{LINES[0]}\n\n{LINES[2]} {LINES[3]}"
    shown, writing = written(spelling(), text, stops)
    ends = [text.index(stop) for stop in stops if stop in text]
    assert writing.text == "".join(shown) == text[: min(ends, default=len(text))]
    assert writing.stopped == bool(ends)


@given(
    text=st.text(alphabet="ab🙂猫", max_size=12),
    stops=st.lists(st.text(alphabet="ab🙂猫", min_size=1, max_size=3), max_size=2),
)
@example(text="baa", stops=["a", "baa"])
def test_nothing_is_ever_shown_past_a_stop_string(text: str, stops: list[str]) -> None:
    tokenizer = byte_level()
    shown, _ = written(tokenizer, text, stops)
    whole, end = "", len(text)
    ids = tokenizer.encode(text, special=False)
    for n in range(1, len(ids) + 1):  # writing ends with the token that completes a stop string
        so_far = tokenizer.decode(ids[:n])
        found = [so_far.index(stop) for stop in stops if stop in so_far]
        if found:
            end = min(found)
            break
    for piece in shown:
        whole += piece
        assert len(whole) <= end
    assert whole == text[:end]
