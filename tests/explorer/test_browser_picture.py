"""The picture in Chromium: darkest where the weight is, a click on a patch asks for its row."""

import numpy as np
import pytest

from everyhead.explorer.page import write
from everyhead.explorer.scene import Group, Matrices, Picture, Scene
from tests.explorer.conftest import Tab

pytestmark = pytest.mark.slow

# The red of each patch's middle, and the caption below.
MIDDLES = """() => {
  const canvas = document.querySelector("canvas.overpicture");
  const context = canvas.getContext("2d");
  const found = [];
  for (let i = 0; i < 2; i++) for (let j = 0; j < 3; j++) {
    const [x, y] = [(j + 0.5) * canvas.width / 3, (i + 0.5) * canvas.height / 2];
    found.push(Array.from(context.getImageData(x, y, 1, 1).data.slice(0, 3)));
  }
  return [found, document.querySelector(".picturecard p").textContent];
}"""


def scene() -> Scene:
    """A class token and 2 × 3 patches; token t reads token t + 1 alone, the last one the first."""
    weights = np.roll(np.eye(7), 1, axis=1)[None]
    names = ["[CLS]", *(f"{i},{j}" for i in range(2) for j in range(3))]
    picture = Picture(np.full((2, 3, 3), 0.9), (2, 3), first=1, query=0)
    layers = [Matrices("encoder.0.self_attn", weights)]
    group = Group("encoder", "self", names, names, layers, grid=(2, 3), picture=picture)
    return Scene("a.png", ["a.png"], [group])


def test_the_tint_lies_where_the_weight_is_and_follows_a_click(chromium, tmp_path) -> None:
    page = chromium.new_page(viewport={"width": 1100, "height": 900})
    tab = Tab(page)
    tab.show(write(scene(), tmp_path / "page.html").as_uri(), view="head")
    page.wait_for_function("document.querySelector('canvas.overpicture').width > 300")
    colours, caption = page.evaluate(MIDDLES)
    reds = [red - blue for red, _, blue in colours]
    assert int(np.argmax(reds)) == 0 and max(reds[1:]) < 5  # [CLS] reads patch 0,0
    assert "[CLS]" in caption and "1" in caption
    box = page.locator("canvas.overpicture").bounding_box()
    middle = {"x": box["width"] * 0.5, "y": box["height"] * 0.25}  # patch 0,1
    page.locator("canvas.overpicture").click(position=middle)
    colours, caption = page.evaluate(MIDDLES)
    assert int(np.argmax([red - blue for red, _, blue in colours])) == 2  # it reads patch 0,2
    assert caption.startswith("what 0,1 takes from the picture")
    own = "readback"  # of what this test reads
    assert [each for each in tab.complaints if own not in each] == []
    page.close()
