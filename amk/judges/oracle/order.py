"""Must-happen-before by its definition: a precedes b iff withholding a, which may start and not end, keeps b from ever
starting.

can[b, a] = b starts although a never ends is the least solution of
    can[b] = end[p]            and, for every wait (c, t) of b,  init(c) + sum of amounts of producers that end >= t
    end[b] = can[b] without b  and, for every segment s that writes words which b reads,  can[s]
with p the segment before b in its agent, found by repeating until nothing is added. Lanes store and find words one by
one: a word says that its segment has started, to what follows the segment that reads it, and nothing about what else
these two do. Counters only grow, so what can start stays able to. Columns, one per segment left out, are bits of
integers, some thousands at once: those that follow each other in one complete execution. Whatever runs before the first
of them runs without them too, and once no agent gets on in any column, nothing later does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from amk.judges.oracle.flatten import Cell, Edges, Listed, Numbered, Spelled
from amk.schedule_ir.expr import IntArray

TOGETHER = 4_096
"""Columns that are computed at once."""
Needs = dict[int, tuple[int, ...]]
"""Segment -> segments whose tagged words it re-reads until they are there; equal ones are one object."""


@dataclass(frozen=True, eq=False)
class System:
    """The edges of one strength: per segment (cell number, threshold) and (cell number, amount); needs of words."""

    spelled: Spelled
    waits: list[list[tuple[int, int]]]
    signals: list[list[tuple[int, int]]]
    start: list[int]
    needs: Needs


def system_of(spelled: Spelled, edges: Edges, needs: Needs) -> System:
    """Weak waits hold nobody unless `block` is asked; weak signals then count from the start."""
    every = edges == "block" or not spelled.weak
    if every not in spelled.listed:
        spelled.listed[every] = _listed(spelled, every)
    waits, signals, start = spelled.listed[every]
    return System(spelled, waits, signals, start, {} if edges == "fence" else needs)


def _listed(spelled: Spelled, every: bool) -> Listed:
    number: dict[Cell, int] = {cell: i for i, cell in enumerate(spelled.init)}
    start = list(spelled.init.values())
    waits: Numbered = []
    signals: Numbered = []
    for segment in spelled.segments:
        waits.append([(number[c], t) for c, t, strong in segment.waits if strong or every])
        kept = []
        for cell, amount, strong in segment.signals:
            if strong or every:
                kept.append((number[cell], amount))
            else:
                start[number[cell]] += amount
        signals.append(kept)
    return waits, signals, start


def execute(system: System) -> list[int]:
    """Segments in an order in which they can run, each behind what it needs; fewer than all iff some never can."""
    value = system.start.copy()
    at = [r.start for r in system.spelled.agents]
    done = [False] * len(system.spelled.segments)
    order: list[int] = []
    moved = True
    while moved:
        moved = False
        for agent, span in enumerate(system.spelled.agents):
            while at[agent] < span.stop and _ready(system, at[agent], value, done):
                segment = at[agent]
                for cell, amount in system.signals[segment]:
                    value[cell] += amount
                done[segment] = True
                order.append(segment)
                at[agent] += 1
                moved = True
    return order


def _ready(system: System, segment: int, value: list[int], is_done: list[bool]) -> bool:
    for cell, threshold in system.waits[segment]:
        if value[cell] < threshold:
            return False
    needed = system.needs.get(segment)
    return not needed or all(is_done[n] for n in needed)


@dataclass(frozen=True, eq=False)
class Threshold:
    """A wait for `need` increments of a cell. enough: so many of its producers, as they come in the execution, suffice;
    all_of: then each of them is needed, unless one that comes later takes its part."""

    cell: int
    need: int
    enough: int
    all_of: bool


class Order:
    """What is before what. order: any complete execution; what comes later there is before nothing that comes earlier,
    and it decides how soon the repetition ends."""

    def __init__(self, system: System, order: list[int]) -> None:
        self.system, self.order = system, order
        self.place = [0] * len(order)
        for i, segment in enumerate(order):
            self.place[segment] = i
        self.first = {span.start for span in system.spelled.agents}
        self.last = {span.stop - 1 for span in system.spelled.agents if span}
        self.producers: list[list[int]] = [[] for _ in system.start]
        self.amounts: list[list[int]] = [[] for _ in system.start]
        for segment in order:
            for cell, amount in system.signals[segment]:
                self.producers[cell].append(segment)
                self.amounts[cell].append(amount)
        self._thresholds()
        self.known: tuple[list[int], list[tuple[int, int]]] | None = None
        """The last part, for another position at which no other segments are asked for."""

    def _thresholds(self) -> None:
        """Of each segment's waits, those that are not met from the start; equal ones are one object."""
        sums = [np.cumsum(amounts).tolist() for amounts in self.amounts]
        known: dict[tuple[int, int], Threshold] = {}
        self.waits: list[list[Threshold]] = []
        for waits in self.system.waits:
            mine = []
            for cell, threshold in waits:
                need = threshold - self.system.start[cell]
                if need > 0:
                    if (cell, need) not in known:
                        enough = bisect_left(sums[cell], need) + 1
                        least = min(self.amounts[cell][:enough])
                        known[cell, need] = Threshold(cell, need, enough, sums[cell][enough - 1] - least < need)
                    mine.append(known[cell, need])
            self.waits.append(mine)

    def started(self, columns: IntArray) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
        """In parts, segments left out, these and perhaps more, and all (segment, bits) where the segment starts without
        some of them although they come before it in the execution: bit i is of the i-th."""
        wanted = columns.tolist()
        if self.known is not None and set(wanted) <= set(self.known[0]):
            yield self.known
            return
        along = sorted(wanted, key=self.place.__getitem__)
        for begin in range(0, len(along), TOGETHER):
            part = along[begin : begin + TOGETHER]
            self.known = part, list(_Withholding(self, part).unordered())
            yield self.known


