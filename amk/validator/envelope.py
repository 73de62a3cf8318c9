"""What every event may touch, over all positions, as columns ready for the race check.

The position moves with every token, but it decides only (1) which cache rows are touched, (2) which splits are active,
and waits and signals never depend on it. So one check of the *envelope* covers all positions:
  - accesses outside the cache grow with the position (more splits are active), so they are taken at the last position;
  - each worker's part of a cache is one unit per layer: appending writes the unit, attending reads it and expects the
    row of the current token. The unit is private to the worker: `position` proves that rows never cross workers and
    that the split that appends a row is the one that reads it. The cache ops are evaluated at a position that the
    worker's split owns, where they do all that they ever do.
Words that a step reads at some positions only give no order at the others, and candidates are not read for a token that
was given: `least` holds the reads of tagged words that always happen, in crews (team, node) of `moving`.
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

Cost: one evaluation per distinct environment of layer 0; the rest is array work. Whatever concerns one step alone is
kept for schedules that have the step too (`crews`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from amk.schedule_ir.ops import BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.rope_append import RopeAppendOp
from amk.schedule_ir.schedule import Schedule
from amk.validator.crews import Asked, Crewed
from amk.validator.evaluator import COLUMNS, SHARED
from amk.validator.footprint import Footprints
from amk.validator.local_order import crew as crew_node
from amk.validator.privates import ABSENT, Private
from amk.validator.slopes import TOKEN_BITS
from amk.validator.system import DONT_CARE, I64, READ, Bools
from amk.validator.trace import Item, Trace

NO_DATA: Final = (WaitOp, SignalOp, BarrierOp)
UNITS: Final = 3
"""Private memories of a worker: shared memory, its part of the key cache, its part of the value cache."""


@dataclass(frozen=True, eq=False)
class Team:
    """All workers of one program, and what each runs. node_base: number of the first node."""

    number: int
    first: int
    count: int
    trace: Trace
    node_base: int

    @property
    def nodes(self) -> int:
        """Of a worker: events and crews."""
        return self.trace.events + len(self.trace.items)


@dataclass(frozen=True, eq=False)
class Visit:
    """A step with data, in one layer or in all that follow from its own: times [n, 3]: (token + 1, layer, item)."""

    item: Item
    crew: Crewed
    repeats: bool
    times: I64


@dataclass(frozen=True, eq=False)
class Part:
    """What a team touches. private: the finished rows of private memory; base: number of each visit's first slot, one
    slot per agent; times: all (token + 1, layer); events, crews [times, slots]: nodes, -1 where there is none.
    """

    team: Team
    visits: list[Visit]
    base: list[int]
    times: list[tuple[int, int]]
    events: I64
    crews: I64
    private: list[I64]


@dataclass(frozen=True, eq=False)
class Placed:
    """Rows of a step's own layer with slopes, slots and workers (counted from the first); crewed: see `Joined`."""

    rows: I64
    slope: I64
    slot: I64
    worker: I64
    crewed: Bools


