"""SIGINT and SIGTERM as a request to stop after the current step, so that everything can be saved.

with stop_requests() as asked:
    while not asked: …                asked: the signals' numbers, in order
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupted(Exception):
    """A signal asked to stop; everything is saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.signal_number, self.step = signal_number, step


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying; a second one stops at once.

    Outside the main thread, where Python gives no signals, nothing is ever collected.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, _frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            # None: it was not set from Python and cannot be put back from there.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
