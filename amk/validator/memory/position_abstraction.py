"""What every event may touch, over all positions, as columns ready for the race check.

The position moves with every token, but it decides only (1) which cache rows are touched, (2) which splits are
active, and waits and signals never depend on it. So one check of the *position abstraction* covers all positions:
  - accesses outside the cache grow with the position (more splits are active), so they are taken at the last one;
  - each worker's part of a cache is one unit per layer and turn: appending writes the unit, attending reads it and
    expects the row of the current token. The unit is private to the worker: no two serve a KV head's split
    (`structure`), `obligations` proves that rows never cross workers and that the split that appends a row is the one
    that reads it. The cache ops are evaluated at a position that the worker's split owns, where they do all that they
    ever do.
Words that a step reads at some positions only give no order at the others, and candidates are not read for a token
that was given: `moving` has the steps whose reads of flag words may not happen, `always` those of their reads that do
at every position. A race in the position abstraction may be impossible at every single position; the flat check then
confirms or refutes it.

In a live batch every sequence has a position of its own. Each worker is looked at where it does all that it ever does,
whatever others do, and what it always reads is what it reads at any position of its own: nothing here asks whether two
workers can be at those positions at once, so all combinations are covered (`static.sequences` decides what that needs).

Shared memory is checked for one worker of each class. Two workers are in one class if all their events have the same
shared-memory rows up to one displacement per value family (a consistent renaming of what the bytes hold). One speaks
for all of a class if the order within each worker, of its program and its barriers, leaves no race there. If counters
are needed as well, one worker may wait for less than another: then a race of the one that is looked at is a race, and
if it has none every worker is looked at (`memory.composition.compose`).

Rows are (node, buffer, kind, lo, hi, value, delta): global buffers keep their number, worker-private memory is numbered
behind them. Of parts of a buffer that are touched alike one is there. In global memory the rows of all agents
of a step are joined where they touch neighbouring bytes of one content, and belong to its warp group, unless two agents
touch a common byte and one writes, or the step reads flag words: then only those reads belong to the warp group, as a
warp group as a node comes after the words of all its agents. Steps that wait or signal themselves are not joined.

Cost: an evaluation of each step for all its warps, workers and layers, and sorts of what it touches.

Parts. Of parts of buffers that are touched alike one is looked at. A buffer with a row for each token of a step is cut
into as many parts of equal size, and shared memory into parts of the size that most rows there have; how it is cut
changes nothing but the cost. A *piece* is what an access has of several parts that follow each other, the same bytes of
each: (buffer, kind, lo, hi, value, delta, first, end, turn), where lo and hi count from the start of a part, and delta
is that of part 0 if the access began there: that of part p is larger by p * turn.

Property: between two parts at which any access begins or ends, every access has the same bytes of all parts, with the
same values. So these bytes see the same events in the same order, and what is a race, or a read of something else, in
one part is one in each of them: deltas are compared among touches of one value only, and where those of a value have
one turn, equal deltas in one part are equal in all. Where a value has several turns, every part is looked at.

Cost: linear in pieces and in what is left of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from amk.schedule_ir.ops import BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.rope_append import RopeAppendOp
from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.races import blocks, find_races, touches_in
from amk.validator.order.intervals import divided
from amk.validator.order.two_levels import Group, LocalOrder
from amk.validator.program.footprint import COLUMNS, FAMILY_SHIFT, SHARED, Footprint, Footprints, index_of, with_token
from amk.validator.program.system import DONT_CARE, I64, READ, Bools
from amk.validator.program.trace import Item, Trace

ENDLESS: Final = 1 << 40
PIECE: Final = 9
"""Columns of a piece."""
BUFFER, KIND, LO, HI, VALUE, DELTA, FIRST, END, TURN = range(PIECE)


def part_sizes(schedule: Schedule) -> I64:
    """[buffers] bytes of a part; where there are no parts, more than any buffer has."""
    count = schedule.vectors
    sizes = [b.bytes // count if count > 1 and b.bytes and b.bytes % count == 0 else ENDLESS for b in schedule.buffers]
    return np.array(sizes, np.int64)


def usual_step(rows: I64) -> tuple[int, int]:
    """(bytes of a part, where they begin) of memory where these rows of footprints are: as most that happen several
    times have it."""
    several = rows[rows[:, 6] > 1]
    if not len(several):
        return ENDLESS, 0
    steps, which = np.unique(several[:, 7], return_inverse=True)
    step = int(steps[np.bincount(which.reshape(-1), several[:, 6]).argmax()])
    return max(step, 1), int(several[several[:, 7] == step, 2].min())


def repeated(times: I64) -> tuple[I64, I64]:
    """(k as often as times[k] says, the how-manieth time it is)."""
    of = np.repeat(np.arange(len(times)), times)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(times) - times, times)


def every_time(rows: I64) -> tuple[I64, I64]:
    """Rows of footprints, those with several times once for each; and which row each is of."""
    of, nth = repeated(rows[:, 6])
    found = rows[of]
    found[:, [2, 3]] += (nth * found[:, 7])[:, None]
    found[:, 5] += nth * found[:, 8]
    found[:, [6, 7, 8]] = 1, 0, 0
    return found, of


def pieces(rows: I64, sizes: I64) -> tuple[I64, I64]:
    """What rows of footprints have of the parts, and which row each piece is of."""
    size = sizes[rows[:, 0]]
    low, high = rows[:, 2] // size, (rows[:, 3] - 1) // size
    within = (low == high) & ((rows[:, 6] == 1) | (rows[:, 7] == size))
    at = np.flatnonzero(within)
    found = rows[at]
    found[:, [LO, HI]] -= (low * size)[at, None]
    found[:, FIRST], found[:, END], found[:, TURN] = low[at], low[at] + rows[at, 6], rows[at, 8]
    found[:, DELTA] -= low[at] * rows[at, 8]
    rest = np.flatnonzero(~within)
    if not len(rest):
        return found, at
    single, of = every_time(rows[rest])
    segments, part = _across(single, sizes[single[:, 0]])
    return np.concatenate((found, segments)), np.concatenate((at, rest[of[part]]))


def _across(rows: I64, size: I64) -> tuple[I64, I64]:
    """Pieces of contiguous rows: the end of a part, whole parts, the beginning of one; and which row each is of."""
    lo, hi = rows[:, 2], rows[:, 3]
    part, whole, after = lo // size, -(-lo // size), hi // size
    alone = part == (hi - 1) // size
    segments, of = [], []
    for kept, first, end, low, high in (
        (alone | (part < whole), part, part + 1, lo - part * size, np.where(alone, hi - part * size, size)),
        (~alone & (whole < after), whole, after, np.zeros_like(lo), size),
        (~alone & (after * size < hi), after, after + 1, np.zeros_like(lo), hi - after * size),
    ):
        some = rows[kept]
        some[:, FIRST], some[:, END], some[:, TURN] = first[kept], end[kept], 0
        some[:, LO], some[:, HI] = low[kept], high[kept]
        segments.append(some)
        of.append(np.flatnonzero(kept))
    return np.concatenate(segments), np.concatenate(of)


class Alike:
    """Which parts stand for which, given all pieces."""

    def __init__(self, touches: I64, sizes: I64) -> None:
        self.sizes = sizes
        keys = touches[:, [FIRST, END]] + (touches[:, BUFFER] << 32)[:, None]
        self.cuts = np.unique(np.concatenate((keys.reshape(-1), self._several(touches))))

    def _several(self, touches: I64) -> I64:
        """Cuts between all parts of buffers with values that have several turns."""
        many = touches[(touches[:, END] - touches[:, FIRST] > 1) & (touches[:, VALUE] != DONT_CARE)]
        turns = np.unique(many[:, [BUFFER, VALUE, TURN]], axis=0)
        again = (turns[1:, :2] == turns[:-1, :2]).all(axis=1)
        cuts = [np.zeros(0, np.int64)]
        for buffer in np.unique(turns[1:][again, 0]).tolist():
            mine = many[many[:, BUFFER] == buffer]
            cuts.append((buffer << 32) + np.arange(mine[:, FIRST].min(), mine[:, END].max()))
        return np.concatenate(cuts)

    def of(self, touches: I64) -> tuple[I64, I64]:
        """(buffer, kind, lo, hi, value, delta) of the pieces in the parts that stand for others, in bytes of the
        buffer; and which piece each is of."""
        key = touches[:, BUFFER] << 32
        first, end = (np.searchsorted(self.cuts, key + touches[:, column]) for column in (FIRST, END))
        of, nth = repeated(end - first)
        part = self.cuts[first[of] + nth] - key[of]
        rows = touches[of, :FIRST]
        rows[:, [LO, HI]] += (part * self.sizes[rows[:, BUFFER]])[:, None]
        rows[:, DELTA] += part * touches[of, TURN]
        return rows, of


@dataclass(frozen=True)
class _Alone:
    """The order of the events of one worker, whatever others do."""

    order: LocalOrder

    def precedes(self, before: I64, after: I64) -> Bools:
        return self.order.wholly(before, after)


NO_DATA: Final = (WaitOp, SignalOp, BarrierOp)
NOTHING: Final = np.zeros((0, 5), np.int64)
UNITS: Final = 3
"""Private memories of a worker: shared memory, its part of the key cache, its part of the value cache."""


def steps_with_data(trace: Trace) -> list[I64]:
    """The items of each step that touches memory, [tokens, layers]; outside the token loop there is one row."""
    found: dict[int, dict[int, list[int]]] = {}
    for number, item in enumerate(trace.items):
        if not isinstance(item.step.op, NO_DATA):
            found.setdefault(item.site.number, {}).setdefault(item.token, []).append(number)
    return [np.array([*by_token.values()], np.int64) for by_token in found.values()]


class PositionAbstraction:
    """What one group of workers after another touches. common: (node, piece) of global memory; private: rows [n, 7] of
    private memory, of which there are `classes`. moving: (group, item) of warp groups whose reads of flag words may not
    happen; always: (group, worker, item, piece) of those of them that do. each: look at the private memory of every
    worker; by_counters: one worker was looked at for others, and it needs counters to order its own."""

    def __init__(self, schedule: Schedule, footprints: Footprints, each: bool = False) -> None:
        self.each, self.by_counters = each, False
        self.schedule, self.footprints = schedule, footprints
        self.private_base = len(schedule.buffers)
        self.tagged = [i for i, b in enumerate(schedule.buffers) if b.tagged]
        self.last = schedule.kv.context - schedule.rows
        self.sizes = part_sizes(schedule)
        self.classes = 0
        self.moving: set[tuple[int, int]] = set()
        self.always: list[I64] = [np.zeros((0, PIECE + 3), np.int64)]
        self.common: list[I64] = [np.zeros((0, PIECE + 1), np.int64)]
        self.private: list[I64] = [np.zeros((0, 7), np.int64)]
        self._caches: dict[int, int] = {}

    def positions(self, item: Item, workers: I64) -> I64:
        """Where the op does all that it ever does: else than for cache ops the last position; for them the end of the
        split's first block, where the block has all rows of the step."""
        op, kv = item.step.op, self.schedule.kv
        if not isinstance(op, RopeAppendOp | AttendOp):
            return np.full(len(workers), self.last)
        self._caches |= {self.footprints.number[op.k_cache]: 1, self.footprints.number[op.v_cache]: 2}
        first = self.footprints.tables["attn.split"][workers] * kv.block
        return np.where(first <= self.last, np.minimum(first + kv.block - self.schedule.rows, self.last), self.last)

    def least_positions(self, item: Item, workers: I64) -> I64:
        """Where the op reads no more than it always does: the first position, for cache ops one of another split, or
        the last one if only the last rows of a step ever reach that.
        """
        kv = self.schedule.kv
        if not isinstance(item.step.op, RopeAppendOp | AttendOp):
            return np.zeros(len(workers), np.int64)
        first = (self.footprints.tables["attn.split"][workers] == 0) & (kv.splits > 1)
        return np.where(first, min(kv.block, self.last), 0)

    def add(self, group: Group) -> None:
        """Rows of every worker of the group in global memory, and of one worker per class in private memory."""
        own: list[I64] = []
        for numbers in steps_with_data(group.order.trace):
            found = self._footprint_at(group, numbers[0], self.positions)
            if found.timed:
                own += [
                    self._add_step(group, numbers[n : n + 1], self._footprint_at(group, numbers[n], self.positions))
                    for n in range(len(numbers))
                ]
            else:
                own.append(self._add_step(group, numbers, found))
        self._add_private(group, np.concatenate([np.zeros((0, COLUMNS + 3), np.int64), *own]))

    def _footprint_at(self, group: Group, numbers: I64, where: Callable[[Item, I64], I64]) -> Footprint:
        items, workers = [group.order.trace.items[n] for n in numbers.tolist()], np.arange(group.count) + group.first
        return self.footprints.of(items, workers, np.tile(where(items[0], workers), (len(items), 1)))

    def _add_step(self, group: Group, numbers: I64, footprint: Footprint) -> I64:
        """numbers: items [tokens, layers] that touch what was found for the first of these tokens. Adds what it touches
        in global memory, and returns the rest: (event of the token, worker, agent, row)."""
        trace, step = group.order.trace, group.order.trace.items[numbers[0, 0]].step
        own, mine = [], (footprint.rows[:, 0] < 0) | np.isin(footprint.rows[:, 0], [*self._caches])
        rows, of = pieces(footprint.rows[~mine], self.sizes)
        shown = np.flatnonzero(~mine)[of]
        place = (footprint.worker[shown] << 20) + footprint.item[shown]
        words = np.isin(rows[:, BUFFER], self.tagged) & (rows[:, KIND] == READ)
        if words.any() and (footprint.positional or step.op.perhaps):
            self.moving |= {(group.number, n) for n in numbers.reshape(-1).tolist()}
            if footprint.positional and not step.op.perhaps:
                self._add_always(group, numbers)
        boxes, at, grouped = joined(
            rows, place, footprint.agent[shown], words, bool(step.waits or step.signals), self.sizes
        )
        picked = shown[at]
        base = group.node_base + (footprint.worker[picked] - group.first) * group.nodes
        warp = trace.roles[step.op.role].start + footprint.agent
        private, value = (
            np.column_stack((footprint.worker, footprint.agent, footprint.rows))[mine],
            footprint.rows[mine, 4],
        )
        for at_token in numbers:
            item, token = at_token[footprint.item], trace.items[at_token[0]].token
            event = trace.event_of[item, warp]
            node = base + np.where(grouped, trace.events + item[picked], event[picked])
            self.common.append(np.column_stack((node, boxes)))
            self.common[-1][:, 1 + VALUE] = with_token(boxes[:, VALUE], token)
            own.append(np.column_stack((event[mine], private)))
            own[-1][:, 7] = with_token(value, token)
        return np.concatenate(own)

    def _add_always(self, group: Group, numbers: I64) -> None:
        found = self._footprint_at(group, numbers[0], self.least_positions)
        words = np.flatnonzero(np.isin(found.rows[:, 0], self.tagged) & (found.rows[:, 1] == READ))
        rows, of = pieces(found.rows[words], self.sizes)
        place = np.full(len(of), group.number), found.worker[words[of]]
        for at_token in numbers:
            self.always.append(np.column_stack((*place, at_token[found.item[words[of]]], rows)))

    def _add_private(self, group: Group, own: I64) -> None:
        """own: (event, worker, agent, row) of everything that workers have to themselves."""
        again = np.isin(own[:, 3], [*self._caches]) & (own[:, 9] > 1)
        if again.any():
            rows, of = every_time(own[again, 3:])
            own = np.concatenate((own[~again], np.concatenate((own[again][of, :3], rows), axis=1)))
        if self.schedule.kv.turns > 1:
            own = self._by_turns(own)
        for buffer, unit in self._caches.items():
            here = own[:, 3] == buffer
            own[here, 5] = index_of(own[here, 7]) * self.schedule.kv.turns + self._turn(own[here], buffer)
            own[here, 6], own[here, 8], own[here, 3] = own[here, 5] + 1, 0, SHARED - unit
        own = own.take(np.argsort((own[:, 1] - group.first).astype(np.uint16), kind="stable"), axis=0)
        family = own[:, 7] >> FAMILY_SHIFT
        present = np.flatnonzero(np.bincount(family + 1))  # -1: DONT_CARE
        key = (own[:, 1] - group.first) * len(present) + np.searchsorted(present, family + 1)
        first = np.empty(group.count * len(present), np.int64)
        first[key[::-1]] = np.arange(len(key))[::-1]  # of equal keys the last one assigned stays
        worker, delta = own[:, 1].copy(), own[:, 8].copy()
        own[:, 1], own[:, 8] = 0, delta - delta[first[key]]
        bounds = np.searchsorted(worker, np.arange(group.first, group.first + group.count + 1)).tolist()
        every = leaders = [*pairwise(bounds)]
        if not self.each:
            leaders = sorted({own[low:high].tobytes(): (low, high) for low, high in reversed(every)}.values())
        found = [self._rows_of(own, delta, *leader) for leader in leaders]
        self.by_counters = self.by_counters or (len(leaders) < len(every) and not self._ordered_within(group, found))
        for (low, _), (event, rows) in zip(leaders, found, strict=True):
            node = event + group.node_base + (worker[low] - group.first) * group.nodes if len(rows) else event
            rows[:, 0] = self.private_base + UNITS * self.classes - 1 - rows[:, 0]
            self.private.append(np.column_stack((node, rows)))
            self.classes += 1

    def _turn(self, own: I64, buffer: int) -> I64:
        """The turn of the KV head that these rows of a cache begin in."""
        turn: I64 = own[:, 5] // self._head_bytes(buffer) % self.schedule.caches // self.schedule.turn_heads
        return turn

    def _head_bytes(self, buffer: int) -> int:
        """Bytes of a KV head in a cache."""
        return self.schedule.kv.context * self.schedule.model.head_dim * self.schedule.buffers[buffer].item_bytes

    def _by_turns(self, own: I64) -> I64:
        """The same with rows of a cache that touch where one KV head ends and the next begins as those of each."""
        kept = [own[~np.isin(own[:, 3], [*self._caches])]]
        for buffer in self._caches:
            here = own[own[:, 3] == buffer]
            size = self._head_bytes(buffer)
            head = here[:, 5] // size
            of, nth = repeated((here[:, 6] - 1) // size - head + 1)
            per_head = here[of]
            per_head[:, 5] = np.maximum(per_head[:, 5], (head[of] + nth) * size)
            kept.append(per_head)
        return np.concatenate(kept)

    def _rows_of(self, own: I64, delta: I64, low: int, high: int) -> tuple[I64, I64]:
        """(event, row) of the private memory of a worker, whose rows of `own` are these."""
        mine = own[low:high, 3:].copy()
        mine[:, 5] = delta[low:high]
        rows, of = self._different(mine)
        return own[low + of, 0], rows

    def _ordered_within(self, group: Group, pairs: list[tuple[I64, I64]]) -> bool:
        """Whether what each worker orders by itself keeps its private memory free of races. What counters order may
        be ordered for one worker of a class and not for another: they need not wait for the same."""
        rows = [np.column_stack((event, row)) for event, row in pairs]
        for number, each in enumerate(rows):
            each[:, 1] = UNITS * number - 1 - each[:, 1]
        every = np.concatenate(rows)
        in_turn = np.lexsort((every[:, 2], group.order.run.position[every[:, 0]]))
        return not find_races(blocks(touches_in(every[in_turn], NOTHING, NOTHING)), _Alone(group.order)).racy

    def _different(self, rows: I64) -> tuple[I64, I64]:
        """Private rows of a worker in the parts that stand for others, and which row each is of."""
        shared = rows[:, 0] == SHARED
        # units are counted from the end: shared memory, and caches, which have no parts
        sizes = np.full(UNITS, ENDLESS)
        sizes[SHARED], origin = usual_step(rows[shared])
        rows[shared, 2:4] -= origin
        found, of = pieces(rows, sizes)
        shown, at = Alike(found, sizes).of(found)
        shown[shown[:, 0] == SHARED, 2:4] += origin
        return shown, of[at]


def joined(rows: I64, place: I64, agent: I64, words: Bools, acts: bool, sizes: I64) -> tuple[I64, I64, Bools]:
    """Pieces of a step, joined where place (the step on one worker), buffer and content agree; what stands alone comes
    first. place, agent, words [n]: words that are read; acts: does the step wait or signal?

    Returns the pieces, one of those that each was made of, and whether it belongs to the warp group.
    """
    order = np.lexsort((rows[:, LO], rows[:, BUFFER], place))
    # what waits or signals is a node of an agent itself; a warp group would forget that its members have waited
    apart = ~words[order] if acts or bool(words.any()) else np.zeros(len(order), bool)
    if _clashing(rows[order], agent[order], place[order], sizes):
        apart = np.ones(len(order), bool)
    alone, rest = order[apart], order[~apart]
    boxes, at = _merged(rows[rest], place[rest], (LO, HI), (FIRST, END))
    boxes, of = _merged(boxes, place[rest[at]], (FIRST, END), (LO, HI))
    return (
        np.concatenate((rows[alone], boxes)),
        np.concatenate((alone, rest[at[of]])),
        np.arange(len(alone) + len(boxes)) >= len(alone),
    )


def _merged(rows: I64, place: I64, along: tuple[int, int], equal: tuple[int, int]) -> tuple[I64, I64]:
    """Pieces that follow each other along these columns and are alike in all others, and the first of each."""
    low, high = along
    content = np.column_stack((place, rows[:, [BUFFER, KIND, VALUE, DELTA, TURN, *equal]]))
    order = np.lexsort((rows[:, low], *content.T[::-1]))
    rows, content = rows[order], content[order]
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (content[1:] != content[:-1]).any(axis=1)
    fresh[1:] |= rows[1:, low] > _running_end(rows[:, high], fresh)[:-1]
    starts = np.flatnonzero(fresh)
    boxes = rows[starts]
    if len(starts):
        boxes[:, high] = np.maximum.reduceat(rows[:, high], starts)
    return boxes, order[starts]


def _running_end(end: I64, fresh: Bools) -> I64:
    """Running maximum of `end` within segments that begin where `fresh`."""
    segment: I64 = np.cumsum(fresh) - 1
    distinct, rank = np.unique(end, return_inverse=True)
    key = segment * len(distinct) + rank.reshape(-1)
    reach: I64 = distinct[np.maximum.accumulate(key) % max(len(distinct), 1)]
    return reach


def _clashing(rows: I64, agent: I64, place: I64, sizes: I64) -> bool:
    """Do two agents of a place touch a common byte, and one writes?"""
    if not _overlapping(rows, agent, place):
        return False
    of, nth = repeated(rows[:, END] - rows[:, FIRST])
    single = rows[of]
    single[:, [LO, HI]] += ((single[:, FIRST] + nth) * sizes[single[:, BUFFER]])[:, None]
    order = np.lexsort((single[:, LO], single[:, BUFFER], place[of]))
    return _overlapping(single[order], agent[of][order], place[of][order])


def _overlapping(rows: I64, agent: I64, place: I64) -> bool:
    """`_clashing`, of bytes of any parts. Rows sorted by (place, buffer, start)."""
    if not len(rows):
        return False
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (place[1:] != place[:-1]) | (rows[1:, 0] != rows[:-1, 0])
    segment, starts = np.cumsum(fresh) - 1, np.flatnonzero(fresh)
    writes = np.bincount(segment, rows[:, 1] != READ) > 0
    several = np.maximum.reduceat(agent, starts) > np.minimum.reduceat(agent, starts)
    overlap = ~fresh[1:] & (rows[1:, 2] < _running_end(rows[:, 3], fresh)[:-1])
    return bool((overlap & (writes & several)[segment[1:]]).any())


@dataclass(frozen=True, eq=False)
class Touched:
    """rows, tagged, classes, by_counters: see `PositionAbstraction`. boundary: initial and final content, of the same
    parts. most, always: those on flag words, for `two_levels`: with all reads, and with those alone that
    happen at every position whatever the data say."""

    rows: I64
    most: I64
    always: I64
    tagged: list[int]
    classes: int
    boundary: tuple[I64, I64]
    by_counters: bool


def touched(
    footprints: Footprints, groups: list[Group], boundary: tuple[I64, I64] = (NOTHING, NOTHING), each: bool = False
) -> Touched:
    abstraction = PositionAbstraction(footprints.schedule, footprints, each)
    for group in groups:
        abstraction.add(group)
    common, moved = np.concatenate(abstraction.common), np.concatenate(abstraction.always)
    ends = [pieces(_as_rows(edge), abstraction.sizes)[0] for edge in boundary]
    alike = Alike(np.concatenate((common[:, 1:], moved[:, 3:], *ends)), abstraction.sizes)
    shown, of = alike.of(common[:, 1:])
    rows = np.column_stack((common[of, 0], shown))
    words, at = alike.of(moved[:, 3:])
    most = _word_rows(groups, rows, abstraction.tagged)
    always = np.concatenate((most[_always(most, abstraction)], np.column_stack((moved[at, :3], words[:, :4]))))
    first, last = (alike.of(end)[0][:, [0, 2, 3, 4, 5]] for end in ends)
    every = np.concatenate((*abstraction.private, rows))
    return Touched(every, most, always, abstraction.tagged, abstraction.classes, (first, last), abstraction.by_counters)


def _as_rows(edge: I64) -> I64:
    """Initial or final content (buffer, lo, hi, value, delta) as rows of footprints."""
    found = np.zeros((len(edge), COLUMNS), np.int64)
    found[:, [0, 2, 3, 4, 5]], found[:, 6] = edge, 1
    return found


def _always(rows: I64, abstraction: PositionAbstraction) -> Bools:
    """rows: `_word_rows` of everything. Which of these happen at every position?"""
    keys = np.array([group << 32 | item for group, item in sorted(abstraction.moving)], np.int64)
    always: Bools = (rows[:, 4] != READ) | ~np.isin(rows[:, 0] << 32 | rows[:, 2], keys)
    return always


def _word_rows(groups: list[Group], rows: I64, tagged: list[int]) -> I64:
    """(group, worker, item, buffer, kind, lo, hi) of the rows on tagged buffers."""
    there = rows[np.isin(rows[:, 1], tagged)]
    found = [np.zeros((0, 7), np.int64)]
    for group in groups:
        end, trace = group.node_base + group.count * group.nodes, group.order.trace
        own = there[(there[:, 0] >= group.node_base) & (there[:, 0] < end)]
        worker, node = divided(own[:, 0] - group.node_base, group.nodes)
        mine = np.empty((len(own), 7), np.int64)
        mine[:, 0], mine[:, 1] = group.number, worker + group.first
        mine[:, 2] = np.append(trace.item, np.arange(len(trace.items)))[node]
        mine[:, 3:] = own[:, 1:5]
        found.append(mine)
    return np.concatenate(found)
