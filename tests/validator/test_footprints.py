"""What is found for all runs of a step at once is what the op says of each alone, and so is what is made of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops import Access
from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.composition import groups_of
from amk.validator.memory.position_abstraction import UNITS, PositionAbstraction, joined, steps_with_data
from amk.validator.program.footprint import (
    FAMILY_SHIFT,
    SHARED,
    Footprint,
    Footprints,
    Meeting,
    aliased,
    clash_of,
    code,
)
from amk.validator.program.handoffs import Instances
from amk.validator.program.system import DONT_CARE, I64, READ, WRITE
from amk.validator.program.trace import Item, Trace, trace
from tests.validator.plans import MODELS, SMALL, small_plan

WORKERS = 6
PLANS = {
    f"{plan}-{model}": small_plan(SMALL[plan], MODELS[model], WORKERS)
    for plan, model in (("fast", "ragged"), ("naive", "bias"), ("heads", "qk-norm"), ("drawing", "plain"))
}
RANGES = {"first": (0, 40), "count": (0, 5), "head": (-1, 3), "split": (0, 5)}
Content = tuple[int, int, int, int]
"""Buffer, kind, value, delta."""


def _random_tables(rng: Random, schedule: Schedule) -> Schedule:
    """Shares and places anywhere, in and out of bounds, some workers alike."""
    tables = dict(schedule.tables)
    for name, column in tables.items():
        if (kind := name.rsplit(".", 1)[1]) in RANGES:
            some = [rng.randint(*RANGES[kind]) for _ in range(rng.randint(1, WORKERS))]
            tables[name] = tuple(rng.choice(some) for _ in column)
    return schedule.model_copy(update={"tables": tables})


def _elsewhere(rng: Random, schedule: Schedule) -> Schedule:
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
        if access.kind == "read" and access.value is None and buffer.role == "constant":
            continue
        start = (buffer.offset or 0) if buffer.space == "shared" else 0
        dtype = buffer.dtype if buffer.space == "shared" else None
        value = DONT_CARE if access.value is None else code(*access.value, dtype)
        kind = READ if access.kind == "read" else WRITE
        place = SHARED if buffer.space == "shared" else number
        lo, hi = start + access.lo, start + access.hi
        rows.append(((place, kind, value, access.origin - lo), lo, hi))
    return _merged(rows)


def _found(rows: I64) -> dict[Content, list[tuple[int, int]]]:
    return _merged(((b, kind, value, delta), lo, hi) for b, kind, lo, hi, value, delta, *_ in rows.tolist())


def _steps(schedule: Schedule) -> list[list[Item]]:
    item_trace = trace(schedule, 0, 2)
    return [[item_trace.items[n] for n in numbers.reshape(-1).tolist()] for numbers in steps_with_data(item_trace)]


def _meeting(schedule: Schedule, item: Item) -> list[Meeting]:
    named = {value for _, value in item.step.op if isinstance(value, str)}
    return aliased({name: b for name, b in schedule.geometry().buffers.items() if name in named})


class _Read(Env):
    """One run, which remembers whether the position was read."""

    @property
    def pos(self) -> int:
        self.__dict__["read"] = True
        return int(self.__dict__["at"])


def _alone(schedule: Schedule, item: Item, worker: int, agent: int, pos: int) -> tuple[list[Access], bool]:
    env = _Read.__new__(_Read)
    tables = {name: np.array(column) for name, column in schedule.tables.items()}
    env.__dict__.update(loops=item.loops, worker=worker, agent=agent, tables=tables, at=pos, read=False)
    accesses = item.step.op.accesses(env, schedule.geometry())
    return accesses, env.__dict__["read"]


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", sorted(PLANS))
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_found_of_all_runs_is_what_the_op_says_of_each(name: str, seed: int) -> None:
    """Rows, what lies outside, clashes, constants that are written, and whether the position matters; tables and places
    of shared buffers anywhere."""
    rng = Random(seed)
    schedule = _random_tables(rng, PLANS[name]) if rng.random() < 0.7 else PLANS[name]
    schedule = _elsewhere(rng, schedule) if rng.random() < 0.5 else schedule
    workers = np.arange(rng.choice([0, 0, 1, 4]), rng.choice([4, WORKERS]))
    steps, size = _steps(schedule), {b.name: b.bytes for b in schedule.buffers}
    constants = {b.name for b in schedule.buffers if b.role == "constant"}
    for items in rng.sample(steps, 8):
        items = rng.sample(items, rng.randint(1, min(3, len(items))))
        op, pos = items[0].step.op, np.array([[rng.randrange(schedule.kv.context) for _ in workers] for _ in items])
        footprints, agents = Footprints(schedule), schedule.geometry().role_size[op.role]
        found = footprints.of(items, workers, pos.reshape(len(items), len(workers)))
        positional = outside = clashes = False
        written: set[str] = set()
        for (i, item), (w, worker), agent in (
            (i, w, a) for i in enumerate(items) for w in enumerate(workers.tolist()) for a in range(agents)
        ):
            accesses, read = _alone(schedule, item, worker, agent, int(pos[i, w]))
            mine = (found.item == i) & (found.worker == worker) & (found.agent == agent)
            assert _found(found.rows[mine]) == _said(schedule, accesses)
            positional |= read
            outside |= any(a.lo < 0 or a.hi > size[a.buffer] for a in accesses)
            clashes |= clash_of(accesses, _meeting(schedule, item)) is not None
            written |= {a.buffer for a in accesses if a.kind == "write"} & constants
        path = (*items[0].site.path, "op")
        assert (found.positional, path in footprints.outside) == (positional, outside)
        assert (path in footprints.clashes, footprints.written_constants) == (clashes, written)
        assert found.timed == (op.op in ("select", "select_draw") and 0 in workers)


def test_some_shared_buffers_clash_where_they_meet() -> None:
    rng, met, quiet = Random(3), 0, 0
    for _ in range(6):
        schedule = _elsewhere(rng, PLANS["heads-qk-norm"])
        footprints, workers = Footprints(schedule), np.arange(WORKERS)
        for items in _steps(schedule):
            footprints.of(items, workers, np.zeros((len(items), WORKERS), np.int64))
            clash = (*items[0].site.path, "op") in footprints.clashes
            met += clash
            quiet += bool(_meeting(schedule, items[0])) and not clash
    assert met > 5 and quiet > 5


PART = 20
"""Bytes of a part, more than any piece reaches into."""


def _cells(rows: I64, place: I64) -> set[tuple[int, ...]]:
    """(place, buffer, kind, byte, value, delta)."""
    return {
        (p, b, kind, byte, value, delta)
        for p, (b, kind, lo, hi, value, delta, first, end, _) in zip(place.tolist(), rows.tolist(), strict=True)
        for part in range(first, end)
        for byte in range(lo + part * PART, hi + part * PART)
    }


def test_joined_rows_have_the_same_bytes_and_stand_apart_where_they_must() -> None:
    rng, apart_seen = np.random.default_rng(5), 0
    for _ in range(400):
        count = int(rng.integers(1, 9))
        lo = rng.integers(0, 12, count)
        first = rng.integers(0, 2, count) * rng.integers(0, 3, count)
        rows = np.stack(
            (rng.integers(0, 2, count), rng.integers(0, 2, count), lo, lo + rng.integers(1, 5, count),
             rng.integers(0, 2, count), np.zeros(count, int), first, first + rng.integers(1, 3, count),
             np.zeros(count, int)), axis=1
        )  # fmt: skip
        place, agent = rng.integers(0, 2, count), rng.integers(0, 3, count)
        words, acts = (rows[:, 0] == 1) & (rows[:, 1] == READ) & bool(rng.random() < 0.5), bool(rng.random() < 0.2)
        boxes, at, grouped = joined(rows, place, agent, words, acts, np.array([PART, PART]))
        assert _cells(boxes, place[at]) == _cells(rows, place)
        clash = False  # where warps share a buffer of which some bytes are touched twice and some written
        for where, buffer in {(p, b) for p, b in zip(place.tolist(), rows[:, 0].tolist(), strict=True)}:
            mine = np.flatnonzero((place == where) & (rows[:, 0] == buffer))
            twice = any(
                max(a[2], b[2]) < min(a[3], b[3]) and max(a[6], b[6]) < min(a[7], b[7])
                for a, b in combinations(rows[mine], 2)
            )
            clash |= twice and len({*agent[mine].tolist()}) > 1 and WRITE in rows[mine, 1]
        alone = np.ones(count, bool) if clash else ~words if acts or words.any() else np.zeros(count, bool)
        assert sorted(at[~grouped].tolist()) == np.flatnonzero(alone).tolist()
        apart_seen += clash
        spans = sorted(
            (*boxes[k, [0, 1, 4, 5, 2, 3]].tolist(), place[at[k]], *boxes[k, 6:8].tolist())
            for k in np.flatnonzero(grouped)
        )
        assert all(one[:7] != other[:7] or one[8] < other[7] for one, other in pairwise(spans))
    assert apart_seen > 20


def _alike(footprints: list[tuple[I64, Footprint]], schedule: Schedule, worker: int) -> list[object]:
    """What workers of a class have in common: rows of shared memory but for one displacement per family."""
    first: dict[int, int] = {}
    signature = []
    for numbers, one in footprints:
        mine = (one.worker == worker) & (one.rows[:, 0] == SHARED)
        for row, item, agent in zip(one.rows[mine].tolist(), one.item[mine], one.agent[mine], strict=True):
            shift = first.setdefault(row[4] >> FAMILY_SHIFT if row[4] >= 0 else -1, row[5])
            signature.append((int(numbers.reshape(-1)[item]), int(agent), *row[:5], row[5] - shift))
    return signature


@pytest.mark.parametrize("name", sorted(PLANS))
def test_one_worker_of_each_class_has_its_shared_memory_checked(name: str) -> None:
    schedule = PLANS[name]
    abstraction = PositionAbstraction(schedule, Footprints(schedule))
    (group,) = groups_of(schedule, 1, Instances(schedule.counters))
    abstraction.add(group)
    item_trace: Trace = group.order.trace
    found, workers = [], np.arange(WORKERS)
    for numbers in steps_with_data(item_trace):
        items = [item_trace.items[n] for n in numbers.reshape(-1).tolist()]
        pos = np.tile(abstraction.positions(items[0], workers), (len(items), 1))
        found.append((numbers, abstraction.footprints.of(items, workers, pos)))
    classes = [_alike(found, schedule, worker) for worker in range(WORKERS)]
    leaders = [w for w in range(WORKERS) if classes[w] not in classes[:w]]
    rows = np.concatenate(abstraction.private)
    shared = rows[(rows[:, 1] - len(schedule.buffers)) % UNITS == 0]
    checked = sorted(set(((shared[:, 0] - group.node_base) // group.nodes).tolist()))
    assert set(leaders) <= set(checked) and abstraction.classes == len(checked) < WORKERS
    assert len(shared) == sum(len(classes[w]) for w in checked)


def test_workers_whose_rows_of_one_value_are_displaced_apart_are_not_alike() -> None:
    """All rows of a value may lie elsewhere, by as much; what a worker has to itself is checked once for such."""
    schedule = PLANS["fast-ragged"]
    (group,) = groups_of(schedule, 1, Instances(schedule.counters))
    value = code("h", 1)

    def row(worker: int, agent: int, lo: int, delta: int) -> tuple[int, ...]:
        return 0, worker, agent, SHARED, READ, lo, lo + 8, value, delta, 1, 0, 0

    for second, classes in ((40, 1), (48, 2)):
        abstraction = PositionAbstraction(schedule, Footprints(schedule))
        own = [row(w, a, 16 * a, 8) for w in (0, *range(2, WORKERS)) for a in (0, 1)]
        abstraction._add_private(group, np.array([*own, row(1, 0, 0, 40), row(1, 1, 16, second)]))
        assert abstraction.classes == classes


def test_a_clash_is_a_byte_that_is_used_by_way_of_two_buffers_and_written() -> None:
    rng, met = Random(9), 0
    for _ in range(300):
        gap = rng.randrange(-6, 7)
        accesses = [
            Access(rng.choice("ab"), rng.choice(("read", "write")), lo, lo + rng.randint(1, 4), None, 0)
            for lo in (rng.randrange(8) for _ in range(4))
        ]
        used = {(a.buffer, a.kind, byte + gap * (a.buffer == "b")) for a in accesses for byte in range(a.lo, a.hi)}
        kinds = (("read", "write"), ("write", "read"), ("write", "write"))
        clash = any(("a", one, n) in used and ("b", two, n) in used for one, two in kinds for n in range(-8, 20))
        assert (clash_of(accesses, [("a", "b", gap)]) is not None) == clash
        met += clash
    assert 50 < met < 250
