"""How far a counter can be from a threshold that is compared with it, by the definition.

A wait computes (int32)(value - threshold) >= 0. The most that a counter can reach while a wait is pending is what a run
reaches in which the waiting segment does not start; the least that is there when it begins to look is what those
producers give that have to end so that the segment before it does. A producer that does not end may have started, and
so have stored its words: as in `order`, whoever reads words ends if those who write them have started.
"""

from __future__ import annotations

from collections import defaultdict

from amk.judges.oracle.flatten import Spelled
from amk.judges.oracle.order import System

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
    """Runs of a system in which one segment does not end, each made once. known: by that segment and whether it starts,
    the segments that end."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.known: dict[tuple[int, bool], set[int]] = {}
        self.givers: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for segment, signals in enumerate(system.signals):
            for cell, amount in signals:
                self.givers[cell].append((segment, amount))

    def most(self, segment: int, cell: int) -> int:
        """What the counter can reach while this segment waits."""
        ended = self.ended(segment, starts=False)
        return int(self.system.start[cell]) + sum(amount for giver, amount in self.givers[cell] if giver in ended)

    def least(self, segment: int, cell: int) -> int:
        """What is there whenever the segment before this one has ended."""
        before = _before(self.system.spelled, segment)
        if before is None:
            return int(self.system.start[cell])
        amounts = (amount for giver, amount in self.givers[cell] if before not in self.ended(giver, starts=True))
        return int(self.system.start[cell]) + sum(amounts)

    def ended(self, without: int, starts: bool) -> set[int]:
        """What can end although this one does not."""
        if (without, starts) not in self.known:
            self.known[without, starts] = _ended(self.system, without, starts)
        return self.known[without, starts]


def _ended(system: System, without: int, starts: bool) -> set[int]:
    value, at = system.start.copy(), [span.start for span in system.spelled.agents]
    started, ended, moved = set[int](), set[int](), True
    while moved:
        moved = False
        for agent, span in enumerate(system.spelled.agents):
            while (segment := at[agent]) < span.stop:
                if segment not in started:
                    if any(value[cell] < threshold for cell, threshold in system.waits[segment]):
                        break
                    if segment == without and not starts:
                        break
                    started.add(segment)
                    moved = True
                if segment == without or not started.issuperset(system.needs.get(segment, ())):
                    break
                for cell, amount in system.signals[segment]:
                    value[cell] += amount
                ended.add(segment)
                at[agent], moved = segment + 1, True
    return ended


def _before(spelled: Spelled, segment: int) -> int | None:
    first = any(span.start == segment for span in spelled.agents)
    return None if first else segment - 1
