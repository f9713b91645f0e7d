"""Debian's Chromium without a network, and pages that complain of nothing."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everyhead.explorer.page import write
from everyhead.explorer.scene import Group, Matrices, Scene

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"),
    *("--disable-component-update", "--no-first-run", "--mute-audio"),
]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: no browser")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: no browser")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


class Tab:
    """One page, opened offline; what it complains of is kept."""

    def __init__(self, page: Any) -> None:
        self.page, self.complaints = page, []
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._asked(request.url))

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _asked(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:", "http://127.0.0.1")):
            self.complaints.append(f"asked for {url}")

    def show(self, url: str, **state: object) -> "Tab":
        """Open the address with this state and wait until it is drawn."""
        hash_ = "&".join(f"{name}={value}" for name, value in state.items())
        self.page.goto("about:blank")
        self.page.goto(f"{url}#{hash_}")
        self.page.wait_for_selector("body[data-ready]")
        return self

    def change(self, action: Callable[[], Any]) -> None:
        """Do something that draws the page anew, and wait for it."""
        before = self.page.locator("body").get_attribute("data-ready")
        action()
        self.page.wait_for_selector(f'body:not([data-ready="{before}"])')

    def saved(self, kind: str) -> bytes:
        """What the page saves."""
        with self.page.expect_download() as download:
            self.page.locator(".options .choice").last.locator("select").select_option(kind)
        return Path(download.value.path()).read_bytes()

    def numbers(self) -> list[np.ndarray]:
        """The matrices that the page saves, NaN where nothing may be looked at."""
        panels = json.loads(self.saved("json"))["panels"]
        return [np.array(panel["weights"], dtype=float) for panel in panels]


@pytest.fixture
def tab(chromium: Any) -> Iterator[Tab]:
    context = chromium.new_context(
        viewport={"width": 1300, "height": 900}, offline=True, accept_downloads=True, locale="en"
    )
    opened = Tab(context.new_page())
    yield opened
    context.close()
    assert opened.complaints == []


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., str]:
    """Write scenes and give the file's address."""

    def save(*scenes: Scene) -> str:
        return write(scenes, tmp_path / "page.html").as_uri()

    return save


def shares(shape: tuple[int, ...], seen: np.ndarray | None = None, seed: int = 0) -> np.ndarray:
    """Softmax rows of random scores, in float64."""
    scores = 3 * np.random.default_rng(seed).normal(size=shape)
    scores = scores if seen is None else np.where(seen, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


SOURCE = ["[CLS]", "The", "bank", "of", "the", "river", "was", "muddy", ".", "[SEP]"]
TARGET = ["Das", "Ufer", "des", "Flusses", "war", "schlammig", "."]


def translation() -> Scene:
    """Encoder with two layers, decoder with three, cross-attention; four heads each."""
    n, m = len(SOURCE), len(TARGET)
    causal = np.tril(np.ones((m, m), dtype=bool))
    numbers = {"entropy": [[0.5, 1.0, 1.5, 2.0]] * 3, "previous": [[0.1, None, 0.3, 0.9]] * 3}

    def layers(name: str, count: int, shape: tuple[int, int], seen=None) -> list[Matrices]:
        made = [shares((4, *shape), seen, seed) for seed in range(count)]
        return [Matrices(f"{name}.{i}", each, visible=seen) for i, each in enumerate(made)]

    return Scene(
        "a translation",
        [" ".join(SOURCE)],
        [
            Group("encoder", "self", SOURCE, SOURCE, layers("encoder", 2, (n, n))),
            Group(
                *("decoder", "self", TARGET, TARGET, layers("decoder", 3, (m, m), causal)),
                numbers=numbers,
                names=[[None, "previous", None, None]] * 3,
            ),
            Group("cross", "cross", TARGET, SOURCE, layers("cross", 3, (m, n))),
        ],
        model="a toy",
        output={"text": " ".join(TARGET)},
    )


class Served:
    """A server in a thread of this process, at a port of its own."""

    def __init__(self, session: Any, scenes: list[Scene]) -> None:
        import socket

        import uvicorn

        from everyhead.explorer.server import app

        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        served = app(session, scenes, port=self.port)
        self.server = uvicorn.Server(uvicorn.Config(served, log_level="error"))
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],), daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.02)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        self.listener.close()


@pytest.fixture
def online(chromium: Any) -> Iterator[Tab]:
    """A page that may ask the server of the test."""
    context = chromium.new_context(viewport={"width": 1300, "height": 1000}, locale="en")
    opened = Tab(context.new_page())
    yield opened
    context.close()
    refused = "400 (Bad Request)"  # Chromium writes of each refused request, some time later
    assert [each for each in opened.complaints if refused not in each] == []
