"""Launches under way on a GPU that is played: tokens appear between two looks of the host, some or many at a time."""

from __future__ import annotations

import random
from collections import deque
from ctypes import c_uint32
from itertools import chain
from typing import Any

import pytest

from amk.engine.backends import launches_ahead
from amk.engine.backends.launches_ahead import AHEAD, LaunchesAhead
from amk.lowering.device_memory import MappedBuffer
from amk.report.diagnostic import AmkError, Diagnostic
from tests.emulator.host_driver import HostDriver, host_device

STALL_NS = 2_000_000_000


class Played:
    """An engine whose tokens are 100, 101, ... in order; it computes when the host waits."""

    stall_ns = STALL_NS

    def __init__(self, seed: int, dies_at: int | None = None) -> None:
        self.device, self.stream = host_device(HostDriver()), self
        self._queue: deque[tuple[int, int]] = deque()  # words that are still to be written
        self._draw, self._dies_at = random.Random(seed), dies_at
        self.count, self.most, self.checked = 0, 0, 0

    def enqueue(self, tokens: int, output: int) -> None:
        first = self.count + len(self._queue)
        self._queue.extend((output + 4 * at, first + at) for at in range(tokens))
        self.most = max(self.most, len(self._queue))

    def compute(self, _: float = 0.0) -> None:
        for _ in range(self._draw.randrange(4)):
            if self._queue and self.count != self._dies_at:
                address, number = self._queue.popleft()
                c_uint32.from_address(address).value = 100 + number
                self.count += 1

    def is_done(self) -> bool:
        return not self._queue or self.count == self._dies_at

    def synchronise(self) -> None:
        while self._queue and self.count != self._dies_at:
            self.compute()

    def check(self) -> None:
        self.checked += 1


def launches(engine: Any, count: int, each: int, patch: pytest.MonkeyPatch) -> LaunchesAhead:
    patch.setattr(launches_ahead.time, "sleep", engine.compute)
    return LaunchesAhead(engine, count, MappedBuffer(engine.device, AHEAD * each))


@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize("count", [1, 4, 23])
def test_every_token_comes_once_and_in_order(count: int, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        engine = Played(seed)
        lists = list(launches(engine, count, each, monkeypatch))
        assert all(lists) and list(chain(*lists)) == list(range(100, 100 + count))
        assert engine.most <= AHEAD * each and engine.count == count and engine.checked == 1
        assert len(engine.device.driver.held) == 1, "a text allocates nothing"


def test_an_abandoned_text_waits_for_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Played(1)
    found = launches(engine, 1000, 1, monkeypatch)
    first = next(found)
    found.close()
    found.close()
    assert first[0] == 100 and len(first) <= engine.count <= len(first) + AHEAD and engine.is_done()
    assert list(found) == [] and engine.checked == 1


def test_a_launch_that_ends_without_its_token_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = launches(Played(2, dies_at=5), 9, 1, monkeypatch)
    with pytest.raises(AmkError, match="without its token"):
        list(found)


class Watched(Played):
    """The watchdog stops the launch of one token: it and those behind it come, after the stall, and mean nothing."""

    def __init__(self, seed: int, stops_at: int) -> None:
        super().__init__(seed)
        self.now, self._stops_at = 0.0, stops_at

    def compute(self, _: float = 0.0) -> None:
        before = self.count
        super().compute()
        stalled = before <= self._stops_at < self.count
        self.now += STALL_NS / 1e9 if stalled else 0.0004

    def check(self) -> None:
        if self.count > self._stops_at:
            raise AmkError(Diagnostic("AMK604", "stopped"))


@pytest.mark.parametrize("slow", [0.0, 0.3, 1.7, 5.0])
def test_no_token_of_a_stopped_launch_is_given_out(slow: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the host waits for it or is away meanwhile. What came before may be lost with it."""
    for seed in range(10):
        engine = Watched(seed, stops_at=7)
        found: list[int] = []
        launched = launches(engine, 23, 1, monkeypatch)
        monkeypatch.setattr(launches_ahead.time, "monotonic", lambda engine=engine: engine.now)
        with pytest.raises(AmkError, match="AMK604"):
            for some in launched:
                found += some
                busy = engine.now + slow
                while engine.now < busy:
                    engine.compute()
                    engine.now = max(engine.now, busy - 1.0) if not engine._queue else engine.now + 0.1
        assert found == list(range(100, 100 + len(found))) and len(found) <= 7
