"""The footprints of one op, evaluated once per distinct environment.

`accesses` is a pure function of what it reads from its environment (loop variables, tables, worker, position). The
probe records those reads; a later call whose environment agrees on all of them has the same result, so it is looked
up. Of all workers of a step it is run once for each group that it treats alike (`per_worker`).

An evaluation is not told where shared buffers lie: it counts bytes from the start of each, and its rows are moved to
where the buffer is afterwards. So a buffer that moves costs no evaluation, unless the op uses a byte by way of two.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakValueDictionary

import numpy as np

from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops import Access, Geometry, Op
from amk.validator.program.aliases import Clash, Meeting, clash_of, meet, united
from amk.validator.program.contents import code
from amk.validator.program.environment import Probe, Several
from amk.validator.program.evaluation import Change, Footprint, Rows
from amk.validator.program.per_worker import Differ, at, unfolded
from amk.validator.program.slopes import slope_of
from amk.validator.program.step_rows import Afloat, StepRows
from amk.validator.program.system import DONT_CARE, I64, READ, WRITE
from amk.validator.program.tables import ByColumns, Tables

SHARED: Final = -1
COLUMNS: Final = 6
ROOM: Final = 128 << 20
TURNS: Final = 16
"""Bytes of rows that one `Evaluations` keeps, and of how many schedules one counts them."""

Row = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What one run of an op found: rows, the first access outside its buffer, the constants that it writes."""

    rows: list[Row]
    beyond: Access | None
    constants: frozenset[str]


@dataclass(frozen=True, eq=False)
class Alike:
    """An evaluation of several workers in `per_worker`. workers [n]: which of them, ascending. names: what it read."""

    workers: I64
    found: Evaluation
    names: frozenset[str]

    def rows(self) -> I64:
        """[workers, n, 6]"""
        return unfolded(self.found.rows, len(self.workers))

    def beyond(self, workers: range) -> tuple[int, Access]:
        """The access outside its buffer, with the first of its workers."""
        access = self.found.beyond
        assert access is not None
        lo, hi, origin = (at(number, 0) for number in (access.lo, access.hi, access.origin))
        return workers[self.workers[0]], access._replace(lo=lo, hi=hi, origin=origin)


Known = dict[tuple[str, ...], dict[tuple[int, ...], Footprint]]
"""Evaluations of one (op, agent): by the names that were read, then by their values."""
One = Callable[[dict[str, int], int, int, Tables], Footprint]


class Evaluations:
    """Evaluators of any number of schedules; least recently used ones are forgotten beyond `room` bytes of rows."""

    def __init__(self, room: int = ROOM) -> None:
        self.room = room
        self.evaluators: OrderedDict[tuple[object, ...], Evaluator] = OrderedDict()
        self._turn = -1
        self._unplaced: WeakValueDictionary[tuple[object, ...], Unplaced] = WeakValueDictionary()

    def trim(self, room: int | None = None) -> None:
        """room: bytes that may stay; if not given, as many as ever, looked at now and then: counting takes long."""
        self._turn += 1
        if room is None and self._turn % TURNS:
            return
        kept = sum([one.held for one in self.evaluators.values()])
        while kept > (self.room if room is None else room):
            kept -= self.evaluators.popitem(last=False)[1].held

    def evaluator(
        self, key: tuple[object, ...], starts: tuple[int, ...], meeting: list[Meeting], make: Callable[[], Unplaced]
    ) -> Evaluator:
        """key: everything that what is made consists of. starts: where the op's shared buffers lie, hence meet."""
        found = self.evaluators.get((key, starts))
        if found is None:
            unplaced = self._unplaced.get(key) or make()
            self._unplaced[key] = unplaced
            found = self.evaluators[key, starts] = Evaluator(unplaced, starts, meeting)
        self.evaluators.move_to_end((key, starts))
        return found


