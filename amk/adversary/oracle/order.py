"""Must-happen-before by its definition: a precedes b iff withholding a keeps b from ever starting.

One column per withheld segment: can[b, a] = b starts although a never runs. It is the least solution of
    can[b] = can[p] without p  and, for every wait (c, t) of b,  init(c) + sum of amounts of can-run producers >= t
with p the segment before b in its agent, found by repeating until nothing is added. Counters only grow, so what can
start stays able to.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from amk.adversary.oracle.flatten import Cell, Edges, Spelled
from amk.schedule_ir.expr import IntArray

Needs = dict[int, list[int]]
"""Segment -> segments that must have run because it re-reads tagged words until theirs are there."""


@dataclass(frozen=True, eq=False)
class System:
    """The edges of one strength: per segment (cell number, threshold) and (cell number, amount); needs of words."""

    spelled: Spelled
    waits: list[list[tuple[int, int]]]
    signals: list[list[tuple[int, int]]]
    start: IntArray
    needs: Needs


def system_of(spelled: Spelled, edges: Edges, needs: Needs) -> System:
    """Weak waits hold nobody unless `block` is asked; weak signals then count from the start."""
    number: dict[Cell, int] = {cell: i for i, cell in enumerate(spelled.init)}
    start = np.array(list(spelled.init.values()), np.int64)
    waits: list[list[tuple[int, int]]] = []
    signals: list[list[tuple[int, int]]] = []
    for segment in spelled.segments:
        waits.append([(number[c], t) for c, t, strong in segment.waits if strong or edges == "block"])
        kept = []
        for cell, amount, strong in segment.signals:
            if strong or edges == "block":
                kept.append((number[cell], amount))
            else:
                start[number[cell]] += amount
        signals.append(kept)
    return System(spelled, waits, signals, start, {} if edges == "fence" else needs)


def execute(system: System) -> list[int]:
    """Segments in an order in which they can run; shorter than all of them iff some never can."""
    value = system.start.copy()
    at = [r.start for r in system.spelled.agents]
    done = np.zeros(len(system.spelled.segments), bool)
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


def _ready(system: System, segment: int, value: IntArray, done: np.ndarray) -> bool:
    if any(value[cell] < threshold for cell, threshold in system.waits[segment]):
        return False
    needed = system.needs.get(segment)
    return not needed or bool(done[needed].all())


class Withholding:
    """Rows of `can` as integers whose bit a is column a. fin: where a segment runs to its end, so its own bit is off.

    A wait is first judged by the shortest prefix of its producers that suffices in the given execution. If every one of
    them is needed, all must finish; what the others could add is counted column by column, where they add anything.
    """

    def __init__(self, system: System, order: list[int]) -> None:
        self.system, self.order = system, order
        self.total = len(system.spelled.segments)
        self.full = (1 << self.total) - 1
        self.can = [0] * self.total
        self.fin = [0] * self.total
        self.first = {span.start for span in system.spelled.agents}
        self.producers: list[list[tuple[int, int]]] = [[] for _ in system.start]
        for segment in order:
            for cell, amount in system.signals[segment]:
                self.producers[cell].append((amount, segment))

    def repeat(self) -> None:
        """Passes over the execution until nothing is added."""
        changed = True
        while changed:
            changed = False
            self._begin()
            for segment in self.order:
                row = self._row(segment)
                if row != self.can[segment]:
                    self.can[segment], self.fin[segment] = row, row & ~(1 << segment)
                    changed = True
                for cell, amount in self.system.signals[segment]:
                    self._count(cell, amount, self.fin[segment])

    def _begin(self) -> None:
        """Per cell: sums, least amounts and common columns of prefixes; columns that any producer from k on has."""
        self.sums: list[list[int]] = [[] for _ in self.producers]
        self.least: list[list[int]] = [[] for _ in self.producers]
        self.common: list[list[int]] = [[] for _ in self.producers]
        self.later: list[list[int]] = []
        for entries in self.producers:
            reach = [0]
            for _, segment in reversed(entries):
                reach.append(reach[-1] | self.fin[segment])
            self.later.append(reach[::-1])

    def _count(self, cell: int, amount: int, fin: int) -> None:
        sums, least, common = self.sums[cell], self.least[cell], self.common[cell]
        sums.append(amount + (sums[-1] if sums else 0))
        least.append(min(amount, least[-1]) if least else amount)
        common.append(fin & (common[-1] if common else self.full))

    def _row(self, segment: int) -> int:
        row = self.full if segment in self.first else self.fin[segment - 1]
        for cell, threshold in self.system.waits[segment]:
            row &= self._met(cell, threshold - int(self.system.start[cell]), row)
        for needed in self.system.needs.get(segment, ()):
            row &= self.fin[needed]
        return row

    def _met(self, cell: int, need: int, row: int) -> int:
        """Columns of `row` in which the cell gets `need` increments."""
        if need <= 0:
            return row
        k = bisect_left(self.sums[cell], need)
        all_of = self.common[cell][k]
        if self.sums[cell][k] - self.least[cell][k] < need and not self.later[cell][k + 1] & row & ~all_of:
            return all_of
        return self._counted(self.producers[cell], need)

    def _counted(self, entries: list[tuple[int, int]], need: int) -> int:
        size = -(-self.total // 8)
        value = np.zeros(size * 8, np.int64)
        for amount, segment in entries:
            packed = np.frombuffer(self.fin[segment].to_bytes(size, "little"), np.uint8)
            value += amount * np.unpackbits(packed, bitorder="little").astype(np.int64)
        return int.from_bytes(np.packbits(value >= need, bitorder="little").tobytes(), "little") & self.full

    def matrix(self) -> np.ndarray:
        """can [segments, segments]."""
        size = -(-self.total // 8)
        packed = np.frombuffer(b"".join(row.to_bytes(size, "little") for row in self.can), np.uint8)
        bits = np.unpackbits(packed.reshape(self.total, size), axis=1, bitorder="little")
        return bits[:, : self.total].astype(bool)


def withheld(system: System, order: list[int]) -> np.ndarray:
    """can [segments, segments]; `order` is any complete execution and only decides how soon the repetition ends."""
    work = Withholding(system, order)
    work.repeat()
    return work.matrix()
