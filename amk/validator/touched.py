"""Every access of a schedule with the words that they read and write, whatever counters are waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amk.schedule_ir.schedule import Schedule
from amk.validator.aliases import Clash
from amk.validator.brackets import divided
from amk.validator.envelope import Envelope
from amk.validator.evaluator import Evaluations
from amk.validator.footprint import Footprints
from amk.validator.quotient import Group
from amk.validator.system import I64, READ, Bools


@dataclass(frozen=True, eq=False)
class Touched:
    """rows: see `envelope`. most, always: those on tagged words as `words` wants them, with all reads, and with those
    that happen at every position."""

    rows: I64
    most: I64
    always: I64
    envelope: Envelope

    @property
    def outside(self) -> dict[tuple[str | int, ...], str]:
        """What lies outside its buffer, by step."""
        return self.envelope.footprints.outside

    @property
    def clashes(self) -> dict[tuple[str | int, ...], Clash]:
        """Steps that use bytes by way of two buffers, one of them written."""
        return self.envelope.footprints.clashes

    @property
    def constants(self) -> frozenset[str]:
        """Constants that are written."""
        return frozenset(self.envelope.footprints.written_constants)


def touched(schedule: Schedule, groups: list[Group], evaluations: Evaluations) -> Touched:
    envelope = Envelope(schedule, Footprints(schedule, evaluations))
    for group in groups:
        envelope.add(group)
    rows, always = envelope.common()
    most = _word_rows(groups, rows, envelope.tagged)
    kept = most[_always(groups, most, envelope)]
    least = np.concatenate((kept, _word_rows(groups, always, envelope.tagged)))
    return Touched(np.concatenate((*envelope.private, rows)), most, least, envelope)


def _always(groups: list[Group], found: I64, envelope: Envelope) -> Bools:
    """found: `_word_rows` of everything. Which of these happen at every position?"""
    items = [(number, node - groups[number].order.trace.events) for number, node in envelope.moving]
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
