"""What the two steps of a fault show by themselves, the flat system shows too; it is not made until somebody asks."""

from __future__ import annotations

import gc
import json
from collections import Counter
from contextlib import suppress
from itertools import combinations
from random import Random
from typing import Any

import numpy as np
import pytest

from amk.adversary.edits import Edit, apply, steps
from amk.adversary.recipe import TINY
from amk.adversary.subjects import move, split_programs, users
from amk.judges.replay import replay
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from amk.validator.evidence import confirm, faults
from amk.validator.evidence import explanation as evidence
from amk.validator.evidence.confirm import Confirmer, Place, Touching, positions
from amk.validator.evidence.flat_system import expand
from amk.validator.memory.atoms import blocks, touches_of
from amk.validator.memory.composition import Composition, compose
from amk.validator.memory.dataflow import Fault, find_faults
from amk.validator.memory.races import RaceReport
from amk.validator.order.greedy_run import greedy
from amk.validator.verify import STATIC, verify
from tests.validator.one_edits import buffer, moved
from tests.validator.plans import SMALL, from_document, small_plan

EDITS = 24
ROW = 4 * TINY.head_dim
"""Bytes of a split's part of one head."""


def edited(document: Any, rng: Random) -> Schedule:
    """After one edit, well-formed."""
    while True:
        with suppress(AmkError):
            schedule = from_document(apply(document, rng.choice((buffer, moved))(document, rng))[0])
            if not any(any(True for _ in check(schedule)) for check in STATIC):
                return schedule


def places(result: Composition, fault: Fault) -> tuple[Place | None, Place | None]:
    """The reader (None: the end) and the writer of a fault."""
    reader = evidence._node(result, fault.event) if fault.event >= 0 else None
    return reader, evidence._node(result, fault.writer) if fault.writer is not None and fault.writer >= 0 else None


@pytest.mark.turns(2)
@pytest.mark.parametrize("preset", ["fast", "naive"])
def test_evident_faults_are_in_the_flat_system_of_that_position(preset: str) -> None:
    document = json.loads(small_plan(SMALL[preset]).model_dump_json())
    rng, seen = Random(5), Counter[str]()
    for _ in range(EDITS):
        changed = edited(document, rng)
        result = compose(changed)
        if result.dataflow is None or result.dataflow.correct:
            continue
        assert evidence.explain(result) is not None
        for fault in result.dataflow.faults[:3]:
            reader, writer = places(result, fault)
            pos = positions(result, frozenset(place[1] for place in (reader, writer) if place))[0]
            if faults._evident(result, fault, reader, writer, pos):
                flat = expand(changed, pos, 2, "word")
                events = faults._flat_events(flat, *reader) if reader else [-1]
                run = greedy(flat.system)
                found = find_faults(blocks(touches_of(run)), None).faults
                assert run.complete and any(f.event in events and f.kind == fault.kind for f in found)
                seen[fault.kind] += 1
    assert sum(seen.values()) > 3, seen


def test_no_fault_is_evident_where_something_races() -> None:
    """Which access comes first is anybody's guess there."""
    document = json.loads(small_plan(SMALL["naive"]).model_dump_json())
    document = apply(document, split_programs(document, 2))[0]
    (wait,) = (path for path in users(document, "best")[0] if path[1] == 1)
    result = compose(from_document(apply(document, [Edit("remove", wait)])[0]))
    assert result.live and not result.unraced and result.dataflow is not None
    found = [(fault, *places(result, fault)) for fault in result.dataflow.faults[:6]]
    assert not any(faults.evident_fault(result, *fault) for fault in found)
    assert not all(faults.confirmed_fault(result, *fault) for fault in found)


