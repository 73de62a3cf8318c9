"""What each worker does in one token, with the numbers that time depends on.

The programs are unrolled by the validator's own expansion (`amk.validator.trace.unroll`), over a window of layers: all
layers have the same steps, so what they cost is the same and only counter indices differ.

Workers are grouped: two are alike when every step gives both the same work, the same chunks, the same waits and the
same signals. Where a worker's share starts does not change what it costs, only how much it is, so the `*.first` tables
are left out of the comparison; of a step's agents the first and the last are evaluated, one of whom has the largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from amk.schedule_ir.expr import Env, IntArray
from amk.schedule_ir.layout import StreamLayout, stream_layout
from amk.schedule_ir.ops import BarrierOp, Geometry, SignalOp, WaitOp, Work
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Loop, Node, Program, Schedule
from amk.validator.counter_events import Instances
from amk.validator.probe import Probe
from amk.validator.trace import Item, unroll

NO_WORK = Work(0, 0, 0, 0, 0)
Cell = int


class Share(NamedTuple):
    """What a worker does in one step: the busiest agent's work, bytes of the worker, chunks of each agent of a gemv."""

    work: Work
    near: int
    far: int
    chunks: tuple[int, ...]


NOTHING = Share(NO_WORK, 0, 0, ())


@dataclass(frozen=True, eq=False)
class Group:
    """`workers` that are alike. shares[site]; waits and signals per item: (cell, threshold), (cell, amount)."""

    program: int
    workers: tuple[int, ...]
    shares: tuple[Share, ...]
    waits: Mapping[int, tuple[tuple[Cell, int], ...]]
    signals: Mapping[int, tuple[tuple[Cell, int], ...]]
    fast: bool


@dataclass(frozen=True, eq=False)
class Window:
    """A schedule cut to `layers` layers; items[program] in order of execution for one token."""

    schedule: Schedule
    layers: int
    items: tuple[tuple[Item, ...], ...]
    groups: tuple[Group, ...]
    instances: Instances


def layer_count(schedule: Schedule) -> int:
    """How often the layer loops run."""
    counts = [n.count or 1 for p in schedule.programs for n in _loops(p.body) if n.var == "l"]
    return max(counts, default=1)


def window(schedule: Schedule, pos: int, layers: int, fast: tuple[bool, ...]) -> Window:
    """`schedule` at `pos`, its layer loops cut to `layers`; fast[w]: worker w runs on a faster SM."""
    cut = schedule.model_copy(update={"programs": tuple(_cut(p, layers) for p in schedule.programs)})
    items = tuple(tuple(unroll(p, n, 1)) for n, p in enumerate(cut.programs))
    instances = Instances(schedule.counters)
    maker = _Groups(cut, pos, items, instances, fast)
    groups = tuple(g for n in range(len(items)) for g in maker.of_program(n))
    return Window(cut, layers, items, groups, instances)


def _loops(body: tuple[Node, ...]) -> list[Loop]:
    found = [n for n in body if isinstance(n, Loop)]
    return [*found, *(inner for loop in found for inner in _loops(loop.body))]


