"""Every access of a schedule with the words that they read and write, whatever counters are waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.position_abstraction import PositionAbstraction
from amk.validator.order.between_ctas import Group
from amk.validator.order.intervals import divided
from amk.validator.program.aliases import Clash
from amk.validator.program.evaluator import Evaluations
from amk.validator.program.footprint import Footprints
from amk.validator.program.system import I64, READ, Bools


@dataclass(frozen=True, eq=False)
class Touched:
    """rows: see `abstraction`. most, always: those on flag words as `words` wants them, with all reads, and with
    those that happen at every position."""

    rows: I64
    most: I64
    always: I64
    abstraction: PositionAbstraction

    @property
    def outside(self) -> dict[tuple[str | int, ...], str]:
        """What lies outside its buffer, by step."""
        return self.abstraction.footprints.outside

    @property
    def clashes(self) -> dict[tuple[str | int, ...], Clash]:
        """Steps that use bytes by way of two buffers, one of them written."""
        return self.abstraction.footprints.clashes

    @property
    def constants(self) -> frozenset[str]:
        """Constants that are written."""
        return frozenset(self.abstraction.footprints.written_constants)


def touched(schedule: Schedule, groups: list[Group], evaluations: Evaluations) -> Touched:
    abstraction = PositionAbstraction(schedule, Footprints(schedule, evaluations))
    for group in groups:
        abstraction.add(group)
    rows, always = abstraction.common()
    most = _word_rows(groups, rows, abstraction.tagged)
    kept = most[_always(groups, most, abstraction)]
    least = np.concatenate((kept, _word_rows(groups, always, abstraction.tagged)))
    return Touched(np.concatenate((*abstraction.private, rows)), most, least, abstraction)


def _always(groups: list[Group], found: I64, abstraction: PositionAbstraction) -> Bools:
    """found: `_word_rows` of everything. Which of these happen at every position?"""
    items = [(number, node - groups[number].order.trace.events) for number, node in abstraction.moving]
    keys = np.array([g << 32 | i for g, i in sorted(items)], np.int64)
    always: Bools = (found[:, 4] != READ) | ~np.isin(found[:, 0] << 32 | found[:, 2], keys)
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