def test_a_step_leaves_nothing_at_positions_where_it_does_not_write() -> None:
    """The second split has no position but the last, so in a first token nobody reads or writes its part.

    Each `combine` comes before the `merge` that it needs, so those of the second token find what the first one left.
    The two also race, which is left aside here: what the steps show by themselves is looked at.
    """
    document = json.loads(
        small_plan(SMALL["naive"], TINY.model_copy(update={"max_context": 9, "layers": 1})).model_dump_json()
    )
    merge, combine = (next(p for p, s in steps(document) if s["op"]["op"] == op) for op in ("merge", "combine"))
    result = compose(from_document(apply(document, move(document, combine, merge[-1] - combine[-1]))[0]))
    assert result.dataflow is not None and not result.unraced
    result.races = result.overwritten = result.unseen = RaceReport(False, True, (), (), False)
    seen = Counter[tuple[str, int, bool]]()
    for fault in result.dataflow.faults[:16]:
        reader, writer = places(result, fault)
        tried = positions(result, frozenset(place[1] for place in (reader, writer) if place))
        shown = any(faults._evident(result, fault, reader, writer, pos) for pos in tried)
        assert result.schedule.buffers[fault.buffer].name == "split_partial"
        seen[fault.kind, fault.lo // ROW % 2, shown] += 1
    kinds = "stale", "uninitialised"
    assert set(seen) == {(kind, split, split == 0) for kind in kinds for split in range(2)}, seen


def test_an_evident_fault_costs_no_flat_system_until_its_witness_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(small_plan(SMALL["fast"]).model_dump_json())
    made: list[int] = []

    def counted(*args: object, **named: object) -> object:
        made.append(1)
        return expand(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(faults, "expand", counted)
    rng = Random(5)
    while True:
        verdict = verify(edited(document, rng))
        if verdict.evidence is not None and verdict.evidence.kind in ("stale", "uninitialised") and not made:
            break
        made.clear()
    assert replay(verdict.evidence.system.to_json(), verdict.evidence.witness.to_json())
    assert made
    assert "".join(verdict.evidence.json_parts("a hash")) == json.dumps(verdict.evidence.to_json("a hash"))


def test_only_before_a_large_system_is_made_the_memory_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search takes a quarter of a second in a process that judges many small schedules."""
    document = json.loads(small_plan(SMALL["fast"]).model_dump_json())
    barriers = [path for path, step in steps(document) if step["op"]["op"] == "barrier"]
    cases = (from_document(apply(document, [Edit("remove", path)])[0]) for path in barriers)
    broken, searched = next(case for case in cases if verify(case).evidence is not None), list[int]()
    monkeypatch.setattr(gc, "collect", lambda: searched.append(1))
    for whole, times in ((confirm.WHOLE, 0), (1, 1)):
        monkeypatch.setattr(confirm, "WHOLE", whole)
        found = verify(broken).evidence
        assert found is not None and found.system.events > 1
        assert len(searched) == times


class Over(Exception):
    """The time."""


@pytest.mark.parametrize("looks", [1, 3])
def test_no_race_is_looked_at_when_the_time_is_over(looks: int) -> None:
    asked: list[int] = []

    def in_time() -> None:
        asked.append(1)
        if len(asked) == looks:
            raise Over

    document = json.loads(small_plan(SMALL["fast"]).model_dump_json())
    for path, step in steps(document):
        if step["op"]["op"] == "barrier":
            result = compose(from_document(apply(document, [Edit("remove", path)])[0]))
            asked.clear()
            try:
                evidence.explain(result, in_time)
            except Over:
                break
    assert len(asked) == looks, "some edit has so many looks, and none follows"


@pytest.mark.turns(2)
def test_clashes_of_two_steps_are_those_of_every_position() -> None:
    result, seen = compose(small_plan(SMALL["fast"])), Counter[tuple[bool, bool]]()
    trace = result.groups[0].order.trace
    asked, plain = Confirmer(result, "word"), Confirmer(result, "word")
    some = [n for n, item in enumerate(trace.items) if item.step.op.op != "barrier"]
    for i, j in Random(1).sample(list(combinations(some, 2)), 900):
        a, b = (trace, 0, i), (trace, j % 2, j)
        tried = positions(result, frozenset((a[1], b[1])))
        every = np.ones((len(confirm._warps(a)), len(confirm._warps(b))), bool)
        sides = [(pos, plain._touching(a, pos), plain._touching(b, pos)) for pos in tried]
        apart = [told(pos, *met) for pos, one, two in sides for met in confirm._meeting(one, two, every)]
        assert [told(*met) for met in asked._met(a, b, every)] == apart
        assert not asked._met(a, b, ~every)
        differ = len({clash[1:] for clash in apart}) * len(tried) != len(apart)
        seen[differ, asked._positional(a, tried[0]) or asked._positional(b, tried[0])] += bool(apart)
    assert seen[False, False] > 9 and seen[True, True] > 9 and not seen[True, False], seen


def told(pos: int, first: Touching, second: Touching) -> tuple[Any, ...]:
    clash = confirm._clash(pos, first, second)
    return pos, first.event, second.event, clash.buffer, clash.lo, clash.hi, clash.kinds
