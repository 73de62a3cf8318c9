"""The rules that decide. Everything else in this package only spells the schedule out into the tables read here.

Given the warps of every worker (`Program`), waits and signals (`Counters`), flag words (`FlagWords`), accesses, and
from the certificate level[w, j] (when worker w runs item j) and K(c, t) (a vector per awaited threshold):

(1) Run. level grows along every warp; when item j runs, the signals of earlier items meet its waits, and the words it
    reads are written. So one complete run exists; counters only grow, so no other gets stuck.
(2) Order. S[w, j][x] = how many first items are over on all warps of warp class x (warps of one worker that run the
    same items) before any warp of w starts item j, in every run, if the K hold; and the K follow from S. README.md has
    the rule and why there is then no exception.
(3) Races. Along the run, the accesses of a byte are cut into groups: one write, or the reads between two. All pairs of
    neighbouring groups are ordered by (2), and so by induction all conflicting pairs.
(4) Values. Along the run each byte read holds what the reader means. By (3) every run reads the same.

An order is of one kind of edges: `fence` (releases, acquires), `time` (and flag words), `wait` (and all that blocks).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from copy import copy
from functools import cached_property, reduce
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from amk.checker.counters import AMOUNT, INSTANCE, ITEM, WARP, WEAK, WORKER, Counters
from amk.checker.footprints import DONT_CARE, PLACE, READ, WRITE
from amk.checker.parts import spread
from amk.checker.programs import CELLS, TOKENS, Program, require
from amk.checker.words import FlagWords, Reading, Readings

I16 = npt.NDArray[np.int16]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Claims = dict[tuple[int, int], I64]
EDGES: Final = ("time", "fence", "wait")
OUTSIDE: Final = -1
INCIDENCES: Final = 1 << 27
PART: Final = 1 << 21


def check_run(programs: list[Program], counters: Counters, words: FlagWords, level: I64) -> None:
    """(1) level [workers, items]."""
    for program in programs:
        for warp in range(program.warps):
            mine = level[program.workers][:, [j for j, role in enumerate(program.roles) if warp in role]]
            require((np.diff(mine, axis=1) > 0).all(), "times: a warp does not run in program order")
    signals, waits, end = counters.signals, counters.waits, int(level.max()) + 2
    keys = signals[:, INSTANCE] * end + level[signals[:, WORKER], signals[:, ITEM]]
    order = np.argsort(keys, kind="stable")
    total = np.concatenate(([0], np.cumsum(signals[order, AMOUNT])))
    first = np.searchsorted(keys[order], waits[:, INSTANCE] * end)
    now = np.searchsorted(keys[order], waits[:, INSTANCE] * end + level[waits[:, WORKER], waits[:, ITEM]])
    met = total[now] - total[first] + counters.init[waits[:, INSTANCE]] >= waits[:, AMOUNT]
    require(met.all(), "order: a wait is not met")
    for item, r in ((item, r) for (item, _), found in words.readings.items() for r in found):
        reader, owner = np.nonzero(r.awaited)
        early = level[owner, r.writer[owner]] < level[reader, item]
        require(early.all(), "order: a word is read before it is written")


class Order:
    """(2) for one kind of edges. starts [workers, items, warp classes] is S; the warp classes with number k of
    all workers are columns k * workers to (k + 1) * workers."""

    def __init__(
        self, edges: str, programs: list[Program], counters: Counters, words: FlagWords, level: I64, claims: Claims
    ) -> None:
        self.programs, self.counters, self.words, self.claims = programs, counters, words, claims
        self.readings = {} if edges == "fence" else words.readings
        self.relaxed_waits = edges == "wait"
        self.workers, longest = level.shape
        self.columns = counters.warp_classes * self.workers
        require(self.columns * self.workers * max(longest, programs[0].warps) <= CELLS, "schedule: too large")
        self.starts: I16 = np.zeros((self.workers, longest, self.columns), np.int16)
        self.column = np.arange(self.workers)[:, None] + self.workers * counters.warp_class
        self.group = np.zeros(self.workers, np.int64)
        self.ahead = np.zeros((len(programs), longest, counters.warp_classes, counters.warp_classes), np.int64)
        for g, program in enumerate(programs):
            self.group[program.workers] = g
            items, warp_classes, _ = program.ahead.shape
            self.ahead[g, :items, :warp_classes, :warp_classes] = program.ahead
        self.level = level
        deque(self._states(), maxlen=0)

    def _states(self) -> Iterator[tuple[int, I64, I16]]:
        """(item, workers, state [workers, warps, warp classes]) along the run: what each warp knows as the item
        starts. Then comes what the words tell that it reads, and at barriers what all know."""
        state = np.zeros((self.workers, self.programs[0].warps, self.columns), np.int16)
        steps = [(g, j) for g, program in enumerate(self.programs) for j in range(len(program.items))]
        runs = [(now, g, j) for g, j in steps for now in set(self.level[self.programs[g].workers, j].tolist())]
        for now, g, j in sorted(runs):
            workers, role = np.array(self.programs[g].workers), self.programs[g].roles[j]
            who, warp_group = workers[self.level[workers, j] == now], slice(role.start, role.stop)
            mine = (slice(who[0], who[-1] + 1) if len(who) == who[-1] - who[0] + 1 else who), warp_group
            ahead = self.programs[g].ahead[j][self.programs[g].warp_class[warp_group]]
            column = who[:, None, None] + self.workers * np.arange(ahead.shape[1])
            own = who[:, None, None], np.arange(role.start, role.stop)[:, None], column
            state[own] = np.maximum(state[own], ahead)
            for wait in (w for w in self.counters.by_item.get((g, j), ()) if self.relaxed_waits or not w[0, WEAK]):
                keys, a = wait[who - workers[0]][:, [INSTANCE, AMOUNT]], int(wait[0, WARP])
                for key in dict.fromkeys(map(tuple, keys.tolist())):
                    waiters = who[(keys == key).all(axis=1)]
                    state[waiters, a] = np.maximum(state[waiters, a], self.claims.get(key, 0))
            self.starts[mine[0], j] = state[mine].min(axis=1)
            yield j, who, state
            for a, r in ((warp, r) for warp in role for r in self.readings.get((j, warp), ())):
                sets, which = r.sets
                known = [self.starts[w, r.writer[w]].max(axis=0, initial=0) for w in map(np.flatnonzero, sets)]
                state[who, a] = np.maximum(state[who, a], np.array(known)[which[who]])
            if self.programs[g].barrier[j]:
                state[mine] = state[mine].max(axis=1, keepdims=True)

    def check(self) -> None:
        """Every claim follows from the claims."""
        for (instance, threshold), claim in self.claims.items():
            require(self.holds(instance, threshold, claim).all(), "clocks: not a post-fixpoint")

    def holds(self, instance: int, threshold: int, claim: I64) -> Bools:
        """[warp classes]"""
        worker, item, weight, least, loose = self.counters.warp_groups(instance, self.relaxed_waits)
        amounts = loose + weight @ (self.starts[worker, item] < claim)
        for warp_class, missing in enumerate(least.T):
            own = worker + warp_class * self.workers
            last = (self.starts[worker, item, own] < claim[own]) & (claim[own] <= item + 1)
            np.subtract.at(amounts, own[last], missing[last])
        held: Bools = (claim == 0) | (amounts < threshold - self.counters.init[instance])
        return held

    def before(self, p: I64, q: I64) -> Bools:
        """Elementwise for rows (worker, item, warp, array): p is over before q starts, in every run. Within a step a
        warp orders what it does to one array."""
        p, q = p.T, q.T
        (w, i, a), (x, j, _) = p[:3], q[:3]
        column = self.column[w, a]
        over: Bools = (w == OUTSIDE) | (x == OUTSIDE) | (self.starts[x, j, column] > i)
        for more in (self.locally, self._of_warps, self._wherever):
            unsure = np.flatnonzero(~over)
            if len(unsure):
                over[unsure] = more(p[:, unsure], q[:, unsure])
        return over

    def locally(self, p: I64, q: I64) -> Bools:
        """By the order of one worker's warps."""
        (w, i, a), (x, j, b) = p[:3], q[:3]
        knows = self.ahead[self.group[x], j, self.counters.warp_class[x, b], self.counters.warp_class[w, a]]
        found: Bools = (p == q).all(axis=0) | ((w == x) & ((knows > i) | ((a == b) & (i < j))))
        return found

    def _wherever(self, p: I64, q: I64) -> Bools:
        """In each case of the position."""
        found: Bools = np.zeros(p.shape[1], bool)
        if self.readings:
            found = self.wherever[q[0], q[1], self.column[p[0], p[2]]] > p[1]
        return found

    @cached_property
    def wherever(self) -> I16:
        """At least `starts`: for each token, and each sequence with a position of its own, the least over all splits
        that its position may belong to."""
        found = self.starts
        for token, readers in product(range(TOKENS), self.words.together):
            known = (self._starts_with(self._read_by(token, readers, case)) for case in self.words.cases)
            found = np.maximum(found, reduce(np.minimum, known))
        return found

    def _read_by(self, token: int, readers: Bools, case: Readings) -> Readings:
        """What is read always, and what this token's items on these workers read in this case."""

        def mine(item: int, r: Reading) -> bool:
            groups = set(self.group[r.awaited.any(axis=1)].tolist())
            return {self.programs[g].items[item].token for g in groups} == {token}

        more = {at: [r.of(readers) for r in found if mine(at[0], r)] for at, found in case.items()}
        return {at: [*self.readings.get(at, ()), *more.get(at, ())] for at in {*self.readings, *more}}

    def _starts_with(self, readings: Readings) -> I16:
        case = copy(self)
        case.readings, case.starts = readings, np.zeros_like(self.starts)
        deque(case._states(), maxlen=0)
        return case.starts

    def _of_warps(self, p: I64, q: I64) -> Bools:
        """By what the warp that starts q knows, which is at least S, what all warps of the item know."""
        column = self.column[p[0], p[2]]
        known = np.zeros(len(column), np.int16)
        for j, who, state in self._states():
            at = np.flatnonzero((q[1] == j) & np.isin(q[0], who))
            known[at] = state[q[0, at], q[2, at], column[at]]
        over: Bools = known > p[1]
        return over


