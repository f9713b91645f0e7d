"""A page of the explorer within a report: it runs, is clicked, and may do nothing more."""

from pathlib import Path

import pytest

from everyhead.cli.framed import Frame, policy
from everyhead.cli.report import write_report
from everyhead.explorer.page import html
from everyhead.explorer.scene import Scene, scene_of
from tests.explorer.conftest import shares, translation


def report(folder: Path, scene: Scene) -> str:
    """The address of a report that frames the scene's page."""
    path = write_report(
        folder / "index.html",
        title="A report",
        facts={},
        scores={},
        examples=[],
        pictures=[],
        curve=None,
        attribution="",
        commands=[],
        frames=[Frame("Look", "A page", html([scene]))],
    )
    return path.as_uri()


@pytest.mark.slow
def test_a_framed_page_answers_to_clicks(tab, tmp_path: Path):
    tab.page.goto(report(tmp_path, translation()))
    framed = tab.page.frame_locator("iframe")
    framed.locator("body[data-ready]").wait_for()
    framed.locator("#to-head").click()
    framed.locator(".tokens.queries button").first.wait_for()
    assert framed.locator("table.grid").count() == 0
    framed.locator("#to-overview").click()
    framed.locator("table.grid a").nth(3).click()
    framed.locator(".tokens.queries button").first.wait_for()


def test_a_sentence_cannot_let_a_script_of_its_own_run():
    plain = html([scene_of([shares((1, 2, 2))], ["a", "b"])])
    evil = html([scene_of([shares((1, 2, 2))], ["script-src 'sha256-abc='", "b"])])
    assert "script-src 'sha256-abc='" in evil
    allowed = policy([Frame("a", "b", evil)])
    assert allowed == policy([Frame("a", "b", plain)])
    assert "sha256-abc=" not in allowed and allowed.count("sha256-") == 1
