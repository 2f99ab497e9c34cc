"""Ctrl-C and SIGTERM during a run or a sweep."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType


class Signals:
    """The first Ctrl-C or SIGTERM calls `stop` (a run stops with a checkpoint); the second kills the process."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.stop = stop
        self.received: int | None = None

    def __enter__(self) -> Signals:
        main = threading.current_thread() is threading.main_thread()  # other threads cannot catch signals
        self._before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM) if main}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), b"\x1b[?25h")  # show the cursor again, which the bar hides
        self.stop()
