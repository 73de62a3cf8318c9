"""What an op says of several workers at once is what it says of each alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import gcd
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amk.schedule_ir.ops import Geometry, Op
from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.position_abstraction import NO_DATA
from amk.validator.program.evaluator import Evaluator, Unplaced
from amk.validator.program.per_worker import Differ, PerWorker, per_worker
from amk.validator.program.system import I64
from amk.validator.program.tables import Tables
from amk.validator.program.trace import unroll
from tests.validator.plans import MODELS, SMALL, small_plan

WORKERS = 6
PLANS = {
    f"{settings}-{model}": small_plan(SMALL[settings], MODELS[model], WORKERS)
    for settings, model in (("fast", "ragged"), ("naive", "bias"), ("heads", "qk-norm"), ("drawing", "plain"))
}


def _outcome(work: Callable[[], Any]) -> Any:
    """Its result, or what it raises."""
    try:
        return work()
    except (ArithmeticError, ValueError, OverflowError) as error:
        return type(error)


RANGES = {"first": (0, 40), "count": (0, 5), "head": (-1, 3), "split": (0, 5)}


def _random_tables(rng: Random, schedule: Schedule) -> Schedule:
    """Shares and places anywhere, in and out of bounds, some workers alike."""
    tables = dict(schedule.tables)
    for name, column in tables.items():
        if (kind := name.rsplit(".", 1)[1]) in RANGES:
            some = [rng.randint(*RANGES[kind]) for _ in range(rng.randint(1, WORKERS))]
            tables[name] = tuple(rng.choice(some) for _ in column)
    return schedule.model_copy(update={"tables": tables})


@pytest.mark.parametrize("name", sorted(PLANS))
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_rows_of_all_workers_are_those_of_each(name: str, seed: int) -> None:
    rng = Random(seed)
    schedule = _random_tables(rng, PLANS[name]) if rng.random() < 0.7 else PLANS[name]
    geometry, tables = schedule.geometry(), Tables(schedule)
    number = {b.name: n for n, b in enumerate(schedule.buffers)}
    workers = range(rng.choice([0, 0, 1, 4]), rng.choice([4, WORKERS]))
    places = [rng.randrange(schedule.kv.context) for _ in range(rng.randint(1, WORKERS))]
    pos = [rng.choice(places) for _ in workers]
    items = [i for i in unroll(schedule.programs[0], 0, 1) if not isinstance(i.step.op, NO_DATA)]
    for item in rng.sample(items, min(20, len(items))):
        for agent in {0, rng.randrange(geometry.role_size[item.step.op.role])}:
            op, at = item.step.op, list(zip(workers, pos, strict=True))
            alone = [Unplaced(op, geometry, number, agent).one(item.loops, w, p, tables) for w, p in at]
            found = Unplaced(op, geometry, number, agent).rows(item.loops, workers, pos, tables)
            np.testing.assert_array_equal(found.rows, np.concatenate([np.zeros((0, 6), int), *(o.rows for o in alone)]))
            assert found.counts == tuple(len(one.rows) for one in alone)
            outside = [(w, one.beyond) for w, one in zip(workers, alone, strict=True) if one.beyond is not None]
            assert found.beyond == (outside[0] if outside else None)
            read = {name for one in alone for name in one.names}
            assert (found.positional, set(found.names)) == ("pos" in read, read & tables.lists.keys())
            assert found.constants == frozenset[str]().union(*(one.constants for one in alone))


def _placed(op: Op, geometry: Geometry, number: dict[str, int], agent: int) -> Evaluator:
    starts = tuple(b.offset or 0 for b in geometry.buffers.values() if b.space == "shared")
    return Evaluator(Unplaced(op, geometry, number, agent), starts, [])


@pytest.mark.parametrize("name", sorted(PLANS))
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_rows_after_a_change_of_few_entries_are_those_of_a_fresh_evaluation(name: str, seed: int) -> None:
    """Also if those workers alone reached beyond a buffer, wrote a constant or asked for the position, or begin to."""
    rng = Random(seed)
    schedule = _random_tables(rng, PLANS[name]) if rng.random() < 0.5 else PLANS[name]
    geometry, number = schedule.geometry(), {b.name: n for n, b in enumerate(schedule.buffers)}
    changed = dict(schedule.tables)
    for worker in rng.sample(range(WORKERS), rng.randint(1, 3)):
        for table in rng.sample(sorted(changed), rng.randint(1, 4)):
            if (kind := table.rsplit(".", 1)[1]) in RANGES:
                entry = rng.randint(*RANGES[kind])
                changed[table] = (*changed[table][:worker], entry, *changed[table][worker + 1 :])
    before, after = Tables(schedule), Tables(schedule.model_copy(update={"tables": changed}))
    workers, pos = range(WORKERS), [rng.randrange(schedule.kv.context)] * WORKERS
    items = [i for i in unroll(schedule.programs[0], 0, 1) if not isinstance(i.step.op, NO_DATA)]
    for item in rng.sample(items, min(20, len(items))):
        op, agent = item.step.op, rng.randrange(geometry.role_size[item.step.op.role])
        kept, placed = Unplaced(op, geometry, number, agent), _placed(op, geometry, number, agent)
        for tables in (before, after, before):
            found = kept.rows(item.loops, workers, pos, tables)
            fresh = Unplaced(op, geometry, number, agent).rows(item.loops, workers, pos, tables)
            np.testing.assert_array_equal(found.rows, fresh.rows)
            assert set(found.names) >= set(fresh.names)
            assert (found.counts, found.beyond, found.constants) == (fresh.counts, fresh.beyond, fresh.constants)
            assert (found.positional, found.clash) == (fresh.positional, fresh.clash)
            if "l" in item.loops:
                ends = (0, WORKERS - 1)
                step, again = (
                    one.change(item.loops, ends, pos[:2], tables)
                    for one in (placed, _placed(op, geometry, number, agent))
                )
                assert step.slope == again.slope
                for (_, mine), (_, theirs) in zip(step.seen, again.seen, strict=True):
                    np.testing.assert_array_equal(mine.rows, theirs.rows)


@cache
def _kept(a: int, b: int) -> int:
    return a * 3 + b


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "divmod": lambda a, b: sum(divmod(a, b)),
    "neg": lambda a, _: -a,
    "min": min,
    "max": max,
    "less": lambda a, b: a + 1 if a < b else b,
    "at most": lambda a, b: a - 1 if a <= b else b,
    "more": lambda a, b: a + 2 if a > b else b,
    "at least": lambda a, b: a - 2 if a >= b else b,
    "equal": lambda a, b: 7 if a == b else a,
    "unequal": lambda a, b: 9 if a != b else a,
    "true": lambda a, b: b if a else a - 1,
    "range": lambda a, b: sum(range(a % 5, b % 7 + 1)),
    "key": lambda a, b: _kept(a, b),
    "gcd": lambda a, b: gcd(a % 100, b % 100),
    "int": lambda a, b: int(a) + b,
}
Program = list[tuple[str, int, int]]


def _run(program: Program, inputs: list[int]) -> tuple[int, ...]:
    values = list(inputs)
    for name, a, b in program:
        values.append(OPERATIONS[name](values[a % len(values)], values[b % len(values)]))
    return tuple(values)


def _together(program: Program, columns: list[I64]) -> list[tuple[int, ...]]:
    """Of each worker, run for groups that go the same way."""
    found: dict[int, tuple[int, ...]] = {}
    left = [np.arange(len(columns[0]))]
    while left:
        those = left.pop()
        try:
            values: list[Any] = list(_run(program, [*(per_worker(column[those]) for column in columns), 3, -2]))
        except Differ as differ:
            assert len(np.unique(differ.labels)) > 1
            left += [those[differ.labels == label] for label in np.unique(differ.labels)]
            continue
        for n, worker in enumerate(those.tolist()):
            found[worker] = tuple(int(v.values[n]) if isinstance(v, PerWorker) else v for v in values)
    return [found[worker] for worker in range(len(columns[0]))]


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 9), st.integers(0, 9)), max_size=9),
    st.integers(1, 8).flatmap(
        lambda n: st.lists(
            st.lists(st.one_of(st.integers(-3, 12), st.integers(-(2**62), 2**62)), min_size=n, max_size=n),
            min_size=2,
            max_size=3,
        )
    ),
)
def test_integers_of_workers_are_computed_as_those_of_each(program: Program, columns: list[list[int]]) -> None:
    arrays = [np.array(column, np.int64) for column in columns]
    alone = _outcome(lambda: [_run(program, [*each, 3, -2]) for each in zip(*columns, strict=True)])
    together = _outcome(lambda: _together(program, arrays))
    assert together == alone


def test_a_result_that_leaves_64_bits_is_that_of_each() -> None:
    columns = [np.array([2**61, 1, 2**61]), np.array([2**61, 2, 4])]
    program = [("mul", 0, 1), ("add", 4, 0), ("add", 0, 0), ("add", 6, 6)]
    assert _together(program, columns)[0][4:] == (2**122, 2**122 + 2**61, 2**62, 2**63)
    assert _together(program, columns)[1][4:] == (2, 3, 2, 4)
