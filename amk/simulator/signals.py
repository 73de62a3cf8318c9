"""Signals of one counter: when they reached a threshold, and how much later the last of equal SMs is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, sqrt
from typing import NamedTuple


class Reached(NamedTuple):
    """When the signals reached the threshold, whose signal did, and when the last of SMs that are not quite equal gives
    its own."""

    time: float
    group: int
    last: float


@dataclass
class Cell:
    """Signals of one counter instance, (time, amount, group, workers), and who waits for it to reach what."""

    posted: list[tuple[float, int, int, int]] = field(default_factory=list)
    total: int = 0
    waiters: list[tuple[int, int]] = field(default_factory=list)
    results: dict[tuple[int, int], Reached] = field(default_factory=dict)

    def post(self, time: float, amount: int, group: int, workers: int) -> list[int]:
        """Each of the group's workers adds `amount`: the groups whose threshold is reached; they wait no more."""
        self.posted.append((time, amount * workers, group, workers))
        self.total += amount * workers
        if not self.waiters:
            return []
        ready = [waiter for waiter, threshold in self.waiters if threshold <= self.total]
        if ready:
            self.waiters = [w for w in self.waiters if w[1] > self.total]
        return ready

    def reached(self, threshold: int, spread: float) -> Reached:
        """`total` has reached the threshold. One of 0 or less is reached before anybody signals."""
        key = len(self.posted), threshold
        result = self.results.get(key)
        if result is None:
            result = self.results[key] = self._counted(threshold, spread)
        return result

    def _counted(self, threshold: int, spread: float) -> Reached:
        if threshold <= 0:
            return Reached(0.0, -1, 0.0)
        total, arrivals = 0, list[tuple[float, int]]()
        for time, amount, group, workers in sorted(self.posted):
            total += amount
            arrivals.append((time, workers))
            if total >= threshold:
                return Reached(time, group, latest(arrivals, spread))
        raise ValueError(threshold)


def latest(arrivals: Sequence[tuple[float, int]], spread: float) -> float:
    """When the last SM gives its signal, where (time, SMs) stand in the order of times. The last of n that are due at
    once is late by sqrt(2 ln n) of the spread. Those that are due much earlier have no part in it."""
    late, among = 0.0, 0
    for time, count in reversed(arrivals):
        among += count
        late = max(late, time + spread * sqrt(2 * log(among)))
    return late
