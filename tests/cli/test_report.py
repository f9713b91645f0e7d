"""The page about a run: one file, no script, nothing from the data is markup."""

import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everyhead.cli.framed import Frame
from everyhead.cli.report import write_report
from everyhead.errors import UserError

EVIL = "</script><img src=x onerror=alert(1)>\"'&amp;</dd></style><script>1</script>{title}"


class Reader(HTMLParser):
    """Collects a page's tags, attributes and texts as a browser would read them."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = [""]
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.texts.append("")

    def handle_endtag(self, tag):
        self.texts.append("")

    def handle_data(self, data):
        self.texts[-1] += data


def tiny_png(path: Path) -> Path:
    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", 160, 80, 8, 0, 0, 0, 0)
    pixels = zlib.compress((b"\0" + b"\xff" * 160) * 80)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )
    return path


def page(folder: Path, **changes) -> str:
    content = {
        "title": "English to Chinese",
        "facts": {"recipe": "translate-en-zh", "parameters": 4123456, "loss": 0.5, "none": None},
        "scores": {
            "bleu": 16.42,
            "bleu_low": 13.9,
            "bleu_high": 18.84,
            "chrf": 14.2,
            "signature": "nrefs:1|tok:zh",
            "loss": 2.7,
            "perplexity": 14.9,
        },
        "examples": [("I bought bread.", "我买了面包。", "我买面包。")],
        "pictures": [("attention", tiny_png(folder / "picture.png"))],
        "curve": tiny_png(folder / "curve.png"),
        "attribution": "Sentences: somebody, CC BY-SA 4.0",
        "commands": ['everyhead translate runs/demo "Hello."'],
    } | changes
    path = write_report(folder / "run" / "index.html", **content)
    assert [p.name for p in path.parent.iterdir()] == ["index.html"]
    return path.read_text(encoding="utf-8")


def test_the_page_says_what_is_known(tmp_path: Path):
    texts = Reader(page(tmp_path)).texts
    for expected in (
        *("English to Chinese", "4,123,456", "16.4", "95 % interval 13.9 to 18.8", "14.2"),
        *("nrefs:1|tok:zh", "2.700", "14.90", "我买了面包。", "我买面包。"),
        *("Sentences: somebody, CC BY-SA 4.0", 'everyhead translate runs/demo "Hello."'),
    ):
        assert expected in texts, expected
    assert "none" not in texts


def test_the_page_is_one_file_without_script(tmp_path: Path):
    html = page(tmp_path)
    reader = Reader(html)
    assert not {"script", "link", "iframe", "object", "a"} & {tag for tag, _ in reader.tags}
    sources = [attributes["src"] for tag, attributes in reader.tags if tag == "img"]
    assert len(sources) == 2 and all(s.startswith("data:image/png;base64,") for s in sources)
    assert not re.search(r"https?://|url\(|@import", html)
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)


@pytest.mark.parametrize(
    "changes",
    [
        {"title": EVIL},
        {"facts": {EVIL: EVIL}},
        {"scores": {"bleu": 1.0, "signature": EVIL}},
        {"examples": [(EVIL, EVIL, EVIL)]},
        {"attribution": EVIL},
        {"commands": [EVIL]},
        {"languages": (EVIL, EVIL)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_sentence_with_markup_stays_text(tmp_path: Path, changes: dict):
    plain, evil = Reader(page(tmp_path)), Reader(page(tmp_path, **changes))
    assert {tag for tag, _ in evil.tags} <= {tag for tag, _ in plain.tags}
    assert all("onerror" not in attributes for _, attributes in evil.tags)
    if "languages" not in changes:
        assert EVIL in evil.texts


def test_markup_in_a_caption_stays_text(tmp_path: Path):
    picture = tiny_png(tmp_path / "picture.png")
    reader = Reader(page(tmp_path, pictures=[(EVIL, picture)]))
    images = [attributes for tag, attributes in reader.tags if tag == "img"]
    assert images[1]["alt"] == EVIL and "onerror" not in images[1]
    assert images[1]["width"] == "96" and images[1]["height"] == "48"


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(st.characters(exclude_characters="\r\0", codec="utf-8"), min_size=1))
def test_any_sentence_is_shown_as_it_is(tmp_path: Path, text: str):
    assert text in Reader(page(tmp_path, examples=[(text, "r", "t")])).texts


def test_languages_are_tagged(tmp_path: Path):
    tags = Reader(page(tmp_path, languages=("en", "zh-Hans"))).tags
    languages = [a["lang"] for tag, a in tags if tag == "dd" and "lang" in a]
    assert languages == ["en", "zh-Hans", "zh-Hans"]


def test_what_is_missing_is_left_out(tmp_path: Path):
    html = page(
        tmp_path,
        **{"scores": {}, "examples": [], "pictures": [], "curve": None, "commands": []},
    )
    assert "<section>" not in html and "English to Chinese" in html


def test_a_missing_picture_is_a_sentence_and_the_old_page_stays(tmp_path: Path):
    before = page(tmp_path)
    with pytest.raises(UserError, match=r"gone\.png could not be read"):
        page(tmp_path, curve=tmp_path / "gone.png")
    (tmp_path / "text.png").write_text("no picture", encoding="utf-8")
    with pytest.raises(UserError, match="not a PNG"):
        page(tmp_path, curve=tmp_path / "text.png")
    assert (tmp_path / "run" / "index.html").read_text(encoding="utf-8") == before


def test_a_framed_page_has_its_script_and_no_right_to_the_page_around_it(tmp_path: Path):
    inner = (
        "<meta content=\"default-src 'none'; script-src 'sha256-AbC+/1='; img-src data:\">"
        f"<script>1</script>{EVIL}"
    )
    frame = Frame(EVIL, EVIL, inner)
    reader = Reader(page(tmp_path, frames=[frame, frame]))
    frames = [attributes for tag, attributes in reader.tags if tag == "iframe"]
    assert [f["srcdoc"] for f in frames] == [inner, inner] and frames[0]["title"] == EVIL
    assert all(f["sandbox"] == "allow-scripts allow-downloads" for f in frames)
    policies = [a["content"] for tag, a in reader.tags if a.get("http-equiv")]
    assert policies == [
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
        "script-src 'sha256-AbC+/1='"
    ]
    assert "script" not in {tag for tag, _ in reader.tags}
