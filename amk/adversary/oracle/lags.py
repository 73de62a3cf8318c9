"""How far a counter can be from a threshold that is compared with it, by the definition.

A wait computes (int32)(value - threshold) >= 0. The most that a counter can reach while a wait is pending is what a run
without the waiting segment reaches; the least that is there when it begins to look is what those producers give
without which the segment before it does not finish.
"""

from __future__ import annotations

from amk.adversary.oracle.flatten import Spelled
from amk.adversary.oracle.order import System, execute

HALF_WORD = 2**31


def wrong_comparison(system: System) -> str | None:
    """The first wait for which the comparison can give another answer than `>=`."""
    cells = list(system.spelled.init)
    total = system.start.copy()
    for given in system.signals:
        for cell, amount in given:
            total[cell] += amount
    for segment, waits in enumerate(system.waits):
        for cell, threshold in waits:
            if total[cell] - threshold < HALF_WORD and threshold - system.start[cell] <= HALF_WORD:
                continue
            if _most(system, segment, cell) - threshold >= HALF_WORD:
                return f"{cells[cell]} runs ahead of a pending wait of segment {segment} by half of its range"
            if threshold - _least(system, segment, cell) > HALF_WORD:
                return f"segment {segment} finds {cells[cell]} so far behind that it seems to be ahead"
    return None


def _most(system: System, segment: int, cell: int) -> int:
    return _value(system, cell, execute(system, segment))


def _value(system: System, cell: int, done: list[int]) -> int:
    given = (amount for s in done for c, amount in system.signals[s] if c == cell)
    return int(system.start[cell]) + sum(given)


def _least(system: System, segment: int, cell: int) -> int:
    """What is there whenever the segment before this one has finished."""
    before = _before(system.spelled, segment)
    value = int(system.start[cell])
    for producer, given in enumerate(system.signals):
        amount = sum(amount for c, amount in given if c == cell)
        if amount and before is not None and before not in execute(system, producer):
            value += amount
    return value


def _before(spelled: Spelled, segment: int) -> int | None:
    first = any(span.start == segment for span in spelled.agents)
    return None if first else segment - 1
