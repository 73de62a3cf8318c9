"""Byte footprints of steps, evaluated once per distinct environment.

`accesses` is a pure function of what it reads from its environment (loop variables, tables, worker, position). The
probe records those reads; a later call whose environment agrees on all of them has the same result, so it is looked up.
That makes 132 nearly identical workers cost little more than one, and a schedule cost little that differs from an
earlier one in a few steps: evaluations are kept under the op's text and the geometry that it may read.

Rows are (buffer, kind, lo, hi, value, delta): global buffers are numbered as in the schedule, shared memory is buffer
-1 and addressed by absolute byte, so that overlapping shared buffers are seen to overlap. value packs (family, index);
`with_token` adds the token. delta = logical offset - byte address.

Cache rows keep one value for all tokens: what a token appends is what later tokens read. Reads of `constant` buffers
are dropped, because nothing may write them (checked in `memory_model`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from amk.schedule_ir.expr import IntArray
from amk.schedule_ir.ops import Access, Geometry, Op
from amk.schedule_ir.schedule import Schedule
from amk.validator.aliases import Clash, aliased, clash_of
from amk.validator.contents import code
from amk.validator.crews import Asked, Crewed, crewed
from amk.validator.probe import Probe
from amk.validator.slopes import Slope, extend
from amk.validator.system import DONT_CARE, I64, READ, WRITE
from amk.validator.trace import Item

SHARED: Final = -1
COLUMNS: Final = 6
ROOM: Final = 128 << 20
"""Bytes of rows that one `Evaluations` keeps."""

Row = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, eq=False)
class Footprint:
    """Rows [n, 6] of one evaluation, coalesced. beyond: the first access outside its buffer; constants: those written.
    clash: two accesses of a byte by way of two buffers, one a write. names: what was read from the environment."""

    rows: I64
    beyond: Access | None
    clash: Clash | None
    constants: frozenset[str]
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Change:
    """What some workers' rows change by from one layer to the next, None if that is no slope; the footprints seen."""

    slope: Slope | None
    seen: tuple[tuple[int, Footprint], ...]
    names: tuple[str, ...]


Known = dict[tuple[str, ...], dict[tuple[int, ...], Footprint]]
"""Evaluations of one (op, agent): by the names that were read, then by their values."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Footprints of one step on one agent of consecutive workers: rows [n, 6], how many each worker has.

    beyond: (worker, access) of the first access outside its buffer. names: the tables that were read.
    """

    rows: I64
    counts: tuple[int, ...]
    beyond: tuple[int, Access] | None
    clash: Clash | None
    constants: frozenset[str]
    positional: bool
    names: tuple[str, ...]


class Evaluations:
    """Evaluators of any number of schedules; least recently used ones are forgotten beyond `room` bytes of rows."""

    def __init__(self, room: int = ROOM) -> None:
        self.room = room
        self.evaluators: OrderedDict[tuple[object, ...], Evaluator] = OrderedDict()

    def trim(self) -> None:
        kept = sum(one.kept for one in self.evaluators.values())
        while kept > self.room:
            kept -= self.evaluators.popitem(last=False)[1].kept

    def evaluator(
        self, key: tuple[object, ...], op: Op, geometry: Geometry, number: dict[str, int], agent: int
    ) -> Evaluator:
        """key: everything that op, geometry, number and agent consist of."""
        found = self.evaluators.get(key)
        if found is None:
            found = self.evaluators[key] = Evaluator(op, geometry, number, agent)
        self.evaluators.move_to_end(key)
        return found


