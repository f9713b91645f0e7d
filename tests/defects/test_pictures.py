"""Defect: a token that looks like markup becomes markup in the picture that shows it."""

from pathlib import Path
from xml.etree import ElementTree

from everyhead.inspection.figures import attention_figure, save_figure

EVIL = ["</script>", "<img src=x>", "a<b<c", "-->", "]]>", "&amp;"]


def tags(path: Path) -> set[str]:
    return {node.tag.split("}")[-1] for node in ElementTree.parse(path).iter()}


def test_markup_in_a_token_stays_text_in_an_svg(tmp_path: Path) -> None:
    for name, labels in (("plain", ["a"] * 6), ("evil", EVIL)):
        figure = attention_figure([[[1 / 6] * 6] * 6], labels, labels, title="".join(labels))
        save_figure(figure, tmp_path / f"{name}.svg")
    assert tags(tmp_path / "evil.svg") == tags(tmp_path / "plain.svg")
