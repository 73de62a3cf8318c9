"""What each worker does in one token, with the numbers that time depends on.

The programs are unrolled as the validator does (`amk.validator.program.trace.unroll`), over a window of layers: all
layers have the same steps, so what they cost is the same and only counter indices differ.

Workers are grouped: two are alike when every step gives both the same work, the same chunks, the same waits and the
same signals. A worker's share costs what its size says, wherever it starts, so the `*.first` tables are left out of the
comparison. Of a step's agents the first and the last are evaluated, one of whom has the largest share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from amk.schedule_ir.expr import Env, IntArray
from amk.schedule_ir.layout import StreamLayout, stream_layout
from amk.schedule_ir.ops import BarrierOp, Geometry, SignalOp, WaitOp, Work
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Loop, Node, Program, Schedule, Wait
from amk.simulator.probe import Probe
from amk.validator.program.handoffs import Instances
from amk.validator.program.trace import Item, Path, unroll

NO_WORK = Work(0, 0, 0, 0, 0)
Cell = int
Cells = tuple[tuple[Cell, int], ...]


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
    waits: Mapping[int, Cells]
    signals: Mapping[int, Cells]
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


class Unrolled:
    """A schedule with its layer loops cut to `layers`, unrolled once for all positions. counters[program]: what
    workers wait for and signal, which no position changes.
    """

    def __init__(self, schedule: Schedule, layers: int) -> None:
        self.layers = layers
        self.schedule = schedule.model_copy(update={"programs": tuple(_cut(p, layers) for p in schedule.programs)})
        self.items = tuple(tuple(unroll(p, n, 1)) for n, p in enumerate(self.schedule.programs))
        self.instances = Instances(schedule.counters)
        self.geometry: Geometry = self.schedule.geometry()
        self.lists = schedule.tables
        self.tables: dict[str, IntArray] = {n: np.array(c, np.int64) for n, c in schedule.tables.items()}
        self.layouts: dict[str, StreamLayout] = {s.name: stream_layout(self.schedule, s) for s in schedule.streams}
        self.counters = [self._counters(n) for n in range(len(self.items))]
        self.differing = [differing([*w.values(), *s.values()]) for w, s in self.counters]
        self.shares: dict[Path, dict[tuple[str, ...], dict[tuple[int, ...], Share]]] = {}

    def at(self, pos: int, fast: tuple[bool, ...]) -> Window:
        """Groups of workers that are alike at this position; fast[w]: worker w runs on a faster SM."""
        groups = tuple(g for n in range(len(self.items)) for g in self._groups(n, pos, fast))
        return Window(self.schedule, self.layers, self.items, groups, self.instances)

    def _workers(self, number: int) -> range:
        program = self.schedule.programs[number]
        return range(program.first, program.first + program.count)

    def _groups(self, number: int, pos: int, fast: tuple[bool, ...]) -> list[Group]:
        workers = self._workers(number)
        first: dict[int, Item] = {}
        for item in self.items[number]:
            first.setdefault(item.site.number, item)
        shares = [self._site(first[n], workers, pos) for n in sorted(first)]
        waits, signals = self.counters[number]
        alike: dict[tuple[object, ...], list[int]] = {}
        columns = [[fast[w] for w in workers], *differing(shares), *self.differing[number]]
        for k, same in enumerate(zip(*columns, strict=True)):
            alike.setdefault(same, []).append(k)
        return [
            Group(
                number, tuple(workers[k] for k in members), tuple(s[members[0]] for s in shares),
                {i: w[members[0]] for i, w in waits.items()}, {i: s[members[0]] for i, s in signals.items()},
                fast[workers[members[0]]],
            )
            for members in alike.values()
        ]  # fmt: skip

    def _counters(self, number: int) -> tuple[dict[int, list[Cells]], dict[int, list[Cells]]]:
        """Per item that has them, of each worker: waits and signals."""
        workers, cells = self._workers(number), (dict[int, list[Cells]](), dict[int, list[Cells]]())
        for i, item in enumerate(self.items[number]):
            if item.step.waits:
                cells[0][i] = self._cells(item, workers, True)
            if item.step.signals:
                cells[1][i] = self._cells(item, workers, False)
        return cells

    def _cells(self, item: Item, workers: range, waiting: bool) -> list[Cells]:
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
        if waiting:
            return list(zip(*columns, strict=True))
        return [tuple(pair for pair in row if pair[1]) for row in zip(*columns, strict=True)]

    def _site(self, item: Item, workers: range, pos: int) -> list[Share]:
        """What each worker does in the step; looked up if nothing that it depends on differs from what others have."""
        if isinstance(item.step.op, BarrierOp | WaitOp | SignalOp):
            return [NOTHING] * len(workers)
        known = self.shares.setdefault(item.site.path, {})
        keys: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
        shares = []
        for k, worker in enumerate(workers):
            share = None
            for names, values in known.items():
                if names not in keys:
                    keys[names] = self._read(names, workers, item, pos)
                share = values.get(keys[names][k])
                if share is not None:
                    break
            if share is None:
                names, share = self._fresh(item, worker, pos)
                if names not in keys:
                    keys[names] = self._read(names, workers, item, pos)
                known.setdefault(names, {})[keys[names][k]] = share
            shares.append(share)
        return shares

    def _read(self, names: tuple[str, ...], workers: range, item: Item, pos: int) -> list[tuple[int, ...]]:
        """The values of `names` for each worker."""
        columns: list[Sequence[int]] = []
        for name in names:
            if name in self.lists:
                column = self.lists[name][workers.start : workers.stop]
                columns.append([min(value, 0) for value in column] if name == "attn.head" else column)
            else:
                columns.append([pos if name == "pos" else item.loops.get(name, -1)] * len(workers))
        return list(zip(*columns, strict=True)) if columns else [()] * len(workers)

    def _fresh(self, item: Item, worker: int, pos: int) -> tuple[tuple[str, ...], Share]:
        """What a worker does in the step, and the names of what that depends on."""
        op, names = item.step.op, set[str]()
        agents = self.geometry.role_size[op.role]
        works = []
        for agent in sorted({0, agents - 1}):
            env = Probe(item.loops, worker, agent, pos, self.tables)
            works.append(op.work(env, self.geometry))
            names |= set(object.__getattribute__(env, "log"))
        names = {n for n in names if not n.endswith(".first") and n not in ("l", "t", "n", "worker")}
        chunks: tuple[int, ...] = ()
        if isinstance(op, GemvOp):
            chunks = tuple(self.layouts[op.stream].counts[op.matrix, op.layer_at(item.loops)][worker].tolist())
        most = Work(*(max(column) for column in zip(*works, strict=True)))
        near, far = (sum(getattr(w, kind) for w in works) * agents // len(works) for kind in ("near", "far"))
        return tuple(sorted(names)), Share(most, near, far, chunks)


def differing(columns: Iterable[Sequence[object]]) -> list[Sequence[object]]:
    """The columns that are not the same value throughout."""
    return [column for column in columns if any(value is not column[0] and value != column[0] for value in column)]


def _loops(body: tuple[Node, ...]) -> list[Loop]:
    outer = [n for n in body if isinstance(n, Loop)]
    return [*outer, *(inner for loop in outer for inner in _loops(loop.body))]


def _cut(program: Program, layers: int) -> Program:
    """The program of fewer layers; a wait for what the last layer gives is then for what its last one does."""
    ends = {n.count: min(n.count, layers) for n in _loops(program.body) if n.var == "l" and n.count}

    def node(n: Node) -> Node:
        if isinstance(n, Loop):
            inside = {"count": min(n.count or 1, layers)} if n.var == "l" else {"body": tuple(map(node, n.body))}
            return n.model_copy(update=inside)
        waits = tuple(_ended(wait, ends) for wait in n.waits)
        return n if waits == n.waits else n.model_copy(update={"waits": waits})

    return program.model_copy(update={"body": tuple(map(node, program.body))})


def _ended(wait: Wait, ends: Mapping[int, int]) -> Wait:
    """The wait with the number of a loop's layers replaced by that of the cut loop where it counts them."""
    index = tuple(ends.get(i, i) if isinstance(i, int) else i for i in wait.index)
    return wait if index == wait.index else wait.model_copy(update={"index": index})