class Evaluator:
    """Footprints of one op on one agent of its role, for any worker, position and values of its loop variables.

    number: that of each buffer of the geometry in the schedule.
    """

    def __init__(self, op: Op, geometry: Geometry, number: dict[str, int], agent: int) -> None:
        self.op, self.geometry, self.agent = op, geometry, agent
        self.shared = {name: b.offset or 0 for name, b in geometry.buffers.items() if b.space == "shared"}
        self.constant = {name for name, b in geometry.buffers.items() if b.role == "constant"}
        self.aliased = aliased(geometry.buffers)
        self.number = number
        self.known: Known = {}
        self.slots: dict[tuple[object, ...], list[tuple[tuple[bytes, ...], Rows]]] = {}
        self.changes: dict[tuple[object, ...], list[tuple[tuple[bytes, ...], Change]]] = {}
        self.crews: dict[tuple[object, ...], list[tuple[tuple[bytes, ...], Crewed]]] = {}
        self.kept = 0

    def change(self, loops: dict[str, int], workers: tuple[int, ...], pos: Sequence[int], tables: Tables) -> Change:
        """Between this layer and the next; looked up as in `rows`."""
        key = (workers, tuple(loops.values()), tuple(pos))
        made = self.changes.setdefault(key, [])
        for columns, change in made:
            if columns == tables.columns(change.names):
                return change
        change = self._changed(loops, workers, pos, tables)
        made.append((tables.columns(change.names), change))
        return change

    def _changed(self, loops: dict[str, int], workers: tuple[int, ...], pos: Sequence[int], tables: Tables) -> Change:
        slope: Slope | None = {}
        later, seen = loops | {"l": loops["l"] + 1}, list[tuple[int, Footprint]]()
        for worker, place in zip(workers, pos, strict=True):
            now, then = (self.one(each, worker, place, tables) for each in (loops, later))
            seen += [(worker, now), (worker, then)]
            if slope is not None and not (now.rows.shape == then.rows.shape and extend(slope, now.rows, then.rows)):
                slope = None
        read = {name for _, footprint in seen for name in footprint.names}
        return Change(slope, tuple(seen), tuple(sorted(read & tables.lists.keys())))

    def rows(self, loops: dict[str, int], workers: range, pos: Sequence[int], tables: Tables) -> Rows:
        """All workers' footprints; looked up if every table that was read for these has the same column."""
        key = (workers.start, workers.stop, tuple(loops.values()), tuple(pos))
        made = self.slots.setdefault(key, [])
        for columns, rows in made:
            if columns == tables.columns(rows.names):
                return rows
        rows = self._joined(self._each(loops, workers, pos, tables), workers, tables)
        made.append((tables.columns(rows.names), rows))
        self.kept += rows.rows.nbytes
        return rows

    def one(self, loops: dict[str, int], worker: int, pos: int, tables: Tables) -> Footprint:
        return self._each(loops, range(worker, worker + 1), [pos], tables)[0]

    def _each(self, loops: dict[str, int], workers: range, pos: Sequence[int], tables: Tables) -> list[Footprint]:
        known, keys = self.known, dict[tuple[str, ...], list[tuple[int, ...]]]()
        if () in known:
            return [known[()][()]] * len(workers)
        found: list[Footprint] = []
        for i, worker in enumerate(workers):
            # looked up anew for every worker: what one of them evaluates mostly serves those behind it
            for names in known:
                if names not in keys:
                    columns = [_column(n, loops, workers, pos, tables) for n in names]
                    keys[names] = list(zip(*columns, strict=True)) if columns else [()] * len(workers)
                if (footprint := known[names].get(keys[names][i])) is not None:
                    break
            else:
                footprint = self._fresh(loops, worker, pos[i], tables)
            found.append(footprint)
        return found

    def _fresh(self, loops: dict[str, int], worker: int, pos: int, tables: Tables) -> Footprint:
        """The evaluation, kept under the values of the names that it read."""
        env = Probe(loops, worker, self.agent, pos, tables.arrays)
        accesses = self.op.accesses(env, self.geometry)
        names = tuple(sorted(env.log))
        by_values = self.known.setdefault(names, {})
        key = tuple(env.log[n] for n in names)
        if key not in by_values:
            rows = np.array(list(self._coalesced(accesses)), dtype=np.int64).reshape(-1, COLUMNS)
            rows.setflags(write=False)
            beyond = next((a for a in accesses if a.lo < 0 or a.hi > self.geometry.buffers[a.buffer].bytes), None)
            constants = frozenset(a.buffer for a in accesses if a.kind == "write" and a.buffer in self.constant)
            by_values[key] = Footprint(rows, beyond, clash_of(accesses, self.aliased), constants, names)
            self.kept += rows.nbytes
        return by_values[key]

    def _joined(self, each: list[Footprint], workers: range, tables: Tables) -> Rows:
        rows = np.concatenate([f.rows for f in each]) if each else np.zeros((0, COLUMNS), np.int64)
        rows.setflags(write=False)
        beyond = next(((w, f.beyond) for w, f in zip(workers, each, strict=True) if f.beyond is not None), None)
        clash = next((f.clash for f in each if f.clash is not None), None)
        distinct = set(each)
        read = {name for f in distinct for name in f.names}
        constants = frozenset(c for f in distinct for c in f.constants)
        counts = tuple(len(f.rows) for f in each)
        return Rows(rows, counts, beyond, clash, constants, "pos" in read, tuple(sorted(read & tables.lists.keys())))

    def _row(self, access: Access) -> Row:
        shared = access.buffer in self.shared
        base = self.shared[access.buffer] if shared else 0
        value = DONT_CARE
        if access.value is not None:
            value = code(*access.value)
        kind = READ if access.kind == "read" else WRITE
        lo, hi = base + access.lo, base + access.hi
        return (SHARED if shared else self.number[access.buffer], kind, lo, hi, value, access.origin - lo)

    def _coalesced(self, accesses: list[Access]) -> Iterator[Row]:
        """Rows with touching neighbours of the same content merged."""
        last: Row | None = None
        for access in accesses:
            if access.kind == "read" and access.buffer in self.constant:
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


class Tables:
    """The columns of a schedule's tables: as lists, as arrays, and as bytes to compare them by."""

    def __init__(self, schedule: Schedule) -> None:
        self.arrays: dict[str, IntArray] = {n: np.array(c, dtype=np.int64) for n, c in schedule.tables.items()}
        for column in self.arrays.values():
            column.setflags(write=False)
        self.lists = {name: list(column) for name, column in schedule.tables.items()}
        self._bytes: dict[str, bytes] = {}

    def columns(self, names: tuple[str, ...]) -> tuple[bytes, ...]:
        for name in names:
            if name not in self._bytes:
                self._bytes[name] = self.arrays[name].tobytes() if name in self.arrays else b"absent"
        return tuple(self._bytes[name] for name in names)