class Evaluator:
    """Footprints of one op on one agent of its role, for any worker, position and values of its loop variables, where
    its shared buffers lie."""

    def __init__(self, unplaced: Unplaced, starts: tuple[int, ...], meeting: list[Meeting]) -> None:
        self.unplaced, self.meeting = unplaced, meeting
        # the start of buffer -1 - k at index -1 - k, that of all others at 0
        self.starts = np.array([0, *reversed(starts)], np.int64)
        self.starts.setflags(write=False)
        self.slots = ByColumns[Rows]()
        self.warp_groups = ByColumns[StepRows]()
        self.ones: dict[int, Footprint] = {}
        self.kept = 0

    @property
    def held(self) -> int:
        """Bytes of rows that it keeps or shares."""
        return self.kept + self.unplaced.kept

    def change(self, loops: dict[str, int], workers: tuple[int, ...], pos: Sequence[int], tables: Tables) -> Change:
        """Between this layer and the next."""
        found = self.unplaced.change(loops, workers, pos, tables)
        if found.anywhere and not self.meeting:
            return found
        return _changed(self.one, loops, workers, pos, tables)

    def rows(self, loops: dict[str, int], workers: range, pos: Sequence[int], tables: Tables) -> Rows:
        """All workers' footprints; looked up if every table that was read for these has the same column."""
        key = (workers.start, workers.stop, tuple(loops.values()))
        if (anywhere := self.slots.find(key, tables)) is not None:
            return anywhere
        found = self.slots.get((*key, tuple(pos)), tables, lambda: self._of_workers(loops, workers, pos, tables))
        return found if found.positional else self.slots.get(key, tables, lambda: found)

    def _of_workers(self, loops: dict[str, int], workers: range, pos: Sequence[int], tables: Tables) -> Rows:
        found = self.unplaced.rows(loops, workers, pos, tables)
        clash = self.unplaced.clash_of(self.meeting, found, loops, workers, pos, tables)
        rows = replace(found, rows=self._placed(found.rows), clash=clash)
        self.kept += rows.rows.nbytes
        return rows

    def one(self, loops: dict[str, int], worker: int, pos: int, tables: Tables) -> Footprint:
        found = self.unplaced.one(loops, worker, pos, tables)
        if id(found) not in self.ones:  # evaluations stay as long as this, so their ids are theirs
            clash = self.unplaced.clash(self.meeting, found.rows, loops, worker, pos, tables)
            self.ones[id(found)] = placed = replace(found, rows=self._placed(found.rows), clash=clash)
            self.kept += placed.rows.nbytes
        return self.ones[id(found)]

    def _placed(self, rows: I64) -> I64:
        """The rows with shared memory as one buffer that is addressed by absolute byte."""
        start = self.starts[np.minimum(rows[:, 0], 0)]
        placed = rows.copy()
        placed[:, 2] += start
        placed[:, 3] += start
        placed[:, 5] -= start
        np.maximum(rows[:, 0], SHARED, out=placed[:, 0])
        placed.setflags(write=False)
        return placed


