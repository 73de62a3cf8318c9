"""Every access of a schedule with the words that they read and write, whatever counters are waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amk.validator.memory.position_abstraction import PositionAbstraction
from amk.validator.order.between_ctas import Group
from amk.validator.order.intervals import divided
from amk.validator.program.footprint import Footprints
from amk.validator.program.system import I64, READ, Bools


@dataclass(frozen=True, eq=False)
class Touched:
    """rows, tagged, classes: see `PositionAbstraction`. most, always: those on flag words as `words` wants them, with
    all reads, and with those alone that happen at every position whatever the data say."""

    rows: I64
    most: I64
    always: I64
    tagged: list[int]
    classes: int


def touched(footprints: Footprints, groups: list[Group]) -> Touched:
    abstraction = PositionAbstraction(footprints.schedule, footprints)
    for group in groups:
        abstraction.add(group)
    rows = np.concatenate(abstraction.common)
    most = _word_rows(groups, rows, abstraction.tagged)
    always = np.concatenate((most[_always(most, abstraction)], *abstraction.always))
    return Touched(np.concatenate((*abstraction.private, rows)), most, always, abstraction.tagged, abstraction.classes)


def _always(found: I64, abstraction: PositionAbstraction) -> Bools:
    """found: `_word_rows` of everything. Which of these happen at every position?"""
    keys = np.array([group << 32 | item for group, item in sorted(abstraction.moving)], np.int64)
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
