"""What every event may touch, over all positions, as columns ready for the race check.

The position moves with every token, but it decides only (1) which cache rows are touched, (2) which splits are
active, and waits and signals never depend on it. So one check of the *position abstraction* covers all positions:
  - accesses outside the cache grow with the position (more splits are active), so they are taken at the last
  position;
  - each worker's part of a cache is one unit per layer: appending writes the unit, attending reads it and expects the
    row of the current token. The unit is private to the worker: `position` proves that rows never cross workers and
    that the split that appends a row is the one that reads it. The cache ops are evaluated at a position that the
    worker's split owns, where they do all that they ever do.
Words that a step reads at some positions only give no order at the others, and candidates are not read for a token
that was given: `least` holds the reads of flag words that always happen, in warp groups (CTA class, node) of
`moving`. A race in the position abstraction may be impossible at every single position; it is then confirmed or
refuted by the flat check.

In a live batch every sequence has a position of its own. Each worker is looked at where it does all that it ever does,
whatever others do, and what it always reads is what it reads at any position of its own: nothing here asks whether two
workers can be at those positions at once, so all combinations are covered (`static.sequences` decides what that needs).

Shared memory is checked for one worker of each class. Two workers are in one class if all their events have the same
shared-memory rows up to one displacement per value family (a consistent renaming of what the bytes hold).

Rows (event, buffer, kind, lo, hi, value, delta): global buffers keep their number, worker-private memory is numbered
behind them.

In global memory the rows of all agents of a step are joined and belong to its warp group, unless two agents touch a
common byte and one writes, or the step reads flag words: then only those reads belong to the warp group, because a
warp group as a node comes after the words of all its agents. Steps that wait or signal themselves are not joined
either.

Inside a layer loop the rows of layer l are those of layer 0 plus l times a slope per (step, buffer, kind, family):
`accesses` depends on the layer only through value indices and row offsets. The slope is measured between layers 0
and 1 on every agent of the first and the last worker, and for whatever those do not touch (they may own no rows of a
matrix) on the first worker that does; a step without a common slope is evaluated layer by layer.

Cost: one evaluation per distinct environment of layer 0; the rest is array work. Whatever concerns one step alone is
kept for schedules that have the step too (`warp_groups`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from amk.schedule_ir.ops import BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.rope_append import RopeAppendOp
from amk.schedule_ir.schedule import Schedule
from amk.validator.order.between_ctas import Group
from amk.validator.order.within_cta import warp_group as crew_node
from amk.validator.program.evaluator import COLUMNS, SHARED
from amk.validator.program.footprint import Footprints
from amk.validator.program.private_memory import ABSENT, Private
from amk.validator.program.slopes import TOKEN_BITS
from amk.validator.program.step_evaluation import Asked
from amk.validator.program.step_rows import Joined, StepRows
from amk.validator.program.system import DONT_CARE, I64, READ, Bools
from amk.validator.program.trace import Item, Trace

NO_DATA: Final = (WaitOp, SignalOp, BarrierOp)
UNITS: Final = 3
"""Private memories of a worker: shared memory, its part of the key cache, its part of the value cache."""


@dataclass(frozen=True, eq=False)
class Visit:
    """A step with data, in one layer or in all that follow from its own: times [n, 3]: (token + 1, layer, item)."""

    item: Item
    repeats: bool
    times: I64


@dataclass(frozen=True, eq=False)
class Layout:
    """When a worker visits its steps. base: number of each visit's first slot, one slot per agent; times: all
    (token + 1, layer); nodes [times, 2 slots]: of events, then of warp groups, -1 where there is none.
    """

    visits: list[Visit]
    base: list[int]
    times: list[tuple[int, int]]
    nodes: I64


@dataclass(frozen=True, eq=False)
class Part:
    """What a CTA class touches: a warp group per visit. own: caches; least: of a visit, the warp group where it
    reads least, and its agents that read flag words at some positions only."""

    cta_class: Group
    layout: Layout
    warp_groups: list[StepRows]
    own: tuple[int, ...]
    least: list[tuple[int, StepRows, tuple[int, ...]]]


@dataclass(frozen=True, eq=False)
class Placed:
    """Rows of a step's own layer with slopes, slots and workers (counted from the first); grouped: see `Joined`."""

    rows: I64
    slope: I64
    slot: I64
    worker: I64
    grouped: Bools


