"""The checker's table of accesses says what every op says of one worker, one item and one position alone."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pytest

from amk.checker.footprints import DONT_CARE, READ, TIMELESS, WRITE, Footprints
from amk.checker.integers import Diverged, together
from amk.checker.programs import programs_of
from amk.schedule_ir.expr import Env
from amk.schedule_ir.schedule import Schedule
from tests.validator.plans import MODELS, SMALL, small_plan

Spans = dict[tuple[object, ...], list[tuple[int, int]]]


def merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for lo, hi in sorted(spans):
        if found and lo <= found[-1][1]:
            found[-1] = found[-1][0], max(hi, found[-1][1])
        else:
            found.append((lo, hi))
    return found


def listed(footprints: Footprints, bit: int) -> Spans:
    """What the table says of a position, by (worker, item, warp, array, kind, value, displacement)."""
    found: Spans = defaultdict(list)
    for worker, item, warp, _, lo, hi, kind, value, moved, bits, _, array in footprints.rows().tolist():
        buffer = footprints.schedule.buffers[array]
        start = (buffer.offset or 0) if buffer.space == "shared" else 0
        if bits & bit:
            found[worker, item, warp, array, kind, value, moved + start].append((lo - start, hi - start))
    return {key: merged(spans) for key, spans in found.items()}


def evaluated(footprints: Footprints, position: int) -> Spans:
    """The same by evaluating each op with plain integers."""
    found: Spans = defaultdict(list)
    constants = {b.name for b in footprints.schedule.buffers if b.role == "constant"}
    dtypes = {b.name: b.dtype for b in footprints.schedule.buffers if b.space == "shared"}
    for program in footprints.programs:
        for (j, item), worker in product(enumerate(program.items), program.workers):
            for agent, warp in enumerate(program.roles[j]):
                env = Env(item.loops, worker, agent, position, footprints.tables)
                for buffer, kind, lo, hi, value, origin, *_ in item.step.op.accesses(env, footprints.geometry):
                    if kind == "read" and buffer in constants:
                        continue
                    code = DONT_CARE if value is None else footprints.code(*value, dtypes.get(buffer, ""))
                    later = value is not None and value[0].removesuffix(".past") not in TIMELESS
                    content = code + (item.token + 1) * later
                    kinds = READ if kind == "read" else WRITE
                    key = worker, j, warp, footprints.number[buffer], kinds, content, origin - lo
                    found[key].append((lo, hi))
    return {key: merged(spans) for key, spans in found.items()}


def without_caches(schedule: Schedule, spans: Spans) -> Spans:
    """The table says layers of the caches instead of bytes."""
    caches = {n for n, b in enumerate(schedule.buffers) if b.role == "state" and b.name != "state"}
    return {key: found for key, found in spans.items() if key[3] not in caches}


@pytest.mark.parametrize(("settings", "model"), [("fast", "ragged"), ("naive", "plain"), ("drawing", "qk-norm")])
@pytest.mark.parametrize("position", [0, 9, 30])
def test_the_table_is_what_each_op_says_alone(settings: str, model: str, position: int) -> None:
    schedule = small_plan(SMALL[settings], MODELS[model])
    footprints = Footprints(schedule, programs_of(schedule), [position] * 4)
    table, wanted = listed(footprints, 1), evaluated(footprints, position)
    assert without_caches(schedule, table) == without_caches(schedule, wanted)
    assert len(table) > 200 and len(without_caches(schedule, table)) < len(table)


@pytest.mark.parametrize("bit", [1, 2])
def test_a_bit_of_a_row_is_a_position(bit: int) -> None:
    schedule = small_plan(SMALL["fast"], MODELS["plain"])
    programs, ends = programs_of(schedule), [0, schedule.kv.context - 1]
    both = Footprints(schedule, programs, [*ends, *ends])
    alone = Footprints(schedule, programs, [ends[bit // 2]] * 4)
    assert listed(both, bit) == listed(alone, bit)
    assert {5, 10, 15} <= set(both.rows()[:, 9].tolist())


def test_numbers_that_leave_62_bits_are_computed_apart() -> None:
    large = together(np.array([1 << 61, 1, 2]))
    assert (large - 1).values.tolist() == [(1 << 61) - 1, 0, 1]
    for compute in (lambda: large * 4, lambda: large + large + large, lambda: large + (1 << 62), lambda: 8 * large):
        with pytest.raises(Diverged):
            compute()


def test_decisions_that_differ_part_the_environments() -> None:
    numbers = together(np.array([3, 5, 3, -7]))
    with pytest.raises(Diverged) as decided:
        bool(numbers < 4)
    assert decided.value.labels.tolist() == [True, False, True, True]
    with pytest.raises(Diverged) as indexed:
        range(numbers)
    assert indexed.value.labels.tolist() == [3, 5, 3, -7]
    assert [(numbers // 2).values.tolist(), (numbers % 4).values.tolist()] == [[1, 2, 1, -4], [3, 1, 3, 1]]
    assert [(1 - numbers).values.tolist(), (-numbers * 2).values.tolist()] == [[-2, -4, -2, 8], [-6, -10, -6, 14]]
    assert together(np.array([4, 4])) == 4
