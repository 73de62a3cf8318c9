"""What every event may touch, over all positions, as columns ready for the race check.

The position moves with every token, but it decides only (1) which cache rows are touched, (2) which splits are active,
and waits and signals never depend on it. So one check of the *envelope* covers all positions:
  - accesses outside the cache grow with the position (more splits are active), so they are taken at the last position;
  - each worker's part of a cache is one unit per layer: appending writes the unit, attending reads it and expects the
    row of the current token. The unit is private to the worker: `position` proves that rows never cross workers and
    that the split that appends a row is the one that reads it. The cache ops are evaluated at a position that the
    worker's split owns, where they do all that they ever do.
Words that a step reads at some positions only give no order at the others, and candidates are not read for a token that
was given: `least` holds the reads of tagged words that always happen, in crews (group, node) of `moving`.
A race in the envelope may be impossible at every single position; it is then confirmed or refuted by the flat check.

Shared memory is checked for one worker of each class. Two workers are in one class if all their events have the same
shared-memory rows up to one displacement per value family (a consistent renaming of what the bytes hold).

Rows (event, buffer, kind, lo, hi, value, delta): global buffers keep their number, worker-private memory is numbered
behind them.

In global memory the rows of all agents of a step are joined and belong to its crew, unless two agents touch a common
byte and one writes, or the step reads tagged words: then only those reads belong to the crew, because a crew as a node
comes after the words of all its agents. Steps that wait or signal themselves are not joined either.

Inside a layer loop the rows of layer l are those of layer 0 plus l times a slope per (step, buffer, kind, family):
`accesses` depends on the layer only through value indices and row offsets. The slope is measured between layers 0 and 1
on every agent of the first and the last worker, and for whatever those do not touch (they may own no rows of a matrix)
on the first worker that does; a step without a common slope is evaluated layer by layer.

Cost: one evaluation per distinct environment of layer 0; the rest is array work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from amk.schedule_ir.ops import BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.rope_append import RopeAppendOp
from amk.schedule_ir.schedule import Schedule
from amk.validator.footprint import COLUMNS, SHARED, Footprints
from amk.validator.local_order import crew
from amk.validator.quotient import Group
from amk.validator.slopes import FAMILY_SHIFT, INDEX_BITS, TOKEN_BITS, Slope
from amk.validator.system import DONT_CARE, I64, READ
from amk.validator.trace import Item

NO_DATA: Final = (WaitOp, SignalOp, BarrierOp)
UNITS: Final = 3
"""Private memories of a worker: shared memory, its part of the key cache, its part of the value cache."""


@dataclass(frozen=True, eq=False)
class Slot:
    """One step on one agent; slots of one step have the same crew number. slope is None if it stands for one layer.
    repeats: it stands for several layers, so every row must have a slope.

    events: (token + 1, layer) -> (local event, node of its crew).
    """

    item: Item
    agent: int
    crew: int
    slope: Slope | None
    repeats: bool
    events: dict[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Part:
    """What a group touches: rows in global memory, of layer 0 or the slot's own, with their slopes, slots and workers
    (counted from the first); private: the finished rows of private memory.
    """

    group: Group
    found: list[Slot]
    rows: I64
    slope: I64
    slot_of: I64
    worker_of: I64
    private: list[I64]


class Envelope:
    """Rows of one group after another: `columns()` [n, 7] at the end. classes counts the private memories."""

    def __init__(self, schedule: Schedule, footprints: Footprints) -> None:
        self.schedule, self.footprints = schedule, footprints
        self.private_base = len(schedule.buffers)
        self.tagged = [i for i, b in enumerate(schedule.buffers) if b.tagged]
        self.last = schedule.kv.context - 1
        self.classes = 0
        self.representatives: list[tuple[Group, int]] = []
        self.least: list[I64] = [np.zeros((0, COLUMNS + 1), np.int64)]
        self.moving: set[tuple[int, int]] = set()
        self._irregular: set[tuple[int, int]] = set()
        self._parts: list[Part] = []
        self._caches: dict[int, int] = {}

    def columns(self, synced: tuple[tuple[int, int], ...]) -> I64:
        """Rows of all groups; synced: (program, number) of the steps that wait or signal."""
        found = [np.zeros((0, COLUMNS + 1), np.int64)]
        for part in self._parts:
            found += part.private
            for at, rows, crewed in self._crews(part, frozenset(synced)):
                places = part.slot_of[at], part.worker_of[at]
                found += _spread(part.group, part.found, rows, part.slope[at], *places, crewed)
        return np.concatenate(found)

    def positions(self, item: Item, workers: range) -> list[int]:
        """Where the op does all that it ever does: the end of the split's first block for cache ops, else the last."""
        op, kv = item.step.op, self.schedule.kv
        if not isinstance(op, RopeAppendOp | AttendOp):
            return [self.last] * len(workers)
        self._caches |= {self.footprints.number[op.k_cache]: 1, self.footprints.number[op.v_cache]: 2}
        first = self.footprints.tables["attn.split"][workers.start : workers.stop] * kv.block
        place: list[int] = np.where(first <= self.last, np.minimum(first + kv.block - 1, self.last), self.last).tolist()
        return place

    def least_positions(self, item: Item, workers: range) -> list[int]:
        """Where the op reads no more than it always does: the first position, for cache ops one of another split."""
        kv = self.schedule.kv
        if not isinstance(item.step.op, RopeAppendOp | AttendOp):
            return [0] * len(workers)
        split = self.footprints.tables["attn.split"][workers.start : workers.stop]
        other = np.where(split == 0, kv.block, 0)
        place: list[int] = np.where((kv.splits > 1) & (other <= self.last), other, 0).tolist()
        return place

    def slots(self, group: Group) -> list[Slot]:
        """Steps with data, one slot per agent, and per layer or token where those do not follow from each other."""
        trace = group.order.trace
        found: dict[tuple[int, ...], Slot] = {}
        crews: dict[tuple[int, ...], int] = {}
        slopes: dict[int, Slope | None] = {}
        for i, item in enumerate(trace.items):
            if isinstance(item.step.op, NO_DATA):
                continue
            role = trace.roles[item.step.op.role]
            layer = item.loops.get("l", -1)
            if layer >= 0 and item.site.number not in slopes:
                slopes[item.site.number] = self._slope(group, item, len(role))
            slope = slopes.get(item.site.number) if layer >= 0 else {}
            repeats = slope is not None and any(loop.count != 1 for loop in item.site.around if loop.var == "l")
            own_layer, own_token = (layer if slope is None else 0), (item.token if layer < 0 else 0)
            key = (item.site.number, own_layer, own_token)
            number = crews.setdefault(key, len(crews))
            for warp in role:
                slot = found.get((*key, warp))
                if slot is None:
                    slot = found[*key, warp] = Slot(item, warp - role.start, number, slope, repeats, {})
                slot.events[item.token + 1, max(layer, 0)] = int(trace.event_of[i, warp]), crew(trace, i)
        return list(found.values())

    def _slope(self, group: Group, item: Item, agents: int) -> Slope | None:
        slope: Slope = {}
        if all(loop.count == 1 for loop in item.site.around if loop.var == "l"):
            return slope
        if (group.number, item.site.number) in self._irregular:
            return None
        ends = tuple(dict.fromkeys((group.first, group.first + group.count - 1)))
        for agent in range(agents):
            if not self._measure(slope, item, ends, agent):
                return None
        return slope

    def _complete(self, group: Group, found: list[Slot], rows: I64, slot_of: I64, worker_of: I64) -> bool:
        """Measure the slopes of rows that only workers between the first and the last have; False if one is none."""
        keys, first = np.unique((slot_of << 27) + _slope_keys(rows), return_index=True)
        for at in first[np.isin(keys, _known_keys(found), invert=True)].tolist():
            slot = found[int(slot_of[at])]
            worker = group.first + int(worker_of[at])
            if not slot.repeats or slot.slope is None:
                continue
            if not self._measure(slot.slope, slot.item, (worker,), slot.agent):
                self._irregular.add((group.number, slot.item.site.number))
                return False
        return True

    def _measure(self, slope: Slope, item: Item, workers: tuple[int, ...], agent: int) -> bool:
        """Add what one agent of some workers does between layers 0 and 1; False if that is no slope."""
        pos = [self.positions(item, range(worker, worker + 1))[0] for worker in workers]
        found = self.footprints.change(item, agent, workers, pos)
        if found is None:
            return False
        return all(slope.setdefault(key, change) == change for key, change in found.items())

    def add(self, group: Group) -> None:
        """Rows of every worker of the group in global memory, and of one worker per class in private memory."""
        workers = range(group.first, group.first + group.count)
        found = self.slots(group)
        rows, slot_of, worker_of = self._collect(found, workers)
        while not self._complete(group, found, rows, slot_of, worker_of):
            found = self.slots(group)
            rows, slot_of, worker_of = self._collect(found, workers)
        slope = _row_slopes(found, slot_of, rows)
        self._to_units(rows, slope)
        private = rows[:, 0] < 0
        number = self._classes(group, rows[private], slot_of[private], worker_of[private])
        unit = self.private_base + UNITS * number[worker_of] - 1 - rows[:, 0]
        rows[private, 0] = np.where(number[worker_of] >= 0, unit, -1)[private]
        at = np.flatnonzero(private & (rows[:, 0] >= 0))
        shown = _spread(group, found, rows[at], slope[at], slot_of[at], worker_of[at], False)
        rest = np.flatnonzero(~private)
        shared = Part(group, found, rows[rest], slope[rest], slot_of[rest], worker_of[rest], shown)
        self._parts.append(shared)
        words = np.unique(slot_of[np.isin(rows[:, 0], self.tagged) & (rows[:, 1] == READ)])
        self._add_least(group, [found[s] for s in words.tolist()], workers)

    def _add_least(self, group: Group, reading: list[Slot], workers: range) -> None:
        """Reads of tagged words that happen at every position, for those steps whose reads depend on it."""
        where = [(s, self.positions(s.item, workers)) for s in reading]
        moving = [s for s, pos in where if self.footprints.positional(s.item, s.agent, workers, pos)]
        rows, slot_of, worker_of = self._collect(moving, workers, least=True)
        kept = np.flatnonzero(np.isin(rows[:, 0], self.tagged) & (rows[:, 1] == READ))
        slope = _row_slopes(moving, slot_of, rows)
        self.least += _spread(group, moving, rows[kept], slope[kept], slot_of[kept], worker_of[kept], True)
        perhaps = [s for s in reading if s.item.step.op.perhaps]
        self.moving |= {(group.number, node) for s in (*moving, *perhaps) for _, node in s.events.values()}

    def _collect(self, found: list[Slot], workers: range, least: bool = False) -> tuple[I64, I64, I64]:
        """All rows of layer 0 or the slot's own layer, with the slot and the worker (counted from the first)."""
        parts: list[I64] = []
        counts: list[int] = []
        for slot in found:
            pos = (self.least_positions if least else self.positions)(slot.item, workers)
            made, each = self.footprints.of_workers(slot.item, slot.agent, workers, pos)
            parts.append(made)
            counts += each
        slot_of = np.repeat(np.repeat(np.arange(len(found)), len(workers)), counts)
        worker_of = np.repeat(np.tile(np.arange(len(workers)), len(found)), counts)
        rows = np.concatenate(parts) if parts else np.zeros((0, COLUMNS), np.int64)
        return rows, slot_of, worker_of

    def _to_units(self, rows: I64, slope: I64) -> None:
        """Cache rows become one unit per layer of private memory -2 or -3, shared memory stays -1."""
        for cache, unit in self._caches.items():
            at = rows[:, 0] == cache
            rows[at, 2] = rows[at, 4] >> TOKEN_BITS & ((1 << INDEX_BITS) - 1)
            rows[at, 3], rows[at, 5], rows[at, 0] = rows[at, 2] + 1, 0, SHARED - unit
            slope[at, 0] = slope[at, 1]

    def _classes(self, group: Group, rows: I64, slot_of: I64, worker_of: I64) -> I64:
        """[workers] class number of each class's first worker, -1 for the others."""
        number = np.full(group.count, -1, np.int64)
        order = np.argsort(worker_of, kind="stable")
        bounds = np.searchsorted(worker_of[order], np.arange(group.count + 1))
        seen: set[bytes] = set()
        for worker in range(group.count):
            at = order[bounds[worker] : bounds[worker + 1]]
            mine = rows[at]
            family = np.where(mine[:, 4] == DONT_CARE, -1, mine[:, 4] >> FAMILY_SHIFT)
            _, first, which = np.unique(family, return_index=True, return_inverse=True)
            mine[:, 5] -= mine[first[which], 5] if len(mine) else 0
            key = mine.tobytes() + slot_of[at].tobytes()
            if key not in seen:
                seen.add(key)
                number[worker] = self.classes
                self.classes += 1
                self.representatives.append((group, worker))
        return number

    def _crews(self, part: Part, synced: frozenset[tuple[int, int]]) -> Iterator[tuple[I64, I64, bool]]:
        """Global rows as (row numbers, rows, crewed?): joined where crew, buffer and content agree."""
        found, rows, slot_of, worker_of = part.found, part.rows, part.slot_of, part.worker_of
        number = np.array([slot.crew for slot in found], np.int64)[slot_of]
        order = np.lexsort((rows[:, 2], rows[:, 0], number, worker_of))
        alone = np.isin(number[order], _clashing(rows[order], slot_of[order], number[order], worker_of[order]))
        words = np.isin(rows[order, 0], self.tagged) & (rows[order, 1] == READ)
        alone |= np.isin(number[order], np.unique(number[order[words]])) & ~words
        # what waits or signals is in a chain itself; a crew would forget that its members have waited
        acts = np.array([(s.item.site.path[1], s.item.site.number) in synced for s in found], bool)[slot_of]
        alone |= acts[order] & ~words
        yield order[alone], rows[order[alone]], False
        order = order[~alone]
        order = order[np.lexsort((rows[order, 2], *rows[order][:, [5, 4, 1, 0]].T, number[order], worker_of[order]))]
        content = np.concatenate((worker_of[order, None], number[order, None], rows[order][:, [0, 1, 4, 5]]), axis=1)
        fresh = np.ones(len(order), bool)
        fresh[1:] = (content[1:] != content[:-1]).any(axis=1)
        reach = _running_end(rows[order, 3], fresh)
        fresh[1:] |= rows[order[1:], 2] > reach[:-1]
        starts = np.flatnonzero(fresh)
        joined = rows[order[starts]]
        if len(starts):
            joined[:, 3] = np.maximum.reduceat(rows[order, 3], starts)
        yield order[starts], joined, True