class PositionAbstraction:
    """Rows [n, 7] of one CTA class after another. private: those of private memory; classes counts these memories."""

    def __init__(self, schedule: Schedule, footprints: Footprints) -> None:
        self.schedule, self.footprints = schedule, footprints
        self.private_base = len(schedule.buffers)
        self.tagged = [i for i, b in enumerate(schedule.buffers) if b.tagged]
        self.last = schedule.kv.context - schedule.rows
        self.classes = 0
        self.moving: set[tuple[int, int]] = set()
        self.private: list[I64] = [np.zeros((0, COLUMNS + 1), np.int64)]
        self._parts: list[Part] = []
        self._caches: dict[int, int] = {}

    def _joined(self, part: Part) -> list[Joined]:
        """What a CTA class touches in global memory."""
        steps = [v.item.step for v in part.layout.visits]
        return [
            warp_group.joined((part.own, tuple(self.tagged), bool(step.waits or step.signals)))
            for warp_group, step in zip(part.warp_groups, steps, strict=True)
        ]

    def common(self) -> tuple[I64, I64]:
        """Rows of all CTA classes in global memory; and reads of flag words that happen at every position."""
        rows, least = ([np.zeros((0, COLUMNS + 1), np.int64)] for _ in range(2))
        for part in self._parts:
            base = part.layout.base
            placed = zip(self._joined(part), base, strict=True)
            rows += _spread(part, [Placed(j.rows, j.slope, b + j.agent, j.worker, j.grouped) for j, b in placed])
            least += _spread(
                part, [_kept(warp_group, base[at], some, self.tagged) for at, warp_group, some in part.least]
            )
        return np.concatenate(rows), np.concatenate(least)

    def positions(self, item: Item, workers: range) -> tuple[int, ...]:
        """Where the op does all that it ever does: else than for cache ops the last position; for them the end of the
        split's first block, where the block has all rows of the step."""
        op, kv = item.step.op, self.schedule.kv
        if not isinstance(op, RopeAppendOp | AttendOp):
            return (self.last,) * len(workers)
        self._caches |= {self.footprints.number[op.k_cache]: 1, self.footprints.number[op.v_cache]: 2}
        first = self.footprints.tables["attn.split"][workers.start : workers.stop] * kv.block
        place = np.where(first <= self.last, np.minimum(first + kv.block - self.schedule.rows, self.last), self.last)
        return tuple(place.tolist())

    def least_positions(self, item: Item, workers: range) -> tuple[int, ...]:
        """Where the op reads no more than it always does: the first position, for cache ops one of another split."""
        kv = self.schedule.kv
        if not isinstance(item.step.op, RopeAppendOp | AttendOp):
            return (0,) * len(workers)
        split = self.footprints.tables["attn.split"][workers.start : workers.stop]
        other = np.where(split == 0, kv.block, 0)
        return tuple(np.where((kv.splits > 1) & (other <= self.last), other, 0).tolist())

    def _visited(self, cta_class: Group) -> tuple[Layout, list[StepRows]]:
        """Steps with data, once per layer or token where those do not follow from each other."""
        irregular: frozenset[int] = frozenset()
        while True:
            layout, warp_groups = layout_of(cta_class.order.trace, irregular), list[StepRows]()
            for visit in layout.visits:
                warp_groups.append(self._crew(cta_class, visit))
                if not warp_groups[-1].regular:
                    irregular |= {visit.item.site.number}
                    break
            else:
                return layout, warp_groups

    def _crew(self, cta_class: Group, visit: Visit, least: bool = False) -> StepRows:
        workers, item = range(cta_class.first, cta_class.first + cta_class.count), visit.item
        where = self.positions(item, workers)
        pos = self.least_positions(item, workers) if least else where
        agents = len(cta_class.order.trace.roles[item.step.op.role])
        return self.footprints.warp_group(item, agents, Asked(workers, pos, where, visit.repeats))

    def add(self, cta_class: Group) -> None:
        """Rows of every worker of the CTA class in global memory, and of one worker per class in private memory."""
        layout, warp_groups = self._visited(cta_class)
        caches = tuple((cache, SHARED - unit) for cache, unit in self._caches.items())
        part = Part(cta_class, layout, warp_groups, tuple(self._caches), self._least(cta_class, layout, warp_groups))
        private = [warp_group.private(cta_class.count, caches) for warp_group in warp_groups]
        number = self._classes(cta_class, private)
        made = []
        for base, one in zip(layout.base, private, strict=True):
            at = np.flatnonzero(number[one.worker] >= 0)
            rows, worker = one.rows[at], one.worker[at]
            rows[:, 0] = self.private_base + UNITS * number[worker] - 1 - rows[:, 0]
            made.append(Placed(rows, one.slope[at], base + one.agent[at], worker, np.zeros(len(at), bool)))
        self.private += _spread(part, made)
        self._parts.append(part)

    def _least(
        self, cta_class: Group, layout: Layout, warp_groups: list[StepRows]
    ) -> list[tuple[int, StepRows, tuple[int, ...]]]:
        """Warp groups of those steps whose reads of flag words depend on the position, where these always happen."""
        found, kinds = [], (tuple(self._caches), tuple(self.tagged), False)
        for at, (visit, warp_group) in enumerate(zip(layout.visits, warp_groups, strict=True)):
            reading = warp_group.joined(kinds).reading
            some = tuple(sorted(warp_group.moving & reading))
            if some:
                found.append((at, self._crew(cta_class, visit, least=True), some))
            if some or (reading and visit.item.step.op.perhaps):
                self.moving |= {
                    (cta_class.number, crew_node(cta_class.order.trace, i)) for i in visit.times[:, 2].tolist()
                }
        return found

    def _classes(self, cta_class: Group, private: list[Private]) -> I64:
        """[workers] class number of each class's first worker, -1 for the others."""
        number = np.full(cta_class.count, -1, np.int64)
        first: dict[int, I64] = {}
        prints = [np.zeros((cta_class.count, 0), np.int64)]
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
        return number