class Unplaced:
    """What an `Evaluator` evaluates, with bytes of shared buffers counted from the start of each: buffer -1 - k
    is the k-th of the geometry. Clashes are not among it.

    number: that of each buffer of the geometry in the schedule. reads: loop variables that warp groups read.
    """

    def __init__(self, op: Op, geometry: Geometry, number: dict[str, int], agent: int) -> None:
        self.op, self.geometry, self.agent = op, geometry, agent
        shared = [name for name, b in geometry.buffers.items() if b.space == "shared"]
        self.number = number | {name: SHARED - k for k, name in enumerate(shared)}
        self.constant = {name for name, b in geometry.buffers.items() if b.role == "constant"}
        self.bytes = {name: b.bytes for name, b in geometry.buffers.items()}
        self.known: Known = {}
        self.slots = ByColumns[Rows]()
        self.warp_groups = ByColumns[Afloat]()
        self.reads: list[tuple[str, ...]] = []
        self.kept = 0

    def rows(self, loops: dict[str, int], workers: range, pos: Sequence[int], tables: Tables) -> Rows:
        """As `Evaluator.rows`."""
        key = (workers.start, workers.stop, tuple(loops.values()), tuple(pos))
        return self.slots.get(key, tables, lambda: self._of_workers(loops, workers, pos, tables))

    def _of_workers(self, loops: dict[str, int], workers: range, pos: Sequence[int], tables: Tables) -> Rows:
        rows = self._joined(self._alike(loops, workers, pos, tables), loops, workers, tables)
        self.kept += rows.rows.nbytes
        return rows

    def one(self, loops: dict[str, int], worker: int, pos: int, tables: Tables) -> Footprint:
        for names, by_values in self.known.items():
            found = by_values.get(tuple([tables.value(name, loops, worker, pos) for name in names]))
            if found is not None:
                return found
        return self._fresh(loops, worker, pos, tables)

    def change(self, loops: dict[str, int], workers: tuple[int, ...], pos: Sequence[int], tables: Tables) -> Change:
        """As `Evaluator.change`, with all shared buffers as one."""
        return _changed(self.one, loops, workers, pos, tables)

    def clash(
        self, meeting: list[Meeting], rows: I64, loops: dict[str, int], worker: int, pos: int, tables: Tables
    ) -> Clash | None:
        """Of the evaluation that these rows come from, if shared buffers meet like this."""
        if not self.may_clash(meeting, rows):
            return None
        return clash_of(self.op.accesses(Probe(loops, worker, self.agent, pos, tables.arrays), self.geometry), meeting)

    def clash_of(
        self, meeting: list[Meeting], found: Rows, loops: dict[str, int], workers: range, pos: Sequence[int],
        tables: Tables,
    ) -> Clash | None:  # fmt: skip
        """Of the first worker that has one; the rows of all together show whether any may."""
        if not self.may_clash(meeting, found.rows):
            return None
        end = 0
        for count, worker, p in zip(found.counts, workers, pos, strict=True):
            end += count
            clash = self.clash(meeting, found.rows[end - count : end], loops, worker, p, tables)
            if clash is not None:
                return clash
        return None

    def may_clash(self, meeting: list[Meeting], rows: I64) -> bool:
        """False only if no accesses behind the rows clash: rows have all bytes that those read and write, but the
        constants that an op is meant to read."""
        for one, two, gap in meeting:
            if not self.constant.isdisjoint((one, two)):
                return True
            a, b = (rows[rows[:, 0] == self.number[name], 1:4] for name in (one, two))
            written = a[a[:, 0] == WRITE, 1:], b[b[:, 0] == WRITE, 1:]
            if meet(written[0], united(b[:, 1:]) + gap) or meet(a[:, 1:], united(written[1]) + gap):
                return True
        return False

    def _fresh(self, loops: dict[str, int], worker: int, pos: int, tables: Tables) -> Footprint:
        """The evaluation, kept under the values of the names that it read."""
        env = Probe(loops, worker, self.agent, pos, tables.arrays)
        found = self._evaluated(env)
        rows = np.array(found.rows, dtype=np.int64).reshape(-1, COLUMNS)
        rows.setflags(write=False)
        names = tuple(sorted(env.log))
        footprint = Footprint(rows, found.beyond, None, found.constants, names)
        self.known.setdefault(names, {})[tuple(env.log[n] for n in names)] = footprint
        self.kept += rows.nbytes
        return footprint

    def _alike(self, loops: dict[str, int], workers: range, pos: Sequence[int], tables: Tables) -> list[Alike]:
        """Evaluations that together are those of all workers."""
        worker, position = np.arange(workers.start, workers.stop), np.array(pos, np.int64)
        found: list[Alike] = []
        left = [np.arange(len(workers))] if workers else []
        while left:
            those = left.pop()
            env = Several(loops, worker[those], self.agent, position[those], tables.arrays)
            try:
                found.append(Alike(those, self._evaluated(env), frozenset(env.log)))
            except Differ as differ:
                left += [those[differ.labels == label] for label in np.unique(differ.labels)]
        return found

    def _evaluated(self, env: Env) -> Evaluation:
        accesses = self.op.accesses(env, self.geometry)
        rows = list(self._coalesced(accesses))
        beyond = next((a for a in accesses if a.lo < 0 or a.hi > self.bytes[a.buffer]), None)
        return Evaluation(
            rows, beyond, frozenset(a.buffer for a in accesses if a.kind == "write" and a.buffer in self.constant)
        )

    def _joined(self, groups: list[Alike], loops: dict[str, int], workers: range, tables: Tables) -> Rows:
        counts = np.zeros(len(workers), np.int64)
        for group in groups:
            counts[group.workers] = len(group.found.rows)
        starts = np.cumsum(counts) - counts
        rows = np.zeros((int(counts.sum()), COLUMNS), np.int64)
        for group in groups:
            if group.found.rows:
                rows[starts[group.workers, None] + np.arange(len(group.found.rows))] = group.rows()
        rows.setflags(write=False)
        read = frozenset().union(*(group.names for group in groups))
        constants = frozenset[str]().union(*(group.found.constants for group in groups))
        beyond = min((group.beyond(workers) for group in groups if group.found.beyond is not None), default=None)
        names = tuple(sorted(read & tables.lists.keys()))
        return Rows(rows, tuple(counts.tolist()), beyond, None, constants, "pos" in read, names, read & loops.keys())

    def _row(self, access: Access) -> Row:
        value = DONT_CARE if access.value is None else code(access.value[0], int(access.value[1]))
        kind = READ if access.kind == "read" else WRITE
        return self.number[access.buffer], kind, access.lo, access.hi, value, access.origin - access.lo

    def _coalesced(self, accesses: list[Access]) -> Iterator[Row]:
        """Rows with touching neighbours of the same content merged."""
        last: Row | None = None
        for access in accesses:
            if access.kind == "read" and access.value is None and access.buffer in self.constant:
                continue
            row = self._row(access)
            if last and last[3] == row[2] and (last[0], last[1], last[4], last[5]) == (row[0], row[1], row[4], row[5]):
                last = (*last[:3], row[3], *last[4:])
                continue
            if last:
                yield last
            last = row
        if last:
            yield last


def _changed(one: One, loops: dict[str, int], workers: tuple[int, ...], pos: Sequence[int], tables: Tables) -> Change:
    layers = loops, loops | {"l": loops["l"] + 1}
    pairs = [[one(each, *at, tables) for each in layers] for at in zip(workers, pos, strict=True)]
    slope, anywhere = slope_of([(now.rows, then.rows) for now, then in pairs])
    seen = tuple((worker, footprint) for worker, pair in zip(workers, pairs, strict=True) for footprint in pair)
    read = {name for _, footprint in seen for name in footprint.names}
    return Change(slope, seen, tuple(sorted(read & tables.lists.keys())), anywhere)
