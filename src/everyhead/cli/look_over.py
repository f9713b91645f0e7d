"""`look --png` for models of pictures: every head's attention over the picture.

Shown is the row that says most: the class token's, or of a model that answers the last word's.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from everyhead.explorer.scene import Group


def over_picture(
    group: "Group", layers: Sequence[int], heads: Sequence[int], *, title: str
) -> "Figure":
    """The picture, then one panel a layer and head; the group has a picture."""
    import numpy as np

    from everyhead.inspection.overlay import patches_figure

    picture = group.picture
    assert picture is not None
    n, query = picture.grid[0] * picture.grid[1], picture.query
    rows, captions = [], []
    for i in layers:
        for h in heads:
            row = group.layers[i].head(h, np.array([query]))[0]
            end = picture.first + n  # what stands behind the patches goes before them here
            rows.append(np.concatenate([row[end:], row[:end]]))
            captions.append(f"{group.layers[i].name} head {h}")
    place = query - picture.first
    return patches_figure(
        picture.colours,
        np.stack(rows),
        picture.grid,
        captions=captions,
        title=f"{title} · from {group.rows[query]}",
        query=place if 0 <= place < n else None,
    )
