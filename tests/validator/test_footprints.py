"""What is remembered of evaluations, wherever shared buffers lay, is what a first look finds, and what the ops say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from random import Random

import numpy as np
import pytest

from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops import Access
from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.position_abstraction import NO_DATA
from amk.validator.program.aliases import Meeting, aliased, clash_of
from amk.validator.program.contents import code
from amk.validator.program.evaluator import SHARED, Evaluations
from amk.validator.program.footprint import Footprints
from amk.validator.program.system import DONT_CARE, I64, READ, WRITE
from amk.validator.program.trace import Item, unroll
from tests.validator.plans import MODELS, SMALL, small_plan

Content = tuple[int, int, int, int]
"""Buffer, kind, value, delta."""


def _elsewhere(schedule: Schedule, rng: Random) -> Schedule:
    """Shared buffers anywhere, also upon each other."""
    buffers = [
        b.model_copy(update={"offset": 128 * rng.randrange(6)}) if b.space == "shared" and rng.random() < 0.7 else b
        for b in schedule.buffers
    ]
    return schedule.model_copy(update={"buffers": tuple(buffers)})


def _merged(rows: Iterable[tuple[Content, int, int]]) -> dict[Content, list[tuple[int, int]]]:
    """Bytes by content, neighbours joined."""
    found: dict[Content, list[tuple[int, int]]] = defaultdict(list)
    for content, lo, hi in sorted(rows):
        spans = found[content]
        if spans and lo <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(hi, spans[-1][1]))
        else:
            spans.append((lo, hi))
    return found


def _said(schedule: Schedule, accesses: list[Access]) -> dict[Content, list[tuple[int, int]]]:
    """By the op itself, each access where its buffer lies."""
    buffers = {b.name: (i, b) for i, b in enumerate(schedule.buffers)}
    rows = []
    for access in accesses:
        number, buffer = buffers[access.buffer]
        if access.kind == "read" and buffer.role == "constant":
            continue
        start = (buffer.offset or 0) if buffer.space == "shared" else 0
        value = DONT_CARE if access.value is None else code(*access.value)
        kind = READ if access.kind == "read" else WRITE
        place = SHARED if buffer.space == "shared" else number
        lo, hi = start + access.lo, start + access.hi
        rows.append(((place, kind, value, access.origin - lo), lo, hi))
    return _merged(rows)


def _found(rows: I64) -> dict[Content, list[tuple[int, int]]]:
    return _merged(((b, kind, value, delta), lo, hi) for b, kind, lo, hi, value, delta in rows.tolist())


def _data(schedule: Schedule) -> list[Item]:
    return [i for i in unroll(schedule.programs[0], 0, 1) if not isinstance(i.step.op, NO_DATA)]


def _meeting(schedule: Schedule, item: Item) -> list[Meeting]:
    named = {value for _, value in item.step.op if isinstance(value, str)}
    return aliased({name: b for name, b in schedule.geometry().buffers.items() if name in named})


@pytest.mark.parametrize("name", ["fast", "heads"])
def test_footprints_of_moved_buffers_are_those_of_a_first_look_and_of_the_ops(name: str) -> None:
    """Rows, and the clash of the first worker that has one."""
    rng, plain, evaluations = Random(4), small_plan(SMALL[name], MODELS["qk-norm"]), Evaluations()
    clashing = 0
    for schedule in (plain, *(_elsewhere(plain, rng) for _ in range(8)), plain):
        geometry, workers = schedule.geometry(), range(schedule.launch.workers)
        for item in rng.sample(_data(schedule), 16):
            fresh, remembered = Footprints(schedule), Footprints(schedule, evaluations)
            agent, pos = rng.randrange(geometry.role_size[item.step.op.role]), rng.randrange(schedule.kv.context)
            rows, counts = remembered.of_workers(item, agent, workers, [pos] * len(workers))
            np.testing.assert_array_equal(rows, fresh.of_workers(item, agent, workers, [pos] * len(workers))[0])
            ends = np.cumsum([0, *counts])
            envs = (Env(loops=item.loops, worker=w, agent=agent, pos=pos, tables=remembered.tables) for w in workers)
            each = [item.step.op.accesses(env, geometry) for env in envs]
            for worker, accesses in zip(workers, each, strict=True):
                assert _found(rows[ends[worker] : ends[worker + 1]]) == _said(schedule, accesses)
                np.testing.assert_array_equal(
                    remembered.of(item, worker, agent, pos), rows[ends[worker] : ends[worker + 1]]
                )
            clashes = [clash_of(accesses, _meeting(schedule, item)) for accesses in each]
            first = next((clash for clash in clashes if clash is not None), None)
            assert remembered.clashes.get((*item.site.path, "op")) == first
            assert remembered.clashes == fresh.clashes and remembered.outside == fresh.outside
            clashing += first is not None
    assert clashing > 5
    evaluators = evaluations.evaluators.values()
    assert 2 * len({id(one.unplaced) for one in evaluators}) < len(evaluators)


@pytest.mark.parametrize("name", ["fast", "naive"])
def test_rows_of_all_workers_are_those_of_the_position_asked_for(name: str) -> None:
    schedule = small_plan(SMALL[name], MODELS["qk-norm"])
    workers, shared, moved = range(schedule.launch.workers), Evaluations(), 0
    for item in _data(schedule):
        found = []
        for pos in (0, schedule.kv.context - 2, 0):
            known, fresh = (
                Footprints(schedule, evaluations).of_workers(item, 0, workers, [pos] * len(workers))
                for evaluations in (shared, Evaluations())
            )
            assert np.array_equal(known[0], fresh[0]) and known[1] == fresh[1]
            found.append(known[0])
        moved += not np.array_equal(found[0], found[1])
    assert moved > 2
