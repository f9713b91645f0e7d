"""What thousands of tests pay each, and none asks for, is not done."""

import gc
import sys
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is there then (tests, libraries) stays to the end: no search for garbage in it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish() -> None:
    """For a device that is not there, torch.manual_seed keeps each seed and how it was called."""
    if (torch := sys.modules.get("torch")) is not None:
        for device in (torch.cuda, torch.xpu, torch.mtia):
            if not device.is_available():
                device.manual_seed_all = lambda seed: None