class Within:
    """The order of the warps of one worker, whatever other workers do: that of its program."""

    def __init__(self, order: Order) -> None:
        self.order = order

    def before(self, p: I64, q: I64) -> Bools:
        """As that of `Order`."""
        return self.order.locally(p.T, q.T)


class Bytes:
    """(3) and (4) for the accesses (columns: `footprints`) of one buffer. after_read, after_write: the orders that a
    write after a read, and anything after a write, must be in; tagged: a read follows its own write by definition."""

    def __init__(self, rows: I64, level: I64) -> None:
        when = level[rows[:, 0], np.maximum(rows[:, 1], 0)]
        when = np.where(rows[:, 0] == OUTSIDE, np.where(rows[:, 1] == 0, -1, 1 << 40), when)
        rows = rows[np.lexsort((rows[:, 6], rows[:, 2], rows[:, 0], when))]
        bounds = np.unique(rows[:, 4:6])
        first, last = np.searchsorted(bounds, rows[:, 4]), np.searchsorted(bounds, rows[:, 5])
        require(int((last - first).sum()) <= INCIDENCES, "schedule: too large")
        row, atom = spread(first, last)
        along = stable(atom)
        self.rows, self.row, self.atom = rows, row[along], atom[along]
        self.kind = np.ascontiguousarray(rows[:, 6])[self.row]
        self.fresh = np.concatenate(([True], self.atom[1:] != self.atom[:-1]))

    def check_races(self, after_read: Order, after_write: Order, tagged: bool, name: str) -> None:
        """(3)"""
        require(self.ordered(after_read, after_write, tagged), f"race: in {name}")

    def ordered(self, after_read: Order | Within, after_write: Order | Within, tagged: bool = False) -> bool:
        """Whether no two accesses race."""
        turns = np.concatenate(([True], self.kind[1:] != self.kind[:-1]))
        starts = np.flatnonzero(self.fresh | (self.kind == WRITE) | turns)
        size = np.diff(np.append(starts, len(self.row)))
        alone = self.fresh[starts] | (tagged & (self.kind[starts] == READ))
        previous = np.where(alone, 0, np.concatenate(([0], size[:-1])))
        require(int((previous * size).sum()) <= INCIDENCES, "schedule: too large")
        later, earlier = spread(np.repeat(starts - previous, size), np.repeat(starts, size))
        if after_read is not after_write:
            before, write = self._writes_around_reads()
            later, earlier = np.append(later, write), np.append(earlier, before)
        place = np.ascontiguousarray(self.rows[:, PLACE].T)
        read = self.kind[earlier] == READ
        for order, mine in ((after_read, read), (after_write, ~read)):
            for at in np.array_split(np.flatnonzero(mine), len(mine) // PART + 1):
                p, q = place.take(self.row[earlier[at]], axis=1), place.take(self.row[later[at]], axis=1)
                if not order.before(p.T, q.T).all():
                    return False
        return True

    def _writes_around_reads(self) -> tuple[I64, I64]:
        """Each write before which something is read, behind the write before it."""
        write = np.flatnonzero(self.kind == WRITE)
        apart = (np.diff(write) > 1) & (self.atom[write[1:]] == self.atom[write[:-1]])
        return write[:-1][apart], write[1:][apart]

    def check_values(self, name: str) -> None:
        """(4) Content is (value, displacement, tag); the tag of what is left at the end is nobody's concern."""
        place = np.where(self.kind == WRITE, np.arange(len(self.row)), -1)
        last = np.concatenate(([-1], np.maximum.accumulate(place)[:-1]))
        value, moved, tag, worker = (np.ascontiguousarray(self.rows[:, n]) for n in (7, 8, 10, 0))
        looked = np.flatnonzero((self.kind != WRITE) & (value[self.row] != DONT_CARE))
        last = last[looked]
        require(((last >= 0) & (self.atom[last] == self.atom[looked])).all(), f"dataflow: in {name}")
        found, meant = self.row[last], self.row[looked]
        same = (value[found] == value[meant]) & (moved[found] == moved[meant])
        same &= (tag[found] == tag[meant]) | (worker[meant] == OUTSIDE)
        require(same.all(), f"dataflow: in {name}")


def stable(keys: I64) -> I64:
    """Stable argsort of keys from 0 on: two passes over 16 bits each, which take linear time, or as numpy does it."""
    if not len(keys) or int(keys.max()) >= 1 << 32:
        return np.argsort(keys, kind="stable")
    order = np.argsort((keys & 0xFFFF).astype(np.uint16), kind="stable")
    if int(keys.max()) >> 16:
        order = order[np.argsort((keys[order] >> 16).astype(np.uint16), kind="stable")]
    return order