def _cut(program: Program, layers: int) -> Program:
    def nodes(body: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(
            n.model_copy(
                update={"body": nodes(n.body), "count": min(n.count or 1, layers) if n.var == "l" else n.count}
            )
            if isinstance(n, Loop)
            else n
            for n in body
        )

    return program.model_copy(update={"body": nodes(program.body)})


class _Groups:
    """Finds workers that are alike."""

    def __init__(
        self, schedule: Schedule, pos: int, items: tuple[tuple[Item, ...], ...], instances: Instances,
        fast: tuple[bool, ...],
    ) -> None:  # fmt: skip
        self.schedule, self.pos, self.items, self.instances, self.fast = schedule, pos, items, instances, fast
        self.geometry: Geometry = schedule.geometry()
        self.lists = schedule.tables
        self.tables: dict[str, IntArray] = {n: np.array(c, np.int64) for n, c in schedule.tables.items()}
        self.layouts: dict[str, StreamLayout] = {s.name: stream_layout(schedule, s) for s in schedule.streams}

    def of_program(self, number: int) -> list[Group]:
        program, items = self.schedule.programs[number], self.items[number]
        workers = range(program.first, program.first + program.count)
        first: dict[int, Item] = {}
        for item in items:
            first.setdefault(item.site.number, item)
        shares = [self._site(first[n], workers) for n in sorted(first)]
        counters = {i: item for i, item in enumerate(items) if item.step.waits or item.step.signals}
        waits = {i: self._cells(item, workers, True) for i, item in counters.items() if item.step.waits}
        signals = {i: self._cells(item, workers, False) for i, item in counters.items() if item.step.signals}
        alike: dict[tuple[object, ...], list[int]] = {}
        for k, worker in enumerate(workers):
            same = (
                tuple(s[k] for s in shares), tuple(w[k] for w in waits.values()),
                tuple(s[k] for s in signals.values()), self.fast[worker],
            )  # fmt: skip
            alike.setdefault(same, []).append(k)
        return [
            Group(
                number, tuple(workers[k] for k in members), tuple(s[members[0]] for s in shares),
                {i: w[members[0]] for i, w in waits.items()}, {i: s[members[0]] for i, s in signals.items()},
                self.fast[workers[members[0]]],
            )
            for members in alike.values()
        ]  # fmt: skip

    def _cells(self, item: Item, workers: range, waiting: bool) -> list[tuple[tuple[Cell, int], ...]]:
        """Per worker: (counter instance, threshold or amount) of each wait or signal of the item."""
        env = Env(loops=item.loops, worker=np.arange(workers.start, workers.stop), tables=self.tables)
        columns = []
        for entry in item.step.waits if waiting else item.step.signals:
            counter = self.instances.by_name[entry.counter]
            flat = np.zeros(len(workers), np.int64)
            for dim, expr in zip(counter.shape, entry.index, strict=True):
                flat = flat * dim + env.eval(expr)
            amount = env.eval(entry.at_least if waiting else entry.add)  # type: ignore[union-attr]
            cells = (flat + self.instances.base[entry.counter]).tolist()
            columns.append(list(zip(cells, np.broadcast_to(amount, flat.shape).tolist(), strict=True)))
        return [tuple(pair for pair in row if waiting or pair[1]) for row in zip(*columns, strict=True)]

    def _site(self, item: Item, workers: range) -> list[Share]:
        op = item.step.op
        if isinstance(op, BarrierOp | WaitOp | SignalOp):
            return [NOTHING] * len(workers)
        known: dict[tuple[str, ...], dict[tuple[int, ...], Share]] = {}
        found = []
        for worker in workers:
            share = next(
                (
                    values[key]
                    for names, values in known.items()
                    if (key := tuple(self._read(n, worker, item) for n in names)) in values
                ),
                None,
            )
            found.append(self._fresh(item, worker, known) if share is None else share)
        return found

    def _read(self, name: str, worker: int, item: Item) -> int:
        if name in self.lists:
            value = self.lists[name][worker]
            return min(value, 0) if name == "attn.head" else value
        return worker if name == "worker" else self.pos if name == "pos" else item.loops.get(name, -1)

    def _fresh(self, item: Item, worker: int, known: dict[tuple[str, ...], dict[tuple[int, ...], Share]]) -> Share:
        op, names = item.step.op, set[str]()
        agents = self.geometry.role_size[op.role]
        works = []
        for agent in sorted({0, agents - 1}):
            env = Probe(item.loops, worker, agent, self.pos, self.tables)
            works.append(op.work(env, self.geometry))
            names |= set(object.__getattribute__(env, "log"))
        names = {n for n in names if not n.endswith(".first") and n not in ("l", "t", "n", "worker")}
        chunks: tuple[int, ...] = ()
        if isinstance(op, GemvOp):
            chunks = tuple(self.layouts[op.stream].counts[op.matrix, op.layer_at(item.loops)][worker].tolist())
        most = Work(*(max(column) for column in zip(*works, strict=True)))
        share = Share(
            most, sum(w.near for w in works) * agents // len(works), sum(w.far for w in works) * agents // len(works),
            chunks,
        )  # fmt: skip
        order = tuple(sorted(names))
        known.setdefault(order, {})[tuple(self._read(n, worker, item) for n in order)] = share
        return share
