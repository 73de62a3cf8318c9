"""Ctrl-C, SIGTERM and SIGHUP end a session, and each leaves a report.

The first says so at once and ends the search, however it is at work; a second one ends what the first still waits for.
While the journal is opened, its first events or the report are written, which takes a moment, both only count. A signal
that the process was started to ignore, as by nohup, stays ignored.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STDERR = 2
FIRST = b"\ninterrupted: ending the search; again to wait for nothing else\n"
NEXT = b"\ninterrupted again\n"


@dataclass
class Interrupts:
    """Handles the signals while it is entered, in the main thread. `code`: the exit status that the last one means.
    `begun`: whether a session has written its first event, which its owner says."""

    begun: bool = False
    count: int = 0
    last: int = signal.SIGINT
    _holding: bool = False
    _before: dict[signal.Signals, Callable[..., object] | int | None] = field(default_factory=dict)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            heeded = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
            self._before = {each: signal.signal(each, self._take) for each in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for each, before in self._before.items():
            signal.signal(each, before)
        self._before = {}

    @property
    def code(self) -> int:
        return 128 + self.last

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Nothing interrupts what is done here."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False

    def check(self) -> None:
        """KeyboardInterrupt if a signal came while all were held."""
        if self.count:
            raise KeyboardInterrupt

    def _take(self, signum: int, frame: FrameType | None) -> None:
        self.count, self.last = self.count + 1, signum
        with contextlib.suppress(OSError):  # a terminal that has gone
            os.write(STDERR, FIRST if self.count == 1 else NEXT)
        if not self._holding:
            raise KeyboardInterrupt
