"""A scene of plain arrays: what it takes and what it refuses."""

import numpy as np
import pytest
import torch

from everyhead.errors import UserError
from everyhead.explorer.scene import Group, Matrices, Scene, scene_of
from tests.explorer.conftest import shares


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3)])
def test_one_array_is_one_layer(shape: tuple[int, ...]):
    scene = scene_of(shares(shape), ["a", "b", "c"])
    (group,) = scene.groups
    assert len(group.layers) == 1 and group.kind == "self" and group.columns == ["a", "b", "c"]


def test_several_layers_batches_of_one_and_tensors():
    arrays = [torch.tensor(shares((1, 2, 3, 4), seed=i)) for i in range(3)]
    scene = scene_of(arrays, ["a", "b", "c"], ["w", "x", "y", "z"], title="mine")
    group = scene.groups[0]
    assert (group.kind, len(group.layers), group.layers[0].n_heads) == ("cross", 3, 2)
    np.testing.assert_allclose(group.layers[2].head(1), arrays[2][0, 1], rtol=1e-6)


def test_nan_and_numpy_masks_are_what_may_not_be_looked_at():
    weights = shares((1, 3, 3), np.tril(np.ones((3, 3), dtype=bool)))
    hidden = ~np.tril(np.ones((3, 3), dtype=bool))
    as_nan = Matrices("a", np.where(hidden, np.nan, weights))
    as_mask = Matrices("a", np.ma.masked_array(weights, np.broadcast_to(hidden, weights.shape)))
    told = Matrices("a", weights, visible=~hidden)
    for layer in (as_nan, as_mask, told):
        np.testing.assert_array_equal(layer.visible(0), ~hidden)
        np.testing.assert_allclose(layer.head(0), weights[0], rtol=1e-6)
    assert Matrices("a", weights).visible(0).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: scene_of(shares((2, 3, 3)), ["a", "b"]), "3 queries and 3 keys, but there are 2"),
        (lambda: scene_of([], ["a"]), "no layer to show"),
        (lambda: scene_of(np.zeros((2, 0, 0)), []), "none of them may be 0"),
        (lambda: scene_of(np.full((1, 2, 2), np.inf), ["a", "b"]), "negative or infinite"),
        (lambda: scene_of(-shares((1, 2, 2)), ["a", "b"]), "negative or infinite"),
        (lambda: Scene("t", [], []), "nothing to show"),
        (lambda: Matrices("here", np.zeros(3)), "here has weights of shape (3,)"),
        (lambda: Scene("t", [], [Group("g", "self", ["a"], ["a"], [])]), "g has no layer"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_sentence(make, words: str):
    with pytest.raises(UserError) as refused:
        make()
    assert words in str(refused.value)