class Envelope:
    """Rows of one team after another: `columns()` [n, 7] at the end. classes counts the private memories."""

    def __init__(self, schedule: Schedule, footprints: Footprints) -> None:
        self.schedule, self.footprints = schedule, footprints
        self.private_base = len(schedule.buffers)
        self.tagged = [i for i, b in enumerate(schedule.buffers) if b.tagged]
        self.last = schedule.kv.context - 1
        self.classes = 0
        self.representatives: list[tuple[Team, int]] = []
        self.least: list[I64] = [np.zeros((0, COLUMNS + 1), np.int64)]
        self.moving: set[tuple[int, int]] = set()
        self._parts: list[tuple[Part, tuple[int, ...]]] = []
        self._caches: dict[int, int] = {}

    def columns(self, synced: tuple[tuple[int, int], ...]) -> I64:
        """Rows of all teams; synced: (program, number) of the steps that wait or signal."""
        found, acting, tagged = [np.zeros((0, COLUMNS + 1), np.int64)], frozenset(synced), tuple(self.tagged)
        for part, own in self._parts:
            found += part.private
            sites = [(int(v.item.site.path[1]), v.item.site.number) in acting for v in part.visits]
            joined = [v.crew.joined((own, tagged, acts)) for v, acts in zip(part.visits, sites, strict=True)]
            placed = [
                Placed(j.rows, j.slope, base + j.agent, j.worker, j.crewed)
                for j, base in zip(joined, part.base, strict=True)
            ]
            found += _spread(part, placed)
        return np.concatenate(found)

    def positions(self, item: Item, workers: range) -> tuple[int, ...]:
        """Where the op does all that it ever does: the end of the split's first block for cache ops, else the last."""
        op, kv = item.step.op, self.schedule.kv
        if not isinstance(op, RopeAppendOp | AttendOp):
            return (self.last,) * len(workers)
        self._caches |= {self.footprints.number[op.k_cache]: 1, self.footprints.number[op.v_cache]: 2}
        first = self.footprints.tables["attn.split"][workers.start : workers.stop] * kv.block
        place = np.where(first <= self.last, np.minimum(first + kv.block - 1, self.last), self.last)
        return tuple(place.tolist())

    def least_positions(self, item: Item, workers: range) -> tuple[int, ...]:
        """Where the op reads no more than it always does: the first position, for cache ops one of another split."""
        kv = self.schedule.kv
        if not isinstance(item.step.op, RopeAppendOp | AttendOp):
            return (0,) * len(workers)
        split = self.footprints.tables["attn.split"][workers.start : workers.stop]
        other = np.where(split == 0, kv.block, 0)
        return tuple(np.where((kv.splits > 1) & (other <= self.last), other, 0).tolist())

    def visits(self, team: Team) -> list[Visit]:
        """Steps with data, once per layer or token where those do not follow from each other."""
        trace = team.trace
        found: dict[tuple[int, int, int], tuple[Item, Crewed, bool]] = {}
        times: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
        irregular: set[int] = set()
        for i, item in enumerate(trace.items):
            if isinstance(item.step.op, NO_DATA):
                continue
            number, layer = item.site.number, item.loops.get("l", -1)
            repeats = number not in irregular and any(loop.count != 1 for loop in item.site.around if loop.var == "l")
            key = (number, layer if number in irregular else 0, item.token if layer < 0 else 0)
            if key not in found and not (crew := self._crew(team, item, repeats)).regular:
                irregular.add(number)
                key, repeats = (number, layer, 0), False
                crew = self._crew(team, item, False)
            if key not in found:
                found[key], times[key] = (item, crew, repeats), []
            times[key].append((item.token + 1, max(layer, 0), i))
        return [Visit(*visit, np.array(times[key], np.int64)) for key, visit in found.items()]

    def _crew(self, team: Team, item: Item, repeats: bool, least: bool = False) -> Crewed:
        workers = range(team.first, team.first + team.count)
        where = self.positions(item, workers)
        pos = self.least_positions(item, workers) if least else where
        agents = len(team.trace.roles[item.step.op.role])
        return self.footprints.crew(item, agents, Asked(workers, pos, where, repeats))

    def add(self, team: Team) -> None:
        """Rows of every worker of the team in global memory, and of one worker per class in private memory."""
        visits = self.visits(team)
        caches = tuple((cache, SHARED - unit) for cache, unit in self._caches.items())
        part = _part(team, visits)
        private = [v.crew.private(team.count, caches) for v in visits]
        number = self._classes(team, private)
        made = []
        for base, one in zip(part.base, private, strict=True):
            at = np.flatnonzero(number[one.worker] >= 0)
            rows, worker = one.rows[at], one.worker[at]
            rows[:, 0] = self.private_base + UNITS * number[worker] - 1 - rows[:, 0]
            made.append(Placed(rows, one.slope[at], base + one.agent[at], worker, np.zeros(len(at), bool)))
        part.private.extend(_spread(part, made))
        own = tuple(self._caches)
        self._parts.append((part, own))
        self._add_least(part, own)

    def _add_least(self, part: Part, own: tuple[int, ...]) -> None:
        """Reads of tagged words that happen at every position, for those steps whose reads depend on it."""
        moving: list[Placed] = []
        for visit, base in zip(part.visits, part.base, strict=True):
            reading = visit.crew.joined((own, tuple(self.tagged), False)).reading
            some = sorted(visit.crew.moving & reading)
            if some:
                crew = self._crew(part.team, visit.item, visit.repeats, least=True)
                words = np.isin(crew.rows[:, 0], self.tagged) & (crew.rows[:, 1] == READ)
                moving.append(_kept(crew, base, words & np.isin(crew.agent, some)))
            if some or (reading and visit.item.step.op.perhaps):
                events = part.team.trace
                self.moving |= {(part.team.number, crew_node(events, i)) for i in visit.times[:, 2].tolist()}
        for placed in moving:
            placed.crewed[:] = True
        self.least += _spread(part, moving)

    def _classes(self, team: Team, private: list[Private]) -> I64:
        """[workers] class number of each class's first worker, -1 for the others."""
        number = np.full(team.count, -1, np.int64)
        first: dict[int, I64] = {}
        prints = [np.zeros((team.count, 0), np.int64)]
        for one in private:
            prints.append(one.label[:, None])
            for family, delta in zip(one.families, one.delta.T, strict=True):
                known = first.get(family, delta)
                first[family] = np.where(known == ABSENT, delta, known)
                prints.append(np.where(delta == ABSENT, ABSENT, delta - first[family])[:, None])
        texts = [row.tobytes() for row in np.concatenate(prints, axis=1)]
        for worker in sorted({text: worker for worker, text in reversed([*enumerate(texts)])}.values()):
            number[worker] = self.classes
            self.classes += 1
            self.representatives.append((team, worker))
        return number


