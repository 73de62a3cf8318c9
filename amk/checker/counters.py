"""Waits and signals on counters as columns: worker, item, warp, instance, amount, weak.

weak marks what orders nothing but its own word: relaxed operations, and those on hints. Instances of all counters are
numbered in the order of the schedule, row-major.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from amk.checker.programs import Program, require
from amk.schedule_ir.expr import CONST, EPOCH, Env, Expr
from amk.schedule_ir.schedule import Schedule, Signal, Wait

I64 = npt.NDArray[np.int64]
WarpGroups = tuple[I64, I64, I64, I64, int]
WORKER, ITEM, WARP, INSTANCE, AMOUNT, WEAK = range(6)
MOST: Final = 1 << 40
WORD: Final = 1 << 32
ROWS: Final = 1 << 22
"""Waits, or signals, of all warps."""


class Counters:
    """init [instances]; waits, signals [n, 6] (signals of 0 are left out); awaited: pairs (instance, threshold).
    by_item: the waits by number of the program and of the item, each with a row for every worker of the program."""

    def __init__(self, schedule: Schedule, programs: list[Program]) -> None:
        ends = np.cumsum([0, *(c.count for c in schedule.counters)]).tolist()
        self.base = {c.name: (end, c) for c, end in zip(schedule.counters, ends, strict=False)}
        self.init = np.repeat([c.init for c in schedule.counters], [c.count for c in schedule.counters]).astype(
            np.int64
        )
        self.tables = {name: np.array(column, np.int64) for name, column in schedule.tables.items()}
        self.by_item: dict[tuple[int, int], list[I64]] = {}
        self.waits = self._all(programs, waiting=True)
        self.awaited = set(map(tuple, np.unique(self.waits[:, [INSTANCE, AMOUNT]], axis=0).tolist()))
        rows = self._all(programs, waiting=False)
        self.signals = rows[rows[:, AMOUNT] != 0]
        require((self.signals[:, AMOUNT] > 0).all(), "signals: a counter is decremented")
        require(all(c.compare == "lag" for c in schedule.counters), "class: a counter compared as unsigned")
        touched = np.unique(np.concatenate((self.waits, rows))[:, [INSTANCE, WORKER]], axis=0)[:, 0]
        narrow = np.repeat([c.scope == "cta" for c in schedule.counters], [c.count for c in schedule.counters])
        require(not narrow[touched[1:][touched[1:] == touched[:-1]]].any(), "scope: a block's counter joins several")
        self.warp_class = np.array(
            [p.warp_class for p in sorted(programs, key=lambda p: p.workers.start) for _ in p.workers]
        )
        self.warp_classes = int(self.warp_class.max()) + 1
        self._warp_groups: dict[tuple[int, bool], WarpGroups] = {}

    def warp_groups(self, instance: int, relaxed_waits: bool) -> WarpGroups:
        """(worker, item, weight, least, loose) of what the instance gets. Per warp group that signals: all that it
        gives, and for each warp class what is missing at least while one of its warps is not over; loose: what
        signals give that order nothing (none if `relaxed_waits`)."""
        key = instance, relaxed_waits
        if key not in self._warp_groups:
            rows = self.signals[self.signals[:, INSTANCE] == instance]
            weak = (rows[:, WEAK] != 0) & (not relaxed_waits)
            warp_groups, which = np.unique(rows[~weak][:, [WORKER, ITEM]], axis=0, return_inverse=True)
            each = np.zeros((len(warp_groups), self.warp_class.shape[1]), np.int64)
            np.add.at(each, (which.reshape(-1), rows[~weak, WARP]), rows[~weak, AMOUNT])
            least = np.full((len(warp_groups), self.warp_classes), MOST)
            np.minimum.at(least, (np.arange(len(warp_groups))[:, None], self.warp_class[warp_groups[:, 0]]), each)
            self._warp_groups[key] = (
                warp_groups[:, 0],
                warp_groups[:, 1],
                each.sum(axis=1),
                least,
                int(rows[weak, AMOUNT].sum()),
            )
        return self._warp_groups[key]

    def _all(self, programs: list[Program], waiting: bool) -> I64:
        found, rows = [np.zeros((0, 6), np.int64)], 0
        for g, program in enumerate(programs):
            workers = np.arange(program.workers.start, program.workers.stop)
            for j, item in enumerate(program.items):
                entries: tuple[Wait, ...] | tuple[Signal, ...] = item.step.waits if waiting else item.step.signals
                for entry in entries:
                    for agent, warp in enumerate(program.roles[j]):
                        env = Env(loops=item.loops, worker=workers, agent=agent, tables=self.tables)
                        found.append(self._rows(entry, env, workers, j, warp))
                        rows += len(workers)
                        require(rows <= ROWS, "schedule: too large")
                        if waiting:
                            self.by_item.setdefault((g, j), []).append(found[-1])
        return np.concatenate(found)

    def _rows(self, entry: Wait | Signal, env: Env, workers: I64, item: int, warp: int) -> I64:
        base, counter = self.base[entry.counter]
        rows = np.empty((len(workers), 6), np.int64)
        rows[:, WORKER], rows[:, ITEM], rows[:, WARP], rows[:, INSTANCE] = workers, item, warp, 0
        require(len(entry.index) == len(counter.shape), f"counters: index of '{counter.name}'")
        for size, expr in zip(counter.shape, entry.index, strict=True):
            place = np.broadcast_to(env.eval(expr), len(workers))
            require(((place >= 0) & (place < size)).all(), f"counters: index of '{counter.name}'")
            rows[:, INSTANCE] = rows[:, INSTANCE] * size + place
        rows[:, INSTANCE] += base
        amount = entry.at_least if isinstance(entry, Wait) else entry.add
        rows[:, AMOUNT] = env.eval(amount)
        require(all(fits(e, env) for e in (*entry.index, amount)), "counters: amount out of range")
        strong = entry.order == ("acquire" if isinstance(entry, Wait) else "release")
        rows[:, WEAK] = not strong or counter.handoff == "hint"
        return rows


def fits(expr: Expr, env: Env) -> bool:
    """The device computes it as meant: terms and their sum stay within the words that it has for them. Products of what
    differs between workers are signed 32-bit numbers there, the rest is unsigned and wraps."""
    if isinstance(expr, int):
        return abs(expr) < WORD
    terms = {name: np.abs(np.asarray(env.symbol(name)) * factor) for name, factor in expr.items()}
    signed = all((term < WORD // 2).all() for name, term in terms.items() if name not in (CONST, EPOCH))
    return signed and abs(expr.get(EPOCH, 0)) < WORD // 2 and bool(np.all(sum(terms.values()) < WORD))