def layout_of(trace: Trace, irregular: frozenset[int] = frozenset()) -> Layout:
    """irregular: numbers of the steps whose layers do not follow from each other."""
    return _laid_out(trace, _visits(trace, irregular))


def _visits(trace: Trace, irregular: frozenset[int]) -> list[Visit]:
    found: dict[tuple[int, int, int], tuple[Item, bool]] = {}
    times: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
    for i, item in enumerate(trace.items):
        if isinstance(item.step.op, NO_DATA):
            continue
        number, layer = item.site.number, item.loops.get("l", -1)
        repeats = number not in irregular and any(loop.count != 1 for loop in item.site.around if loop.var == "l")
        key = (number, layer if number in irregular else 0, item.token if layer < 0 else 0)
        if key not in found:
            found[key], times[key] = (item, repeats), []
        times[key].append((item.token + 1, max(layer, 0), i))
    return [Visit(*visit, np.array(times[key], np.int64)) for key, visit in found.items()]


def _laid_out(trace: Trace, visits: list[Visit]) -> Layout:
    roles = [trace.roles[v.item.step.op.role] for v in visits]
    base = np.cumsum([0, *(len(role) for role in roles)]).tolist()
    times = sorted({(token, layer) for v in visits for token, layer, _ in v.times.tolist()})
    number = {time: n for n, time in enumerate(times)}
    nodes = np.full((len(times), 2, base[-1]), -1, np.int64)
    for visit, role, low, high in zip(visits, roles, base, base[1:], strict=False):
        for token, layer, item in visit.times.tolist():
            nodes[number[token, layer], 0, low:high] = trace.event_of[item, role.start : role.stop]
            nodes[number[token, layer], 1, low:high] = crew_node(trace, item)
    nodes = nodes.reshape(len(times), 2 * base[-1])
    return Layout(visits, base[:-1], times, nodes)


def _kept(warp_group: StepRows, base: int, some: tuple[int, ...], tagged: list[int]) -> Placed:
    """Reads of flag words by some agents, on their warp groups."""
    words = np.isin(warp_group.rows[:, 0], tagged) & (warp_group.rows[:, 1] == READ)
    at = np.flatnonzero(words & np.isin(warp_group.agent, some))
    return Placed(
        warp_group.rows[at],
        warp_group.slope[at],
        base + warp_group.agent[at],
        warp_group.worker[at],
        np.ones(len(at), bool),
    )


def _concatenated(placed: list[Placed]) -> Placed:
    if not placed:
        none = np.zeros(0, np.int64)
        return Placed(np.zeros((0, COLUMNS), np.int64), np.zeros((0, 2), np.int64), none, none, none.astype(bool))
    return Placed(
        *(np.concatenate([getattr(p, n) for p in placed]) for n in ("rows", "slope", "slot", "worker", "grouped"))
    )


def _spread(part: Part, placed: list[Placed]) -> list[I64]:
    """Copies of the rows for every token and layer, on their events or on their warp groups."""
    made, cta_class = _concatenated(placed), part.cta_class
    based = np.empty((len(made.rows), COLUMNS + 1), np.int64)
    based[:, 0], based[:, 1:] = cta_class.node_base + made.worker * cta_class.nodes, made.rows
    named = (made.rows[:, 4] != DONT_CARE).astype(np.int64)
    moved, renamed = np.ascontiguousarray(made.slope[:, 0]), (made.slope[:, 1] << TOKEN_BITS) * named
    layout = part.layout
    which = made.slot + made.grouped * (layout.nodes.shape[1] // 2)
    spread: list[I64] = []
    for (token, layer), places in zip(layout.times, layout.nodes, strict=True):
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
