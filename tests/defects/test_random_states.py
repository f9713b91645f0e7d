"""Defect: a restart draws other numbers, because one of the generators was not saved.

A checkpoint holds PyTorch's generators alone (training/checkpoints.py); so training may draw from
no other one.
"""

import random
from pathlib import Path

import numpy as np

from tests.training import tiny


def test_training_draws_neither_from_pythons_nor_from_numpys_global_generator(tmp_path: Path):
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    tiny.trainer(tmp_path).fit()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
