"""Which flag words a step reads at every position, and at some: what order may rest on. Against each position."""

from __future__ import annotations

from collections import defaultdict
from functools import reduce

import numpy as np
import pytest

from amk.adversary.confusion import schedule_of
from amk.adversary.neighbourhood.bases import base
from amk.schedule_ir.expr import Env
from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.composition import TOKENS, groups_of
from amk.validator.memory.position_abstraction import touched
from amk.validator.program.footprint import Footprints
from amk.validator.program.handoffs import Instances
from amk.validator.program.system import I64, READ
from amk.validator.program.trace import Item

Words = set[tuple[int, int]]
"""(buffer, byte)."""


def found(rows: I64) -> dict[tuple[int, int, int], Words]:
    """By group, worker and item."""
    words = defaultdict[tuple[int, int, int], Words](set)
    for group, worker, item, buffer, kind, lo, hi in rows.tolist():
        if kind == READ:
            words[group, worker, item].update((buffer, byte) for byte in range(lo, hi))
    return words


def read(schedule: Schedule, item: Item, worker: int, agents: int, pos: int) -> Words:
    """As the op says itself."""
    number = {b.name: i for i, b in enumerate(schedule.buffers) if b.tagged}
    tables = {name: np.array(column) for name, column in schedule.tables.items()}
    accesses = [
        access
        for agent in range(agents)
        for access in item.step.op.accesses(
            Env(loops=item.loops, worker=worker, agent=agent, pos=pos, tables=tables), schedule.geometry()
        )
    ]
    return {
        (number[a.buffer], byte)
        for a in accesses
        if a.kind == "read" and a.buffer in number
        for byte in range(a.lo, a.hi)
    }


@pytest.mark.parametrize("name", ["sm_80", "splits reduced", "rows"])
def test_words_that_are_read_at_every_position_and_at_some(name: str) -> None:
    schedule = schedule_of(base(name))
    groups = groups_of(schedule, TOKENS, Instances(schedule.counters))
    seen = touched(Footprints(schedule, folded=True), groups)
    shown = {(buffer, byte) for _, _, _, buffer, _, lo, hi in seen.most.tolist() for byte in range(lo, hi)}
    most, always, partly = found(seen.most), found(seen.always), set[str]()
    for group in groups:
        trace = group.order.trace
        for worker in range(group.first, group.first + group.count):
            for number, item in enumerate(trace.items):
                op, key = item.step.op, (group.number, worker, number)
                if item.token != 0:
                    continue
                agents, positions = len(trace.roles[op.role]), range(schedule.kv.context - schedule.rows + 1)
                each = [read(schedule, item, worker, agents, pos) & shown for pos in positions]
                every = reduce(Words.intersection, each)
                assert most.get(key, set()) == set[tuple[int, int]]().union(*each), op.op
                # what an op looks for only if a token was not given gives no order
                assert always.get(key, set()) == (set() if op.perhaps else every), op.op
                if every and every != most[key]:
                    partly.add(op.op)
    assert "rope_append" in partly, "no step reads some words always and others at some positions"
