"""Must-happen-before by its definition: a precedes b iff withholding a keeps b from ever starting.

One column per withheld segment that is asked for: can[b, a] = b starts although a never runs. It is the least solution
of
    can[b] = can[p] without p  and, for every wait (c, t) of b,  init(c) + sum of amounts of can-run producers >= t
with p the segment before b in its agent, found by repeating until nothing is added. Counters only grow, so what can
start stays able to.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from amk.adversary.oracle.flatten import Cell, Edges, Listed, Numbered, Spelled
from amk.schedule_ir.expr import IntArray

TOGETHER = 16_384
"""Columns that are computed at once."""
Needs = dict[int, tuple[int, ...]]
"""Segment -> segments that must have run because it re-reads tagged words until theirs are there; equal ones are one
object."""


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
    every = edges == "block"
    if every not in spelled.listed:
        spelled.listed[every] = _listed(spelled, every)
    waits, signals, start = spelled.listed[every]
    return System(spelled, waits, signals, start, {} if edges == "fence" else needs)


def _listed(spelled: Spelled, every: bool) -> Listed:
    number: dict[Cell, int] = {cell: i for i, cell in enumerate(spelled.init)}
    start = np.array(list(spelled.init.values()), np.int64)
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


def execute(system: System, withheld: int = -1) -> list[int]:
    """Segments in an order in which they can run; fewer than all iff some never can. `withheld` does not run."""
    value = system.start.copy()
    at = [r.start for r in system.spelled.agents]
    done = np.zeros(len(system.spelled.segments), bool)
    order: list[int] = []
    moved = True
    while moved:
        moved = False
        for agent, span in enumerate(system.spelled.agents):
            while at[agent] < span.stop and at[agent] != withheld and _ready(system, at[agent], value, done):
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
    return not needed or all(done[n] for n in needed)


class Withholding:
    """Rows of `can` as integers with one bit per column. fin: where a segment runs to its end, so its own bit is off.

    A wait is first judged by the shortest prefix of its producers that suffices in the given execution. If every one of
    them is needed, all must finish; what the others could add is counted column by column, where they add anything.
    """

    def __init__(self, system: System, order: list[int], columns: IntArray) -> None:
        self.system, self.order = system, order
        self.columns, self.total = columns, len(columns)
        self.full = (1 << self.total) - 1
        self.own = {segment: 1 << i for i, segment in enumerate(columns.tolist())}
        self.can = [0] * len(system.spelled.segments)
        self.fin = [0] * len(system.spelled.segments)
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
                    self.can[segment], self.fin[segment] = row, row & ~self.own.get(segment, 0)
                    changed = True
                for cell, amount in self.system.signals[segment]:
                    self._count(cell, amount, self.fin[segment])

    def _begin(self) -> None:
        """Per cell: sums, least amounts and common columns of prefixes; columns that any producer from k on has."""
        self.sums: list[list[int]] = [[] for _ in self.producers]
        self.least: list[list[int]] = [[] for _ in self.producers]
        self.common: list[list[int]] = [[] for _ in self.producers]
        self.later: list[list[int]] = []
        self.known: dict[int, dict[int, int]] = {}
        self.needed: dict[int, int] = {}
        for entries in self.producers:
            reach = [0]
            for _, segment in reversed(entries):
                reach.append(reach[-1] | self.fin[segment])
            self.later.append(reach[::-1])

    def _count(self, cell: int, amount: int, fin: int) -> None:
        self.known.pop(cell, None)
        sums, least, common = self.sums[cell], self.least[cell], self.common[cell]
        sums.append(amount + (sums[-1] if sums else 0))
        least.append(min(amount, least[-1]) if least else amount)
        common.append(fin & (common[-1] if common else self.full))

    def _row(self, segment: int) -> int:
        row = self.full if segment in self.first else self.fin[segment - 1]
        for cell, threshold in self.system.waits[segment]:
            row &= self._met(cell, threshold - int(self.system.start[cell]), row)
        needs = self.system.needs.get(segment)
        return row & self._written(needs) if needs else row

    def _written(self, needs: tuple[int, ...]) -> int:
        """Columns in which all of these finish; they come before whoever needs them, so this pass knows them all."""
        key = id(needs)
        if key not in self.needed:
            row = self.full
            for segment in needs:
                row &= self.fin[segment]
            self.needed[key] = row
        return self.needed[key]

    def _met(self, cell: int, need: int, row: int) -> int:
        """Columns of `row` in which the cell gets `need` increments."""
        if need <= 0:
            return row
        k = bisect_left(self.sums[cell], need)
        all_of = self.common[cell][k]
        if self.sums[cell][k] - self.least[cell][k] < need and not self.later[cell][k + 1] & row & ~all_of:
            return all_of
        known = self.known.setdefault(cell, {})
        if need not in known:
            known[need] = self._counted(self.producers[cell], need)
        return known[need]

    def _counted(self, entries: list[tuple[int, int]], need: int) -> int:
        size = -(-self.total // 8)
        value = np.zeros(size * 8, np.int64)
        for amount, segment in entries:
            packed = np.frombuffer(self.fin[segment].to_bytes(size, "little"), np.uint8)
            value += amount * np.unpackbits(packed, bitorder="little").astype(np.int64)
        return int.from_bytes(np.packbits(value >= need, bitorder="little").tobytes(), "little") & self.full

    def bits(self, segments: IntArray, columns: IntArray) -> np.ndarray:
        """can, elementwise."""
        size = -(-self.total // 8)
        rows, where = np.unique(segments, return_inverse=True)
        packed = b"".join(self.can[segment].to_bytes(size, "little") for segment in rows.tolist())
        table = np.frombuffer(packed, np.uint8).reshape(len(rows), size)
        found: np.ndarray = (table[where.reshape(-1), columns >> 3] >> (columns & 7)) & 1 == 1
        return found


class Order:
    """a before b: a is over before b starts, in every execution. `order` is any complete one: what comes later there is
    before nothing that comes earlier, and it decides how soon the repetition ends."""

    def __init__(self, system: System, order: list[int]) -> None:
        self.system, self.order = system, order
        self.place = np.empty(len(order), np.int64)
        self.place[order] = np.arange(len(order))
        self.known: Withholding | None = None

    def parts(self, a: IntArray, b: IntArray) -> Iterator[IntArray]:
        """Pairs by number in parts that withhold few segments: of each pair only the one that runs first matters."""
        if len(self.order) <= TOGETHER:
            yield np.arange(len(a))
            return
        _, rank = np.unique(np.where(self.place[a] < self.place[b], a, b), return_inverse=True)
        along = np.argsort(rank, kind="stable")
        yield from np.split(
            along, np.searchsorted(rank[along], np.arange(TOGETHER, int(rank.max(initial=0)), TOGETHER))
        )

    def before(self, a: IntArray, b: IntArray) -> np.ndarray:
        """Elementwise for segments of one part."""
        found = np.zeros(len(a), bool)
        at = np.flatnonzero(self.place[a] < self.place[b])
        if len(at):
            wanted = np.unique(a[at]) if len(self.order) > TOGETHER else np.arange(len(self.order))
            if self.known is None or not set(wanted.tolist()) <= self.known.own.keys():
                self.known = Withholding(self.system, self.order, wanted)
                self.known.repeat()
            found[at] = ~self.known.bits(b[at], np.searchsorted(self.known.columns, a[at]))
        return found