class _Parts:
    """What an op can see of a schedule: the buffers and streams that it names, without where a ring ends."""

    def __init__(self, schedule: Schedule) -> None:
        self.whole = schedule.geometry()
        self.streams = {n: s.model_copy(update={"slots": 1}) for n, s in self.whole.streams.items()}
        parts = (self.whole.buffers, self.streams)
        self.texts = {n: (i, part.model_dump_json()) for group in parts for i, (n, part) in enumerate(group.items())}
        whole = self.whole
        sizes = (whole.batch, whole.workers, whole.kv_block, whole.kv_splits, *whole.role_size.items())
        self.common = (self.whole.model.model_dump_json(), sizes)

    def of(self, op: Op) -> tuple[tuple[object, ...], Geometry]:
        """(all of it as text, the number of each buffer included; the geometry)."""
        fields = {value for _, value in op if isinstance(value, str)}
        buffers = {name: b for name, b in self.whole.buffers.items() if name in fields}
        streams = {name: s for name, s in self.streams.items() if name in fields}
        text = (type(op).__name__, op.model_dump_json(), *((n, self.texts[n]) for n in (*buffers, *streams)))
        return (text, self.common), replace(self.whole, buffers=buffers, streams=streams)


def _column(name: str, loops: dict[str, int], workers: range, pos: Sequence[int], tables: Tables) -> Sequence[int]:
    if name in loops:
        return [loops[name]] * len(workers)
    if name in ("worker", "pos"):
        return workers if name == "worker" else pos
    return tables.lists[name][workers.start : workers.stop]


class Footprints:
    """Footprints of one schedule, in the schedule's numbers of buffers and families."""

    def __init__(self, schedule: Schedule, evaluations: Evaluations | None = None) -> None:
        self.schedule = schedule
        self.number = {b.name: i for i, b in enumerate(schedule.buffers)}
        self.written_constants: set[str] = set()
        self.outside: dict[tuple[str | int, ...], str] = {}
        self.clashes: dict[tuple[str | int, ...], Clash] = {}
        self._evaluations = evaluations or Evaluations()
        self._evaluations.trim()
        self._tables = Tables(schedule)
        self.tables = self._tables.arrays
        self._parts = _Parts(schedule)
        self._evaluators: dict[tuple[int, int, int, tuple[str, ...]], Evaluator] = {}
        self._seen: dict[tuple[int, int], tuple[tuple[object, ...], Geometry]] = {}

    def of(self, item: Item, worker: int, agent: int, pos: int) -> I64:
        """[n, 6] what agent `agent` (index in the step's role) of `worker` touches in `item` at position `pos`."""
        found = self._evaluator(item, agent).one(item.loops, worker, pos, self._tables)
        if found.beyond is not None:
            self._note(item, worker, found.beyond)
        self._gather(item, found)
        return found.rows

    def of_workers(self, item: Item, agent: int, workers: range, pos: Sequence[int]) -> tuple[I64, tuple[int, ...]]:
        """`of` for consecutive workers, `pos` giving each one's position: their rows in turn, and how many each has."""
        found = self._rows(item, agent, workers, pos)
        if found.beyond is not None:
            self._note(item, *found.beyond)
        self._gather(item, found)
        return found.rows, found.counts

    def crew(self, item: Item, agents: int, asked: Asked) -> Crewed:
        """All agents of a step on consecutive workers."""
        found = crewed(lambda agent: self._evaluator(item, agent), agents, item.loops, asked, self._tables)
        if found.beyond is not None:
            self._note(item, *found.beyond)
        self._gather(item, found)
        return found

    def _rows(self, item: Item, agent: int, workers: range, pos: Sequence[int]) -> Rows:
        return self._evaluator(item, agent).rows(item.loops, workers, pos, self._tables)

    def _evaluator(self, item: Item, agent: int) -> Evaluator:
        key = item.site.number, int(item.site.path[1]), agent, tuple(item.loops)
        found = self._evaluators.get(key)
        if found is None:
            site = key[:2]
            if site not in self._seen:
                self._seen[site] = self._parts.of(item.step.op)
            text, geometry = self._seen[site]
            number = {name: self.number[name] for name in geometry.buffers}
            found = self._evaluations.evaluator((text, agent, key[3]), item.step.op, geometry, number, agent)
            self._evaluators[key] = found
        return found

    def _gather(self, item: Item, found: Footprint | Rows | Crewed) -> None:
        self.written_constants |= found.constants
        if found.clash is not None:
            self.clashes.setdefault((*item.site.path, "op"), found.clash)

    def _note(self, item: Item, worker: int, access: Access) -> None:
        """Remember an access outside its buffer, by step."""
        message = (
            f"{item.step.op.op} of worker {worker} touches bytes {access.lo:,}..{access.hi - 1:,} of "
            f"'{access.buffer}', which has {self.schedule.buffers[self.number[access.buffer]].bytes:,}"
        )
        self.outside.setdefault((*item.site.path, "op"), message)