def _spread(
    group: Group, found: list[Slot], rows: I64, slope: I64, slot_of: I64, worker_of: I64, crewed: bool
) -> list[I64]:
    """Copies of the rows for every token and layer, on their events or on their crews."""
    times = sorted({time for slot in found for time in slot.events})
    spread: list[I64] = []
    base = group.node_base + worker_of * group.nodes
    for token, layer in times:
        node = np.array([slot.events.get((token, layer), (-1, -1))[crewed] for slot in found])[slot_of]
        at = np.flatnonzero(node >= 0)
        made = np.empty((len(at), COLUMNS + 1), np.int64)
        made[:, 0] = base[at] + node[at]
        made[:, 1:] = rows[at]
        shift = slope[at] * layer
        made[:, 3] += shift[:, 0]
        made[:, 4] += shift[:, 0]
        named = made[:, 5] != DONT_CARE
        made[named, 5] += (shift[named, 1] << TOKEN_BITS) + token
        spread.append(made)
    return spread


def _running_end(end: I64, fresh: I64) -> I64:
    """Running maximum of `end` within segments that begin where `fresh`."""
    segment = np.cumsum(fresh) - 1
    distinct, rank = np.unique(end, return_inverse=True)
    key = segment * len(distinct) + rank.reshape(-1)
    reach: I64 = distinct[np.maximum.accumulate(key) % max(len(distinct), 1)]
    return reach


