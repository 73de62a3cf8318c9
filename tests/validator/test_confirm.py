"""What is confirmed is what the flat system shows, by its definition."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, product
from random import Random
from typing import Any

import numpy as np
import pytest

from amk.adversary.edits import Edit, apply, steps
from amk.adversary.subjects import split_programs, users
from amk.adversary.system_builder import SystemBuilder
from amk.judges.replay import replay
from amk.report.diagnostic import AmkError
from amk.schedule_ir.references import check_references
from amk.schedule_ir.schedule import Schedule
from amk.validator.evidence import confirm
from amk.validator.evidence.compact import GONE
from amk.validator.evidence.confirm import Confirmer, Place, _both_enabled, _conflict, _local, clashes, confirmed_fault
from amk.validator.evidence.explanation import _node, explain
from amk.validator.evidence.flat_system import expand
from amk.validator.memory.composition import Composition, compose
from amk.validator.memory.races import Fault
from amk.validator.order.greedy_run import greedy
from amk.validator.order.two_levels import NotComposable
from amk.validator.program.system import WRITE, System
from amk.validator.verify import STATIC, verify
from tests.validator.one_edits import KINDS, buffer, moved
from tests.validator.plans import MODELS, SMALL, from_document, small_plan

EDITS = 24
SYNC = ("threshold", "amount", "no wait", "no signal", "relaxed", "no barrier", "moved step")


def edited(document: Any, rng: Random) -> Schedule:
    """After one edit, well-formed."""
    while True:
        with suppress(AmkError):
            schedule = from_document(apply(document, rng.choice((buffer, moved))(document, rng))[0])
            if not any(any(True for _ in check(schedule)) for check in STATIC):
                return schedule


def places(result: Composition, fault: Fault) -> tuple[Place | None, Place | None]:
    """The reader (None: the end) and the writer of a fault."""
    reader = _node(result, fault.event) if fault.event >= 0 else None
    return reader, _node(result, fault.writer) if fault.writer is not None and fault.writer >= 0 else None


@pytest.mark.turns(16)
@pytest.mark.parametrize("preset", ["fast", "naive"])
def test_wrong_content_that_is_confirmed_replays(preset: str) -> None:
    document = json.loads(small_plan(SMALL[preset]).model_dump_json())
    rng, seen = Random(5), Counter[str]()
    for _ in range(EDITS):
        result = compose(edited(document, rng))
        if result.dataflow is None or result.dataflow.correct:
            continue
        assert explain(result) is not None
        for fault in result.dataflow.faults[:2]:
            reader, writer = places(result, fault)
            if (found := confirmed_fault(result, fault, reader, writer)) is not None:
                assert replay(found.system.to_json(), found.witness.to_json())
                seen[found.kind] += 1
                first = (reader[0], reader[1], 0) if reader else None
                assert not first or not confirmed_fault(result, fault, first, writer), "the first step reads nothing"
                seen["of a reader"] += first is not None
    assert seen["of a reader"] > 3, seen


def test_where_something_races_a_fault_may_be_of_one_order_only() -> None:
    document = json.loads(small_plan(SMALL["naive"]).model_dump_json())
    document = apply(document, split_programs(document, 2))[0]
    (wait,) = (path for path in users(document, "best")[0] if path[1] == 1)
    result = compose(from_document(apply(document, [Edit("remove", wait)])[0]))
    assert result.live and result.races is not None and result.races.racy and result.dataflow is not None
    found = [(fault, *places(result, fault)) for fault in result.dataflow.faults[:6]]
    assert not all(confirmed_fault(result, *fault) for fault in found)


def test_evidence_is_written_piece_by_piece_as_it_is() -> None:
    document = json.loads(small_plan(SMALL["fast"]).model_dump_json())
    barriers = [path for path, step in steps(document) if step["op"]["op"] == "barrier"]
    cases = (verify(from_document(apply(document, [Edit("remove", path)])[0])) for path in barriers)
    found = next(verdict.evidence for verdict in cases if verdict.evidence is not None)
    assert found.kind == "race" and replay(found.system.to_json(), found.witness.to_json())
    assert found.to_json("a hash") == {
        "format": "amk.evidence/1", "schedule": "a hash", "edges": found.edges, "pos": found.start[0],
        "advance": 1, "system": found.system.to_json(), "witness": found.witness.to_json(),
    }  # fmt: skip


class Over(Exception):
    """The time."""


@pytest.mark.turns(4)
@pytest.mark.parametrize("looks", [1, 3])
def test_no_race_is_looked_at_when_the_time_is_over(looks: int) -> None:
    asked: list[int] = []

    def in_time() -> None:
        asked.append(1)
        if len(asked) == looks:
            raise Over

    document, rng = json.loads(small_plan(SMALL["naive"]).model_dump_json()), Random(5)
    for _ in range(EDITS):
        result = compose(edited(document, rng))
        asked.clear()
        try:
            explain(result, in_time)
        except Over:
            break
    assert len(asked) == looks, "some edit has so many looks, and none follows"


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", range(2))
def test_clashes_of_two_steps_are_their_accesses_to_a_common_byte(seed: int) -> None:
    result, seen = compose(small_plan(SMALL["fast"])), Counter[bool]()
    trace = result.groups[0].order.trace
    some = [n for n, item in enumerate(trace.items) if item.step.op.op != "barrier"]
    flat = expand(result.schedule, seed, 2, "word", {0, 1}, sure=True)
    for i, j in Random(seed).sample(list(combinations(some, 2)), 150):
        a, b = (trace, 0, i), (trace, j % 2, j)
        every = np.ones((len(_local(a)), len(_local(b))), bool)
        found = {(c.race.first, c.race.second): c for c in clashes(flat, a, b, every, "wait")}
        sides = [set(flat.parts_of(place[1], _local(place)).reshape(-1).tolist()) - {GONE} for place in (a, b)]
        expected = {tuple(sorted(pair)): first_conflict(flat.system, *sorted(pair)) for pair in product(*sides)}
        assert {pair: (c.race.buffer, c.race.lo, c.race.hi) for pair, c in found.items()} == {
            pair: conflict for pair, conflict in expected.items() if conflict
        }
        for clash in found.values():
            assert [flat.owner(event)[1] for event, *_ in clash.sides] == [p[1] for _, p, _ in clash.sides]
            assert WRITE in (clash.race.first_kind, clash.race.second_kind)
        assert not list(clashes(flat, a, b, ~every, "wait"))
        seen[bool(found)] += 1
    assert min(seen[True], seen[False]) > 9, seen


def first_conflict(system: System, x: int, y: int) -> tuple[int, int, int] | None:
    """(buffer, lo, hi) of the first rows of two events of different agents that touch a common byte, one writing."""
    if system.agent_of[x] == system.agent_of[y]:
        return None
    columns = (system.access_buffer, system.access_lo, system.access_hi, system.access_kind)
    one, two = (
        [[int(column[k]) for column in columns] for k in range(*system.access_first[e : e + 2].tolist())]
        for e in (x, y)
    )
    for (place, lo, hi, kind), (other, low, high, kind_) in product(one, two):
        if place == other and max(lo, low) < min(hi, high) and WRITE in (kind, kind_):
            return place, max(lo, low), min(hi, high)
    return None


def enabled(system: System, pair: tuple[int, int]) -> bool:
    """The definition: where a greedy run that leaves both out stops, both could run."""
    run = greedy(system, pair)
    for event in pair:
        span = slice(*system.wait_first[event : event + 2].tolist())
        met = (run.values[system.wait_counter[span]] >= system.wait_threshold[span]).all()
        if not met or run.cut[system.agent_of[event]] != system.index_of[event]:
            return False
    return True


def disturbed(name: str, rng: Random) -> Schedule | None:
    """A small plan with one edit of its synchronisation; None if it is not well-formed."""
    document = json.loads(small_plan(SMALL[name], MODELS["qk-norm"]).model_dump_json())
    try:
        schedule = Schedule.model_validate_json(json.dumps(apply(document, KINDS[rng.choice(SYNC)](document, rng))[0]))
        return None if check_references(schedule) else schedule
    except (AmkError, IndexError, ValueError):
        return None


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", ["fast", "two-warps", "naive"])
def test_what_the_composed_order_orders_is_never_enabled_together(name: str) -> None:
    """So these pairs are not put to the flat system."""
    rng, seen = Random(f"open {name}"), Counter[bool]()
    for _ in range(16):
        schedule = disturbed(name, rng)
        if schedule is None:
            continue
        try:
            result = compose(schedule, 2)
        except NotComposable:
            continue
        if result.order is None:
            continue
        confirmer, group = Confirmer(result, "word"), result.groups[0]
        flat = expand(schedule, 3, 2, "word", {0, 1}, sure=True)
        data = [n for n, item in enumerate(group.order.trace.items) if item.step.op.op != "barrier"]
        for at in (rng.randrange(len(data) - 3) for _ in range(6)):
            a, b = (
                (group.order.trace, 0, data[at]),
                (group.order.trace, 1, data[min(at + rng.choice((0, 1, 2, 3, len(data))), len(data) - 1)]),
            )
            open_ = confirmer._open(a, b)
            sides = (flat.events_of(place[1], _local(place)).tolist() for place in (a, b))
            for (i, x), (j, y) in product(*map(enumerate, sides)):
                together = enabled(flat.system, (x, y))
                assert bool(open_[i, j]) or not together
                seen[together] += 1
    assert min(seen[True], seen[False]) > 5, seen


def test_a_confirmed_race_is_enabled_by_the_definition() -> None:
    rng, confirmed = Random("confirmed"), 0
    for _ in range(16):
        schedule = disturbed("fast", rng)
        verdict = None if schedule is None else verify(schedule)
        if verdict is not None and verdict.evidence is not None and verdict.evidence.kind == "race":
            events = verdict.evidence.witness.events
            assert enabled(verdict.evidence.system, (events[0], events[1]))
            confirmed += 1
    assert confirmed > 2


def test_a_race_is_of_two_events_whose_waits_hold() -> None:
    build = SystemBuilder()
    one, other = build.event(build.agent()), build.event(build.agent())
    build.write(one, 0, 0, 4)
    build.write(other, 0, 0, 4)
    race, counter = _conflict(build.build(), one, other), build.counter()
    assert race is not None and _both_enabled(build.build(), race)
    build.signal(one, counter)
    build.wait(other, counter, 1)
    assert not _both_enabled(build.build(), race)


def test_a_large_system_is_tried_where_all_guesses_are_accepted_and_none(monkeypatch: pytest.MonkeyPatch) -> None:
    result = compose(small_plan(replace(SMALL["fast"], rows=4, accepts=True)), 2)
    every = confirm.starts(result)
    monkeypatch.setattr(confirm, "SMALL", confirm.nodes(result) - 1)
    few = confirm.starts(result)
    assert {advance for _, advance in every} == {1, 2, 3, 4} and {advance for _, advance in few} == {1, 4}
    assert {place for place, _ in few} == {place for place, _ in every} and few[0] == every[0]
