"""The page as a file: one script, its hash in the policy, tokens that end nothing; in the wheel."""

import base64
import hashlib
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path

import pytest

from everyhead.explorer import joined
from everyhead.explorer.page import html, json_text, write
from everyhead.explorer.scene import scene_of
from tests.explorer.conftest import shares, translation

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "src/everyhead/explorer/static"
MODULES = sorted(STATIC.glob("*.js"))


class Blocks(HTMLParser):
    """Every element's name, and the content of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.names, self.attributes = [], []
        self.blocks: list[tuple[str, dict, str]] = [("", {}, "")]
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs
        self.blocks.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag):
        self.blocks.append(("", {}, ""))

    def handle_data(self, data):
        tag, attrs, text = self.blocks[-1]
        self.blocks[-1] = (tag, attrs, text + data)


def hash_of(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def test_the_policy_allows_this_script_and_this_style_and_no_connection():
    blocks = Blocks(html([translation()])).blocks
    policy = next(a["content"] for _, a, _ in blocks if a.get("http-equiv"))
    (script,) = [t for tag, a, t in blocks if tag == "script" and a["type"] == "module"]
    (style,) = [text for tag, _, text in blocks if tag == "style"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["script-src"] == f"'sha256-{hash_of(script)}'"
    assert rules["style-src"] == f"'sha256-{hash_of(style)}'"
    assert rules["default-src"] == rules["connect-src"] == rules["base-uri"] == "'none'"
    assert rules["form-action"] == "'none'"


def test_nothing_outside_the_file_is_named():
    text = html([translation()])
    code = re.sub(r"http://www\.w3\.org/2000/svg", "", joined.script() + joined.read("style.css"))
    assert not re.search(r"(https?:)?//[\w.-]+\.\w", re.sub(r"(?m)(^|\s)// .*$", "", code))
    assert not [v for k, v in Blocks(text).attributes if k in ("src", "href")]


@pytest.mark.parametrize(
    "token", ["</script>", "<script>alert(1)</script>", "<!--", "]]>", '"', "'", "&lt;", "\ud800"]
)
def test_no_token_ends_or_begins_anything(token: str, tmp_path: Path):
    plain = html([scene_of(shares((1, 2, 2)), ["a", "b"])])
    odd = html([scene_of(shares((1, 2, 2)), [token, "b"], title=token)])
    assert Blocks(odd).names == Blocks(plain).names
    page = next(t for tag, a, t in Blocks(odd).blocks if a.get("id") == "page")
    assert json.loads(page)["scenes"][0]["groups"][0]["rows"] == [token, "b"]
    write(scene_of(shares((1, 2, 2)), [token, "b"]), tmp_path / "page.html")


def test_json_is_ascii_without_markup_and_refuses_what_json_does_not_know():
    assert json_text({"a": "<&>\u2028é"}) == '{"a":"\\u003c\\u0026\\u003e\\u2028\\u00e9"}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text(float("nan"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_modules_are_short_and_make_no_markup_of_text(path: Path):
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 330
    unsafe = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser"
    )
    assert not re.search(unsafe, text)
    assert "srcdoc" not in text and "javascript:" not in text


def test_every_module_is_joined_and_none_is_left_over():
    script = joined.script()
    for path in MODULES:
        own = re.search(
            r"^export (?:async )?(?:function|class|const) (\w+)", path.read_text("utf-8")
        )
        if own:
            assert own.group(1) in script
    imported = {
        name for path in MODULES for name in re.findall(r'"\./(\w+\.js)"', path.read_text("utf-8"))
    }
    assert imported | {"main.js"} == {path.name for path in MODULES}


def test_both_languages_say_the_same_things():
    said = [
        set(re.findall(r"^  (\w+):", joined.read(name), re.MULTILINE))
        for name in ("english.js", "chinese.js")
    ]
    assert said[0] == said[1]


def test_the_pages_files_are_in_the_packages_data():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["everyhead"]
    for path in STATIC.iterdir():
        name = path.relative_to(ROOT / "src/everyhead").as_posix()
        assert any(fnmatch(name, pattern) for pattern in patterns), name


@pytest.mark.slow
def test_the_wheel_holds_them(tmp_path: Path):
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    code = f"import os; os.chdir(sys.argv[2]); {build}".replace("import os", "import os, sys", 1)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "src").symlink_to(ROOT / "src")
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "out", tmp_path],
        check=True,
        capture_output=True,
    )
    (wheel,) = (tmp_path / "out").glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {f"everyhead/explorer/static/{path.name}" for path in STATIC.iterdir()} <= held
