"""Programs without barriers touch what the programs do, in the same order, under other names."""

from __future__ import annotations

import json

import numpy as np
import pytest

from amk.adversary.edits import Edit, apply, steps
from amk.schedule_ir.schedule import Schedule
from amk.validator.compose import compose
from amk.validator.envelope import NO_DATA
from amk.validator.evaluator import Evaluations
from amk.validator.memo import Memo
from amk.validator.memory_check import ordered_abreast
from amk.validator.still import names, paths, still, synced
from amk.validator.touched import gathered, touched
from amk.validator.trace import Trace, sites, trace
from tests.validator.plans import MODELS, SMALL, small_plan
from tests.validator.test_incremental import _in_two, told

CASES = [(name, two) for name in sorted(SMALL) for two in (False, True)]


def _plan(name: str, two: bool) -> Schedule:
    plain = small_plan(SMALL[name], MODELS["deep"])
    return _in_two(plain) if two else plain


def _traces(schedule: Schedule, tokens: int) -> list[Trace]:
    return [trace(schedule, number, tokens) for number in range(len(schedule.programs))]


def _synced(schedule: Schedule) -> tuple[tuple[int, int], ...]:
    every = (site for number, program in enumerate(schedule.programs) for site in sites(program, number))
    steps = [s for s in every if (s.step.waits or s.step.signals) and not isinstance(s.step.op, NO_DATA)]
    return tuple((int(s.path[1]), s.number) for s in steps)


@pytest.mark.parametrize(("name", "two"), CASES)
def test_rows_are_those_of_the_programs_with_their_barriers(name: str, two: bool) -> None:
    schedule = _plan(name, two)
    whole = gathered(schedule, Evaluations(), *_traces(schedule, 2))
    rows = touched(whole, _synced(schedule)).rows
    result = compose(schedule)
    assert result.accesses is not None and len(rows) > 1000
    assert np.array_equal(result.accesses.rows, rows)
    assert not np.array_equal(result.accesses.still, rows)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_all_workers_abreast_touch_in_the_same_order(name: str) -> None:
    schedule = _plan(name, False)
    alone = still(schedule)
    found = [
        (one, touched(one, acting))
        for one, acting in (
            (gathered(alone, Evaluations(), *_traces(alone, 2)), synced(schedule)),
            (gathered(schedule, Evaluations(), *_traces(schedule, 2)), _synced(schedule)),
        )
    ]
    called = names(found[0][0].teams, compose(schedule).groups)
    for one, other in zip(*(ordered_abreast(rows, whole) for whole, rows in found), strict=True):
        assert np.array_equal(called.of(one.node), other.node)
        assert np.array_equal(one.columns.value, other.columns.value)
    places = [rows.places for _, rows in found]
    assert np.array_equal(called.places(places[0]), places[1])


@pytest.mark.parametrize(("name", "two"), CASES)
def test_steps_are_found_again(name: str, two: bool) -> None:
    schedule = _plan(name, two)
    alone = still(schedule)
    there = {site.path: site.step for n, program in enumerate(alone.programs) for site in sites(program, n)}
    here = {site.path: site.step for n, program in enumerate(schedule.programs) for site in sites(program, n)}
    called = paths(alone, schedule)
    assert called.keys() == there.keys() and len(set(called.values())) == len(called)
    assert all(here[called[path]].op == step.op for path, step in there.items())
    assert {path for path, step in here.items() if not isinstance(step.op, NO_DATA)} == set(called.values())


def test_schedules_that_differ_in_a_barrier_share_results_and_not_verdicts() -> None:
    document, memo = json.loads(_plan("fast", False).model_dump_json()), Memo()
    barriers = [path for path, step in steps(document) if step["op"]["op"] == "barrier"]
    found = set()
    for path in barriers:
        schedule = Schedule.model_validate_json(json.dumps(apply(document, [Edit("remove", path)])[0]))
        found.add(json.loads(cold := told(schedule, None))[0])
        assert told(schedule, memo) == cold
    assert len(barriers) > 5 and len(found) > 1
