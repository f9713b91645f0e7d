from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everyhead.data.spans import spans_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("a回🙂é"))
ANY_TOKENIZER = settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(TEXT, st.data())
def test_a_span_is_every_character_that_the_piece_touches(text, data):
    whole = text.encode("utf-8")
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(whole) - 1)))) - {len(whole)})
    edges = [0, *cuts, len(whole)] if whole else []
    pieces = [whole[a:b] for a, b in pairwise(edges)]
    at = [n for n, character in enumerate(text) for _ in character.encode("utf-8")]
    wanted = [text[at[a] : at[b - 1] + 1] for a, b in pairwise(edges)]
    assert spans_of(pieces) == wanted


def test_one_byte_that_is_not_utf8_spoils_only_itself():
    assert spans_of([b"a", b"\xe5", "回".encode()]) == ["a", "�", "回"]
    assert spans_of([b"", b"a"]) == ["", "a"]


@ANY_TOKENIZER
@given(text=TEXT)
def test_spans_cover_the_text_with_one_span_an_id(tokenizer, text):
    spans = tokenizer.spans(text)
    assert len(spans) == len(tokenizer.encode(text))
    place = 0
    for span in spans:  # each begins where the last ended, or inside its last character
        if not text.startswith(span, place):
            place -= 1
        assert text.startswith(span, place)
        place += len(span)
    assert place == len(text)


def test_defect_emoji_and_chinese_cut_into_bytes_show_as_characters(tokenizer):
    spans = tokenizer.spans("🙂鼟")
    assert "�" not in "".join(spans)
    assert set("".join(spans)) == {"🙂", "鼟"}