def _clashing(rows: I64, slot_of: I64, crew: I64, worker_of: I64) -> I64:
    """Crews in which two agents touch a common byte and one writes; rows sorted by (worker, crew, buffer, start)."""
    place = np.stack((worker_of, crew, rows[:, 0]), axis=1)
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (place[1:] != place[:-1]).any(axis=1)
    segment = np.cumsum(fresh) - 1
    writes = np.bincount(segment, rows[:, 1] != READ, minlength=1) > 0
    overlap = np.zeros(len(rows), bool)
    overlap[1:] = ~fresh[1:] & (rows[1:, 2] < _running_end(rows[:, 3], fresh)[:-1])
    found = overlap & writes[segment]
    alone = (
        np.maximum.reduceat(slot_of, np.flatnonzero(fresh)) == np.minimum.reduceat(slot_of, np.flatnonzero(fresh))
        if len(rows)
        else np.zeros(0, bool)
    )
    return np.unique(crew[found & ~alone[segment]])


def _slope_keys(rows: I64) -> I64:
    """Buffer, kind and family of each row as one number: fewer than 2^10 buffers, two kinds, 2^16 families (-1 too)."""
    keys: I64 = ((rows[:, 0] + 1) << 17 | rows[:, 1] << 16) + (rows[:, 4] >> FAMILY_SHIFT) + 1
    return keys


def _known_keys(found: list[Slot]) -> I64:
    """Slot and key, as one number, of every slope."""
    known = [
        (number << 27) + ((buffer + 1) << 17 | kind << 16) + family + 1
        for number, slot in enumerate(found)
        for buffer, kind, family in slot.slope or ()
    ]
    return np.array(known, np.int64)


def _slope_of(slot: Slot, row: list[int]) -> tuple[int, int]:
    """KeyError if nobody measured it: such rows would all carry the content of layer 0."""
    return slot.slope[row[0], row[1], row[4] >> FAMILY_SHIFT] if slot.repeats and slot.slope is not None else (0, 0)


def _row_slopes(found: list[Slot], slot_of: I64, rows: I64) -> I64:
    """[n, 2] slope of each row."""
    _, first, which = np.unique((slot_of << 27) + _slope_keys(rows), return_index=True, return_inverse=True)
    parts = zip(slot_of[first].tolist(), rows[first].tolist(), strict=True)
    values = [_slope_of(found[s], row) for s, row in parts]
    slopes: I64 = np.array(values, np.int64).reshape(-1, 2)[which.reshape(-1)]
    return slopes
