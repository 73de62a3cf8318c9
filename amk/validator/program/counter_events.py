"""Waits and signals on global counters, evaluated for every worker of a program at once.

A counter instance is one cell of a counter family; instances of all families are numbered in schedule order. Rows are
(worker, local event, instance, threshold or amount, weak): weak marks operations that order no memory but their own
word - relaxed ones, and those on hints.

Only steps that wait or signal are visited; expressions are evaluated on arrays over the workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Counter
from amk.schedule_ir.schedule import Schedule, Signal, Wait
from amk.validator.program.system import I64
from amk.validator.program.trace import Trace

ROW = 5


@dataclass(frozen=True, eq=False)
class Instances:
    """Numbering of counter instances: instance = base[family] + row-major index."""

    counters: tuple[Counter, ...]

    @cached_property
    def base(self) -> dict[str, int]:
        ends = np.cumsum([0, *(c.count for c in self.counters)]).tolist()
        return {c.name: int(b) for c, b in zip(self.counters, ends, strict=False)}

    @cached_property
    def by_name(self) -> dict[str, Counter]:
        return {c.name: c for c in self.counters}

    @cached_property
    def total(self) -> int:
        return sum(c.count for c in self.counters)

    def init(self) -> I64:
        return np.repeat([c.init for c in self.counters], [c.count for c in self.counters]).astype(np.int64)

    def family(self, instance: int) -> tuple[Counter, tuple[int, ...]]:
        """(counter, index) of an instance."""
        for counter in self.counters:
            offset = instance - self.base[counter.name]
            if 0 <= offset < counter.count:
                return counter, tuple(int(i) for i in np.unravel_index(offset, counter.shape))
        raise IndexError(instance)

    def name(self, instance: int) -> str:
        counter, index = self.family(instance)
        return f"{counter.name}[{','.join(map(str, index))}]"


class CounterEvents:
    """Evaluates the waits and signals of one trace for workers [first, first + count)."""

    def __init__(self, schedule: Schedule, trace: Trace, instances: Instances) -> None:
        self.schedule, self.trace, self.instances = schedule, trace, instances
        program = trace.program
        self.workers = np.arange(program.first, program.first + program.count)
        self.tables = {name: np.array(column, dtype=np.int64) for name, column in schedule.tables.items()}

    @cached_property
    def waits(self) -> I64:
        """[n, 5] (worker, event, instance, threshold, weak)."""
        return self._rows(waiting=True)

    @cached_property
    def signals(self) -> I64:
        """[n, 5] (worker, event, instance, amount, weak); amount 0 is left out."""
        rows = self._rows(waiting=False)
        kept: I64 = rows[rows[:, 3] != 0]
        return kept

    def _rows(self, waiting: bool) -> I64:
        found: list[I64] = []
        for i, item in enumerate(self.trace.items):
            entries: tuple[Wait, ...] | tuple[Signal, ...] = item.step.waits if waiting else item.step.signals
            if not entries:
                continue
            role = self.trace.roles[item.step.op.role]
            for warp in role:
                event = int(self.trace.event_of[i, warp])
                if not waiting and event + 1 < self.trace.events and self.trace.leave[event + 1]:
                    event += 1
                found += [self._row(entry, event, item.loops, warp - role.start) for entry in entries]
        return np.concatenate(found) if found else np.zeros((0, ROW), np.int64)

    def _row(self, entry: Wait | Signal, event: int, loops: dict[str, int], agent: int) -> I64:
        env = Env(loops=loops, worker=self.workers, agent=agent, tables=self.tables)
        waiting = isinstance(entry, Wait)
        amount = entry.at_least if isinstance(entry, Wait) else entry.add
        strong = entry.order == ("acquire" if waiting else "release")
        rows = np.empty((len(self.workers), ROW), np.int64)
        rows[:, 0], rows[:, 1] = self.workers, event
        rows[:, 2] = self._instance(entry, env)
        rows[:, 3] = env.eval(amount)
        rows[:, 4] = not strong or self.instances.by_name[entry.counter].handoff == "hint"
        return rows

    def _instance(self, entry: Wait | Signal, env: Env) -> I64:
        counter = self.instances.by_name[entry.counter]
        flat = np.zeros(len(self.workers), np.int64)
        for dim, expr in zip(counter.shape, entry.index, strict=True):
            flat = flat * dim + env.eval(expr)
        flat += self.instances.base[entry.counter]
        return flat