def _part(team: Team, visits: list[Visit]) -> Part:
    trace = team.trace
    roles = [trace.roles[v.item.step.op.role] for v in visits]
    base = np.cumsum([0, *(len(role) for role in roles)]).tolist()
    times = sorted({(token, layer) for v in visits for token, layer, _ in v.times.tolist()})
    number = {time: n for n, time in enumerate(times)}
    events, crews = (np.full((len(times), base[-1]), -1, np.int64) for _ in range(2))
    for visit, role, low, high in zip(visits, roles, base, base[1:], strict=False):
        for token, layer, item in visit.times.tolist():
            events[number[token, layer], low:high] = trace.event_of[item, role.start : role.stop]
            crews[number[token, layer], low:high] = crew_node(trace, item)
    return Part(team, visits, base[:-1], times, events, crews, [])


def _kept(crew: Crewed, base: int, some: Bools) -> Placed:
    """Some rows of a step, on their events."""
    at = np.flatnonzero(some)
    return Placed(crew.rows[at], crew.slope[at], base + crew.agent[at], crew.worker[at], np.zeros(len(at), bool))


def _concatenated(placed: list[Placed]) -> Placed:
    if not placed:
        none = np.zeros(0, np.int64)
        return Placed(np.zeros((0, COLUMNS), np.int64), np.zeros((0, 2), np.int64), none, none, none.astype(bool))
    return Placed(
        *(np.concatenate([getattr(p, n) for p in placed]) for n in ("rows", "slope", "slot", "worker", "crewed"))
    )


def _spread(part: Part, placed: list[Placed]) -> list[I64]:
    """Copies of the rows for every token and layer, on their events or on their crews."""
    made, team = _concatenated(placed), part.team
    based = np.empty((len(made.rows), COLUMNS + 1), np.int64)
    based[:, 0], based[:, 1:] = team.node_base + made.worker * team.nodes, made.rows
    named = (made.rows[:, 4] != DONT_CARE).astype(np.int64)
    moved, renamed = np.ascontiguousarray(made.slope[:, 0]), (made.slope[:, 1] << TOKEN_BITS) * named
    nodes = np.concatenate((part.events, part.crews), axis=1)
    which = made.slot + made.crewed * part.events.shape[1]
    spread: list[I64] = []
    for (token, layer), places in zip(part.times, nodes, strict=True):
        node = places.take(which)
        at = np.flatnonzero(node >= 0)
        rows = based.take(at, axis=0)
        rows[:, 0] += node.take(at)
        if layer:
            rows[:, 3:5] += (moved.take(at) * layer)[:, None]
        if layer or token:
            rows[:, 5] += renamed.take(at) * layer + named.take(at) * token
        spread.append(rows)
    return spread
