"""Tokens of a text on a GPU as they are chosen: launches are enqueued ahead, so that the GPU never waits for the host.

Every launch writes its tokens to a place of its own in page-locked host memory, where the host looks for them. The host
clears the place before the launch, and no token is the value that it clears it with. At the end of a text, what was
enqueued runs on: at most `AHEAD` launches.

A launch that the watchdog stopped writes a token, too, that means nothing, but not before the stall: no token that was
missing for half as long as a stall lasts is given out before the watchdog's log was read.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Protocol, Self

from amk.lowering import refusal
from amk.lowering.device_memory import MappedBuffer
from amk.lowering.launch import Device
from amk.lowering.stream import Stream

AHEAD = 4
"""Launches that are enqueued at a time."""
NOTHING = 0xFFFFFFFF
LOOK_SECONDS = 20e-6
"""Between two looks; a token takes 0.4 ms and more."""
LOOKS = 1000
"""After so many in vain, the driver is asked whether the launch has ended without its token."""


class Launcher(Protocol):
    """An engine that enqueues launches: a `CudaEngine`."""

    device: Device
    stream: Stream
    stall_ns: int

    def enqueue(self, tokens: int, *, output: int) -> None: ...
    def check(self) -> None: ...


class LaunchesAhead:
    """`count` tokens in lists of those that are there; of a schedule of one sequence.

    heard: `AHEAD` words for each token of a launch. It outlives the text, as page-locked memory is allocated and freed
    only when the GPU is idle, which would delay the first launch behind a prompt. Nothing else may use the engine
    before the last token came or `close` was called. Raises AMK604 naming the blocked agents if the watchdog fired.
    """

    def __init__(self, engine: Launcher, count: int, heard: MappedBuffer) -> None:
        self._engine, self._left, self._each = engine, count, len(heard.words) // AHEAD
        self._heard = heard
        self._places = deque(range(AHEAD))
        self._running: deque[tuple[int, int]] = deque()  # place, tokens
        self._token = 0  # of the first of them
        self._open = True
        self._missed = time.monotonic()  # when the next token was seen to be missing

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[int]:
        """At least one token, and those behind it that are there already."""
        self._enqueue()
        if not self._running:
            self.close()
            raise StopIteration
        self._wait()
        if time.monotonic() - self._missed >= self._engine.stall_ns / 2e9:
            self._engine.check()
        found = []
        while self._running and (token := self._word()) != NOTHING:
            found.append(token)
            self._token += 1
            if self._token == self._running[0][1]:
                self._places.append(self._running.popleft()[0])
                self._token = 0
        self._missed = time.monotonic()
        if self._left:
            self._enqueue()
        elif not self._running:
            self.close()
        return found

    def close(self) -> None:
        """Wait for what is enqueued. The cache then has some tokens behind the last one that was returned."""
        if self._open:
            self._open, self._left = False, 0
            self._running.clear()
            self._engine.device.make_current()
            self._engine.stream.synchronise()
            self._engine.check()

    def _enqueue(self) -> None:
        """Keep `AHEAD` launches on the stream."""
        self._engine.device.make_current()
        while self._left and self._places:
            place, tokens = self._places.popleft(), min(self._each, self._left)
            first = place * self._each
            self._heard.words[first : first + tokens] = NOTHING
            self._engine.enqueue(tokens, output=self._heard.address + 4 * first)
            self._running.append((place, tokens))
            self._left -= tokens

    def _word(self) -> int:
        return int(self._heard.words[self._running[0][0] * self._each + self._token])

    def _wait(self) -> None:
        looks = 0
        while self._word() == NOTHING:
            looks += 1
            if looks % LOOKS == 0 and self._engine.stream.is_done() and self._word() == NOTHING:
                self.close()
                raise refusal.internal("a launch ended without its token")
            time.sleep(LOOK_SECONDS)
