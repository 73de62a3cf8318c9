"""Evaluates what one step touches on all warps of its role and all workers of a program, and how that follows layers.

Property: all of it is a function of the op, the geometry that it may read, its loop variables, workers, positions and
the tables that evaluations read; so it is kept (by the evaluator of the first agent) under the former, and looked up
by the columns of the latter. What is kept knows nothing of the steps around it: a schedule that differs from an
earlier one in a step or in the order of steps finds all others here. Where shared buffers lie says only where the
rows of private memory are and which of these buffers meet: the rest is made once (`Afloat`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from amk.validator.program.aliases import Clash, Meeting, meet, united
from amk.validator.program.evaluation import Change, Footprint, Rows
from amk.validator.program.evaluator import Evaluator, Unplaced
from amk.validator.program.slopes import FAMILY_SHIFT, Slope
from amk.validator.program.step_rows import HERE, Afloat, StepRows
from amk.validator.program.system import I64, WRITE
from amk.validator.program.tables import Tables

APART: Final = 1 << 40


@dataclass(frozen=True)
class Asked:
    """Where a step is looked at: `pos` by worker, and `where` slopes are measured, if it repeats."""

    workers: range
    pos: tuple[int, ...]
    where: tuple[int, ...]
    repeats: bool


def grouped(
    evaluator: Callable[[int], Evaluator], agents: int, loops: dict[str, int], asked: Asked, tables: Tables
) -> StepRows:
    """evaluator: that of each agent. Loop variables that are not read may have any values."""
    first = evaluator(0)
    known = [_key(agents, asked, read, loops) for read in first.unplaced.reads]
    for key in known:
        if (warp_group := first.warp_groups.find(key, tables)) is not None:
            return warp_group

    def each() -> list[Evaluator]:
        return [evaluator(agent) for agent in range(agents)]

    found = (first.unplaced.warp_groups.find(key, tables) for key in known)
    afloat = next((one for one in found if one is not None), None)
    if afloat is None:
        afloat = _Maker([one.unplaced for one in each()], loops, asked, tables).made()
        first.unplaced.reads += [afloat.loops] if afloat.loops not in first.unplaced.reads else []
        first.unplaced.warp_groups.put(_key(agents, asked, afloat.loops, loops), tables, afloat)
    if not afloat.anywhere:
        warp_group = _Maker(each(), loops, asked, tables).made().warp_group
    else:
        first.kept += afloat.warp_group.rows.nbytes
        some = bool(first.meeting) and _may_clash(afloat, first.unplaced, first.meeting)
        clash = _clash(afloat, each(), loops, asked, tables) if some else None
        warp_group = replace(afloat.warp_group, starts=first.starts, clash=clash, privates={})
    return first.warp_groups.put(_key(agents, asked, afloat.loops, loops), tables, warp_group)


def _key(agents: int, asked: Asked, read: tuple[str, ...], loops: dict[str, int]) -> tuple[object, ...]:
    return agents, asked, read, tuple(loops[name] for name in read)


def _clash(afloat: Afloat, each: list[Evaluator], loops: dict[str, int], asked: Asked, tables: Tables) -> Clash | None:
    """The first that there is."""
    layers, meeting = (loops, loops | {"l": loops.get("l", 0) + 1}), each[0].meeting
    for agent, pos, change in afloat.measured:
        for n, (worker, one) in enumerate(change.seen):
            clash = each[agent].unplaced.clash(meeting, one.rows, layers[n % 2], worker, pos[n // 2], tables)
            if clash is not None:
                return clash
    for agent, rows in enumerate(afloat.each):
        clash = each[agent].unplaced.clash_of(meeting, rows, loops, asked.workers, asked.pos, tables)
        if clash is not None:
            return clash
    return None


def _may_clash(afloat: Afloat, unplaced: Unplaced, meeting: list[Meeting]) -> bool:
    """False only if no accesses of one agent clash in any layer that was looked at; see `Unplaced.may_clash`."""
    for one, two, gap in meeting:
        if not unplaced.constant.isdisjoint((one, two)):
            return True
        (write, every), (other, others) = (_spans(afloat, unplaced.number[name]) for name in (one, two))
        if meet(write, others + gap) or meet(every, other + gap):
            return True
    return False


def _spans(afloat: Afloat, buffer: int) -> tuple[I64, I64]:
    """Bytes [n, 2] of a buffer that some worker writes, and those that it touches: apart, in order. Agents have their
    bytes to themselves, `APART` from each other."""
    if buffer not in afloat.spans:
        found = [(agent, one.rows) for agent, _, change in afloat.measured for _, one in change.seen]
        found += [(agent, one.rows) for agent, one in enumerate(afloat.each)]
        rows = np.concatenate([rows for _, rows in found])
        agent = np.repeat([agent for agent, _ in found], [len(rows) for _, rows in found])
        at = np.flatnonzero(rows[:, 0] == buffer)
        spans, written = rows[at, 2:4] + (agent[at] * APART)[:, None], rows[at, 1] == WRITE
        afloat.spans[buffer] = united(spans[written]), united(spans)
    return afloat.spans[buffer]


class _Maker:
    def __init__(
        self, each: Sequence[Evaluator | Unplaced], loops: dict[str, int], asked: Asked, tables: Tables
    ) -> None:
        self.evaluators, self.loops, self.asked, self.tables = each, loops, asked, tables
        self.slope: Slope = {}
        self.measured: list[tuple[int, list[int], Change]] = []

    def made(self) -> Afloat:
        """Of shared buffers as the evaluators know them."""
        warp_group, each = self._made()
        self.evaluators[0].kept += 2 * (
            warp_group.rows.nbytes + warp_group.slope.nbytes + warp_group.agent.nbytes + warp_group.worker.nbytes
        )
        seen = [name for *_, change in self.measured for _, one in change.seen for name in one.names]
        read = frozenset(seen).intersection(self.loops).union(*(one.loops for one in each))
        anywhere = all(change.anywhere for *_, change in self.measured)
        return Afloat(warp_group, anywhere, self.measured, each, tuple(sorted(read)))

    def _made(self) -> tuple[StepRows, list[Rows]]:
        workers = self.asked.workers
        ends = tuple(dict.fromkeys((workers.start, workers.stop - 1)))
        regular = not self.asked.repeats or all(self._measure(agent, ends) for agent in range(len(self.evaluators)))
        if not regular:
            return self._irregular(), []
        each = [e.rows(self.loops, workers, self.asked.pos, self.tables) for e in self.evaluators]
        rows = np.concatenate([one.rows for one in each])
        agent = np.repeat(np.arange(len(each)), [len(one.rows) for one in each])
        worker = np.concatenate([np.repeat(np.arange(len(workers)), one.counts) for one in each])
        if self.asked.repeats and not self._complete(rows, agent, worker):
            return self._irregular(), []
        return self._with(rows, each, agent, worker, True), each

    def _irregular(self) -> StepRows:
        none = np.zeros(0, np.int64)
        return self._with(np.zeros((0, 6), np.int64), [], none, none.copy(), False)

    def _with(self, rows: I64, each: list[Rows], agent: I64, worker: I64, regular: bool) -> StepRows:
        changes = [change for *_, change in self.measured]
        seen = [one for change in changes for one in change.seen]
        found: list[Footprint | Rows] = [*(footprint for _, footprint in seen), *each]
        beyond = [(w, f.beyond) for w, f in seen if f.beyond is not None]
        beyond += [one.beyond for one in each if one.beyond is not None]
        clashes = [f.clash for f in found if f.clash is not None]
        constants = frozenset(c for f in found for c in f.constants)
        moving = frozenset(agent for agent, one in enumerate(each) if one.positional)
        read: list[Change | Rows] = [*changes, *each]
        names = {name for one in read for name in one.names}
        slope = self._slopes(rows)
        for array in (rows, slope, agent, worker):
            array.setflags(write=False)
        return StepRows(
            rows, slope, agent, worker, regular, next(iter(beyond), None), next(iter(clashes), None), constants, moving,
            tuple(sorted(names)), HERE,
        )  # fmt: skip

    def _measure(self, agent: int, workers: tuple[int, ...]) -> bool:
        """Add what one agent of some workers does between layers 0 and 1; False if that is no slope."""
        where = [self.asked.where[worker - self.asked.workers.start] for worker in workers]
        change = self.evaluators[agent].change(self.loops, workers, where, self.tables)
        self.measured.append((agent, where, change))
        if change.slope is None:
            return False
        return all(self.slope.setdefault(key, step) == step for key, step in change.slope.items())

    def _complete(self, rows: I64, agent: I64, worker: I64) -> bool:
        """Measure the slopes of rows that only workers between the first and the last have; False if one is none."""
        _, first = np.unique((agent << 27) + _slope_keys(rows), return_index=True)
        lost = [at for at in first.tolist() if _slope_key(rows[at].tolist()) not in self.slope]
        return all(self._measure(int(agent[at]), (self.asked.workers.start + int(worker[at]),)) for at in lost)

    def _slopes(self, rows: I64) -> I64:
        """[n, 2] slope of each row; KeyError if it is unknown: such rows would all carry the content of layer 0."""
        if not self.asked.repeats or not len(rows):
            return np.zeros((len(rows), 2), np.int64)
        _, first, which = np.unique(_slope_keys(rows), return_index=True, return_inverse=True)
        values = [self.slope[_slope_key(row)] for row in rows[first].tolist()]
        slopes: I64 = np.array(values, np.int64).reshape(-1, 2)[which.reshape(-1)]
        return slopes


def _slope_keys(rows: I64) -> I64:
    """Buffer, kind and family of each row as one number: fewer than 2^10 buffers, two kinds, 2^16 families (-1 too).

    Shared buffers are one, as in slopes.
    """
    keys: I64 = ((np.maximum(rows[:, 0], -1) + 1) << 17 | rows[:, 1] << 16) + (rows[:, 4] >> FAMILY_SHIFT) + 1
    return keys


def _slope_key(row: list[int]) -> tuple[int, int, int]:
    return max(row[0], -1), row[1], row[4] >> FAMILY_SHIFT
