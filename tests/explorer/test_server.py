"""The live page's server: who may ask, what is answered, and what is refused in a sentence."""

import base64
import json
import re
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from everyhead.explorer.guard import Guard
from everyhead.explorer.readers import reader
from everyhead.explorer.server import app
from everyhead.explorer.sessions import MOST_SERVED, Asked, NextWords
from everyhead.weights.foreign import open_foreign
from tests.explorer import models

TEXT = "the bank of the river was muddy"
ORIGIN = "http://127.0.0.1:8765"
HOST = {"host": "127.0.0.1:8765"}
PLACES = ["decoder.0.self_attn", "decoder.1.self_attn"]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "gpt2"
    return reader(open_foreign(models.saved(models.gpt2(4096), folder)))


@pytest.fixture(scope="module")
def client(session):
    return TestClient(app(session, [session.scene(Asked(TEXT))]), base_url=ORIGIN)


def ask(client, name: str, **question):
    return client.post(f"/api/{name}", json=question)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8765"}, 200),
        ({"Host": "evil.example:8765"}, 421),
        ({"Host": "127.0.0.1:9999"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Host": ""}, 421),
        ({"Origin": ORIGIN}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:8765"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_only_the_page_itself_may_ask(client, headers: dict[str, str], status: int):
    assert client.get("/", headers=headers).status_code == status
    found = client.post("/api/next", json={"text": TEXT}, headers=headers)
    assert found.status_code == status


def test_a_form_or_text_that_another_site_could_send_is_refused(client):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        sent = client.post("/api/next", content="{}", headers={"Content-Type": kind})
        assert sent.status_code == 415
    long = client.post("/api/next", json={"text": "x" * 1_000_001})
    assert long.status_code == 413 and "shorten the text" in long.text
    chunked = client.post(
        "/api/next", content=iter([b"{}"]), headers={"Content-Type": "application/json"}
    )
    assert chunked.status_code == 411


def test_a_length_that_chunks_belie_is_refused(client):
    length = {"Content-Length": "2", "Content-Type": "application/json"}
    for headers, status in (
        ({"Transfer-Encoding": "chunked"}, 411),
        ({"Content-Length": "²"}, 411),
        ({"Content-Length": "9" * 5000}, 413),
    ):
        refused = client.app.refusal(
            "POST", {name.lower(): value for name, value in (length | headers).items()} | HOST
        )
        assert refused is not None and refused[0] == status
    plain = {name.lower(): value for name, value in length.items()}
    assert client.app.refusal("POST", plain | HOST) is None


def test_an_open_address_takes_numbers_but_no_foreign_names(session):
    wide = app(session, [session.scene(Asked(TEXT))], address="0.0.0.0", port=80)
    for host, status in (("192.168.1.7:80", 200), ("evil.example:80", 421), ("127.0.0.1:80", 200)):
        client = TestClient(wide, base_url="http://127.0.0.1:80")
        assert client.get("/", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("address", "host", "welcome"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.2", "127.0.0.2:80", True),
        ("127.0.0.2", "192.168.1.7:80", False),
        ("::1", "[::1]", True),
        ("0.0.0.0", "192.168.1.7", True),
        ("::", "[fe80::7]:80", True),
        ("0.0.0.0", "evil.example", False),
        ("127.0.0.1", "127.0.0.1:8080", False),
        ("127.0.0.1", "127.0.0.1:80:80", False),
    ],
)
def test_a_host_without_a_port_means_80_and_every_loopback_number_is_local(
    address: str, host: str, welcome: bool
):
    guard = Guard(None, address=address, port=80)
    assert (guard.refusal("GET", {"host": host}) is None) == welcome


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/../../etc/passwd", "/static/app.js", "/api/scene", "/%2e%2e/x"]
)
def test_no_file_is_read_by_a_path(client, path: str):
    assert client.get(path).status_code in (404, 405)


def test_the_page_says_what_it_may_load(client):
    found = client.get("/")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', found.text).group(1)
    assert "connect-src 'self'" in policy and "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert found.headers["X-Content-Type-Options"] == "nosniff"


def test_a_text_is_run_and_changes_are_told_apart(client, session):
    plain = ask(client, "scene", text="the cat sat on the mat").json()
    assert "".join(plain["scene"]["groups"][0]["rows"]) == "the cat sat on the mat"
    assert "before" not in plain
    off = {"place": "decoder.1.self_attn", "head": 2}
    changed = ask(client, "scene", text="the cat sat on the mat", off=[off]).json()
    moved = changed["before"]["moved"]["decoder"]
    assert len(moved) == len(changed["scene"]["groups"][0]["rows"]) and max(moved) > 1e-4
    hidden = ask(client, "scene", text=TEXT, hidden=[0], places=PLACES).json()
    assert hidden["before"]["moved"]["decoder"][-1] > 1e-6


def test_the_next_words_add_up_and_changes_show_both(client):
    words = ask(client, "next", text=TEXT, temperature=0.5, top_k=3).json()
    drawn = [word["drawn"] for word in words["words"]]
    assert words["kept"] == 3 and abs(sum(drawn) - 1) < 1e-9 and drawn[3:] == [0] * (len(drawn) - 3)
    assert words["words"][0]["before"] is None
    assert words["draw"]["id"] in [word["id"] for word in words["words"][:3]]
    changed = ask(client, "next", text=TEXT, off=[{"place": PLACES[0], "head": 0}]).json()
    assert changed["words"][0]["before"] != changed["words"][0]["plain"]


def decoded(answer: dict) -> np.ndarray:
    weights = np.frombuffer(base64.b64decode(answer["weights"]), "<f4")
    return weights.reshape(answer["size"])


def test_long_texts_are_shown_in_windows_that_are_exact(client, session):
    text = " ".join(f"w{i}" for i in range(600))
    answer = ask(client, "scene", text=text).json()["scene"]
    group = answer["groups"][0]
    n = len(group["rows"])
    assert n > 1500 and group["layers"][0]["heads"][0] == {}
    place = {"scene": answer["id"], "group": 0, "layer": 1, "head": 3}
    window = ask(client, "head", **place, row=1000, column=900).json()
    whole = session.scene(Asked(text, most=MOST_SERVED)).groups[0].layers[1].head(3)
    part = whole[1000:1256, 900:1156]
    np.testing.assert_allclose(decoded(window), part, atol=1e-6)
    key, weight = window["tops"][5][0]
    assert key == int(whole[1005].argmax()) and abs(weight - whole[1005].max()) < 1e-6
    last = ask(client, "head", **place, row=10**6, column=10**6).json()
    assert last["row"] == last["column"] == n - 256


@pytest.mark.parametrize(
    ("name", "question", "words"),
    [
        ("scene", {"text": " "}, "The sentence is blank"),
        ("scene", {"text": "river " * 5000}, "the model takes 4096"),
        ("scene", {"text": "x" * 200_001}, "text: String should have at most 200000"),
        ("scene", {"text": TEXT, "off": [{"place": "nowhere", "head": 0}]}, "no place 'nowhere'"),
        ("scene", {"text": TEXT, "off": [{"place": PLACES[0], "head": 99}]}, "there is no 99"),
        ("scene", {"text": TEXT, "path": "/etc/passwd"}, "path: Extra inputs"),
        ("scene", {}, "text: Field required"),
        ("head", {"scene": 1, "group": 9, "layer": 0, "head": 0}, "no such head"),
        ("head", {"scene": 10**6, "group": 0, "layer": 0, "head": 0}, "older than the last runs"),
        ("next", {"text": TEXT, "temperature": -1}, "temperature is -1"),
        ("next", {"text": TEXT, "temperature": 1e-308}, "must be 0 (the most likely alone)"),
        ("next", {"text": TEXT, "tail": [10**6]}, "no piece 1000000: the model knows 300"),
        ("scene", {"text": TEXT, "tail": [5, 300]}, "no piece 300: the model knows 300"),
        (
            "scene",
            {"text": TEXT, "hidden": [99], "places": PLACES},
            "key 99 of decoder.0.self_attn",
        ),
        ("next", {"text": TEXT, "hidden": [99], "places": PLACES}, "was never reached"),
        ("scene", {"text": TEXT, "hidden": [-1], "places": PLACES}, "hidden.0: Input should be"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(client, name, question, words):
    found = ask(client, name, **question)
    assert found.status_code == 400
    assert words in json.loads(found.text)["error"]


def test_what_the_model_cannot_do_is_a_sentence_too(session, monkeypatch):
    live = TestClient(app(session, [session.scene(Asked(TEXT))]), base_url=ORIGIN)

    def no_memory(asked: Asked) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(session, "next_words", no_memory)
    found = ask(live, "next", text=TEXT)
    assert (found.status_code, found.json()) == (400, {"error": "CUDA out of memory."})
    nothing = NextWords(torch.full((8,), float("nan")), lambda ids: ["x" for _ in ids])
    monkeypatch.setattr(session, "next_words", lambda asked: nothing)
    found = ask(live, "next", text=TEXT, temperature=0)
    assert found.status_code == 400 and "JSON" in found.json()["error"]


def test_broken_json_is_refused(client):
    headers = {"Content-Type": "application/json"}
    assert client.post("/api/scene", content=b"{", headers=headers).status_code == 400


def test_the_verb_serves_on_this_machine_and_warns_of_others(tmp_path: Path, capsys, monkeypatch):
    import uvicorn

    from everyhead.cli.serving import serve_page

    asked: list[str] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: asked.extend(sockets))

    class Nothing:
        name = "nothing"

    serve_page(Nothing(), [], {}, address="127.0.0.1", port=0)
    out, err = capsys.readouterr()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\n", out) and err == ""
    serve_page(Nothing(), [], {}, address="0.0.0.0", port=0)
    assert "no password and no encryption" in capsys.readouterr().err
    for listener in asked:
        listener.close()


def test_on_windows_the_port_is_nobody_elses(monkeypatch):
    from everyhead.cli import serving

    assert serving._listens_alone() == socket.SO_REUSEADDR
    monkeypatch.setattr(serving.socket, "SO_EXCLUSIVEADDRUSE", -5, raising=False)
    monkeypatch.setattr(serving.sys, "platform", "win32")
    assert serving._listens_alone() == -5


def test_what_a_cell_does_is_asked_without_driving_out_the_scene_on_the_screen(client):
    first = ask(client, "scene", text=TEXT).json()["scene"]["id"]
    off = [{"place": "decoder.0.self_attn", "head": 0}]
    for _ in range(8):
        told = ask(client, "scene", text=TEXT, hidden=[0], places=PLACES[:1], effect=True).json()
        assert set(told) == {"before"} and max(told["before"]["moved"]["decoder"]) > 0
        ask(client, "scene", text=TEXT, off=off, effect=True)
    shown = {"scene": first, "group": 0, "layer": 1, "head": 1}
    assert ask(client, "head", **shown).status_code == 200
    for _ in range(11):
        ask(client, "scene", text=TEXT)
        assert ask(client, "head", **shown).status_code == 200
    ask(client, "scene", text=TEXT)
    assert ask(client, "head", **shown).status_code == 200  # asked for a moment ago