class _Withholding:
    """Rows of `can` for some columns, in order of the execution. began: these rows. fin: where a segment runs to its
    end, so its own bit is off."""

    def __init__(self, order: Order, columns: list[int]) -> None:
        self.order, self.columns = order, columns
        self.full = (1 << len(columns)) - 1
        self.low = order.place[columns[0]]
        self.own = {segment: 1 << i for i, segment in enumerate(columns)}
        self.fin, self.began = [0] * len(order.order), [0] * len(order.order)
        for segment in order.order[: self.low]:
            self.fin[segment] = self.began[segment] = self.full
        spans = order.system.spelled.agents
        self.agents = sum(len(span) > 0 and order.place[span.stop - 1] >= self.low for span in spans)
        self.later: dict[int, tuple[list[int], list[int]]] = {}
        self._repeat()

    def unordered(self) -> Iterator[tuple[int, int]]:
        """Segments that start in columns of segments before them."""
        places = [self.order.place[column] for column in self.columns]
        for segment, row in self.reached:
            earlier = row & (1 << bisect_left(places, self.order.place[segment])) - 1
            if earlier:
                yield segment, earlier

    def _repeat(self) -> None:
        """Passes over the execution until nothing is added, or can be: no wait that was refused in a column gets more
        there from producers that come later."""
        before = None
        while True:
            self._pass()
            if self.reached == before:
                return
            before, self.later = self.reached, self._gains()
            if not any(bits & self._coming(t) for t, bits in self.refused.items()):
                return

    def _pass(self) -> None:
        """`can` in order, given what later segments were found to do: `reached` are the rows that are not empty."""
        order, fin, full = self.order, self.fin, self.full
        self.reached: list[tuple[int, int]] = []
        self.refused: defaultdict[Threshold, int] = defaultdict(int)
        self.prefix: dict[Threshold, int] = {}
        self.upto: dict[int, tuple[int, int]] = {}
        self.written: dict[int, int] = {}
        self.counts: dict[Threshold, int] = {}
        alive = self.agents
        for segment in order.order[self.low :]:
            before = full if segment in order.first else fin[segment - 1]
            if not before:
                continue
            self.began[segment] = row = self._row(segment, before)
            needs = self.order.system.needs.get(segment)
            found = row & self._begun(needs) if needs else row
            fin[segment] = mine = found & ~self.own.get(segment, 0)
            if row:
                self.reached.append((segment, row))
            if not mine or segment in order.last:
                alive -= 1
                if not alive:
                    return

    def _row(self, segment: int, row: int) -> int:
        for threshold in self.order.waits[segment]:
            met = self._all_of(threshold)
            missing = row & ~met
            if missing:
                if not threshold.all_of or self._coming(threshold) & missing:
                    met = self._counted(threshold)
                self.refused[threshold] |= row & ~met
                row &= met
        return row

    def _all_of(self, threshold: Threshold) -> int:
        """Columns in which all of the producers that come first finish; this pass knows them all."""
        if threshold not in self.prefix:
            producers = self.order.producers[threshold.cell]
            upto, row = self.upto.get(threshold.cell, (0, self.full))
            if upto > threshold.enough:
                upto, row = 0, self.full
            for i in range(upto, threshold.enough):
                row &= self.fin[producers[i]]
            self.upto[threshold.cell] = threshold.enough, row
            self.prefix[threshold] = row
        return self.prefix[threshold]

    def _begun(self, needs: tuple[int, ...]) -> int:
        """Columns in which all of these start; they come before whoever needs them."""
        key = id(needs)
        if key not in self.written:
            row = self.full
            for segment in needs:
                row &= self.began[segment]
            self.written[key] = row
        return self.written[key]

    def _gains(self) -> dict[int, tuple[list[int], list[int]]]:
        """Per cell that a wait was refused for: numbers of producers that finish in some column, and the columns in
        which that one or a later one does."""
        places, end = self.order.place, self.order.place[self.reached[-1][0]]
        least: dict[int, int] = {}
        for threshold in self.refused:
            least[threshold.cell] = min(threshold.enough, least.get(threshold.cell, threshold.enough))
        found = {}
        for cell, enough in least.items():
            producers, numbers, rows, row = self.order.producers[cell], [], [], 0
            for i in range(bisect_right(producers, end, key=places.__getitem__) - 1, enough - 1, -1):
                if fin := self.fin[producers[i]]:
                    row |= fin
                    numbers.append(i)
                    rows.append(row)
            found[cell] = numbers[::-1], rows[::-1]
        return found

    def _coming(self, threshold: Threshold) -> int:
        """Columns in which, by the last pass, a producer finishes that comes after those that were enough."""
        if threshold.cell not in self.later:
            return 0
        numbers, rows = self.later[threshold.cell]
        at = bisect_left(numbers, threshold.enough)
        return rows[at] if at < len(rows) else 0

    def _counted(self, threshold: Threshold) -> int:
        """Columns in which the producers' amounts suffice."""
        if threshold not in self.counts:
            size = -(-len(self.columns) // 8)
            value = np.zeros(size * 8, np.int64)
            cell = threshold.cell
            for segment, amount in zip(self.order.producers[cell], self.order.amounts[cell], strict=True):
                if fin := self.fin[segment]:
                    packed = np.frombuffer(fin.to_bytes(size, "little"), np.uint8)
                    value += amount * np.unpackbits(packed, bitorder="little").astype(np.int64)
            bits = np.packbits(value >= threshold.need, bitorder="little").tobytes()
            self.counts[threshold] = int.from_bytes(bits, "little") & self.full
        return self.counts[threshold]
