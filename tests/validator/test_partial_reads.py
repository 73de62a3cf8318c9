"""Whoever reads a flag word comes after the whole step that wrote it, as the composed order has it: steps of
which somebody reads the words of some warps alone touch nothing else that another worker can touch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from amk.planner.settings import Handoff
from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.composition import compose
from amk.validator.program.footprint import Footprints, flat_rows
from amk.validator.program.system import I64, READ
from tests.validator.plans import MODELS, SMALL, small_plan

POS = 9


@dataclass(frozen=True, eq=False)
class Use:
    """A step of one worker in one layer: the words that each warp writes, those that all read, and the other buffers in
    global memory, without constants."""

    op: str
    loops: tuple[tuple[str, int], ...]
    written: list[I64]
    read: I64
    others: frozenset[str]


def uses(schedule: Schedule) -> Iterator[Use]:
    footprints = Footprints(schedule)
    tagged = [i for i, b in enumerate(schedule.buffers) if b.tagged]
    plain = [i for i, b in enumerate(schedule.buffers) if not b.tagged and b.space != "shared" and b.role != "constant"]
    for group in compose(schedule).groups:
        trace = group.order.trace
        for worker in range(group.first, group.first + group.count):
            for item in trace.items:
                if item.token <= 0:
                    found = footprints.of([item], np.array([worker]), np.array([[POS]]))
                    every = flat_rows(footprints, [item], found)
                    rows = [every[found.agent == agent] for agent in range(len(trace.roles[item.step.op.role]))]
                    words = [one[np.isin(one[:, 0], tagged)] for one in rows]
                    written = [one[one[:, 3] != READ] for one in words]
                    every = np.concatenate(words)
                    read = every[every[:, 3] == READ]
                    touched = {int(b) for one in rows for b in one[:, 0] if b in plain} | set(read[:, 0].tolist())
                    others = frozenset(schedule.buffers[b].name for b in touched)
                    yield Use(item.step.op.op, tuple(sorted(item.loops.items())), written, read, others)


def meets(read: I64, rows: I64) -> bool:
    both = np.maximum(read[:, None, 1], rows[None, :, 1]) < np.minimum(read[:, None, 2], rows[None, :, 2])
    return bool((both & (read[:, None, 0] == rows[None, :, 0])).any())


@pytest.mark.parametrize("handoff", ["tagged", "mixed", "narrow"])
@pytest.mark.parametrize(("preset", "batch"), [("fast", 1), ("fast", 2), ("heads", 1), ("naive", 1), ("two-warps", 1)])
def test_steps_of_which_words_of_some_warps_are_read_touch_nothing_else(
    preset: str, batch: int, handoff: Handoff
) -> None:
    settings = replace(SMALL[preset], plan="custom", handoff=handoff, batch=batch)
    found = list(uses(small_plan(settings, MODELS["qk-norm"])))
    parts = set()
    for writer in (one for one in found if sum(len(rows) > 0 for rows in one.written) > 1):
        for reader in (one for one in found if one.loops == writer.loops and len(one.read)):
            some = [meets(reader.read, rows) for rows in writer.written if len(rows)]
            if any(some) and not all(some):
                parts.add((writer.op, reader.op))
                assert not writer.others, (writer.op, reader.op, writer.others)
    assert parts <= {("store_rows", "rope_append")}
    assert parts or preset in ("fast", "heads")
