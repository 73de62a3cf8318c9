"""How far a counter can be from a threshold that is compared with it, by the definition.

A wait computes (int32)(value - threshold) >= 0. The most that a counter can reach while a wait is pending is what a run
without the waiting segment reaches; the least that is there when it begins to look is what those producers give
without which the segment before it does not finish.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from amk.judges.oracle.flatten import Spelled
from amk.judges.oracle.order import System, execute
from amk.schedule_ir.expr import IntArray

HALF_WORD = 2**31


def wrong_comparison(system: System) -> str | None:
    """The first wait for which the comparison can give another answer than `>=`."""
    cells = list(system.spelled.init)
    runs = _Runs(system)
    total = [start + sum(amount for _, amount in runs.givers[cell]) for cell, start in enumerate(system.start)]
    for segment, waits in enumerate(system.waits):
        for cell, threshold in waits:
            if total[cell] - threshold < HALF_WORD and threshold - system.start[cell] <= HALF_WORD:
                continue
            if runs.most(segment, cell) - threshold >= HALF_WORD:
                return f"{cells[cell]} runs ahead of a pending wait of segment {segment} by half of its range"
            if threshold - runs.least(segment, cell) > HALF_WORD:
                return f"segment {segment} finds {cells[cell]} so far behind that it seems to be ahead"
    return None


class _Runs:
    """Runs of a system without one segment, each made once; known: the segment at which each agent ends then."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.agent_of = system.spelled.agent_of
        self.first = np.array([span.start for span in system.spelled.agents], np.int64)
        self.known: dict[int, IntArray] = {}
        self.givers: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for segment, given in enumerate(system.signals):
            for cell, amount in given:
                self.givers[cell].append((segment, amount))

    def most(self, segment: int, cell: int) -> int:
        """What the counter can reach while this segment waits."""
        given = (amount for giver, amount in self.givers[cell] if self.runs(giver, without=segment))
        return int(self.system.start[cell]) + sum(given)

    def least(self, segment: int, cell: int) -> int:
        """What is there whenever the segment before this one has finished."""
        before = _before(self.system.spelled, segment)
        if before is None:
            return int(self.system.start[cell])
        given = (amount for giver, amount in self.givers[cell] if not self.runs(before, without=giver))
        return int(self.system.start[cell]) + sum(given)

    def runs(self, segment: int, without: int) -> bool:
        """Does it run although another one does not?"""
        if without not in self.known:
            ran = np.bincount(self.agent_of[execute(self.system, without)], minlength=len(self.first))
            self.known[without] = self.first + ran
        return bool(segment < self.known[without][self.agent_of[segment]])


def _before(spelled: Spelled, segment: int) -> int | None:
    first = any(span.start == segment for span in spelled.agents)
    return None if first else segment - 1
