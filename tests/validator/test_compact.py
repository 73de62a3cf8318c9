"""What a compact system shows is what the whole one shows, and its interleavings are those of the whole one."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest

from amk.judges.replay import replay
from amk.validator.evidence import flat_system as expansion
from amk.validator.evidence.compact import GONE, Compact, compact
from amk.validator.evidence.flat_system import Flat, expand
from amk.validator.evidence.witness import Witness, fault_witness, race_witness
from amk.validator.memory.flat import judge
from amk.validator.order.greedy_run import diagnose, greedy
from amk.validator.program.system import I64, System, assemble
from tests.cases import cases
from tests.validator.plans import MODELS, SMALL, small_plan
from tests.validator.random_systems import random_systems

Rows = tuple[I64, I64, I64]


def thinned(system: System, rng: Random) -> tuple[System, Rows]:
    """The system with fewer signals and accesses, so that many events only wait or do nothing; its rows."""
    share = rng.choice((0.3, 0.6, 0.9))
    access = ("event", "buffer", "lo", "hi", "kind", "value", "delta")
    tables = {"wait": ("event", "counter", "threshold"), "signal": ("event", "counter", "amount"), "access": access}
    rows = [np.stack([getattr(system, f"{name}_{c}") for c in columns], axis=1) for name, columns in tables.items()]
    kept = [
        table[[name == "wait" or rng.random() < share for _ in table]] for name, table in zip(tables, rows, strict=True)
    ]
    edges = [
        np.stack([getattr(system, f"{end}_{c}") for c in ("buffer", "lo", "hi", "value", "delta")], axis=1)
        for end in ("initial", "final")
    ]
    whole = assemble(system.agents, system.agent_of, system.counter_init, *kept, *edges)[0]
    return whole, (kept[0], kept[1], kept[2])


def compact_system(whole: System, rows: Rows) -> tuple[System, Compact]:
    left = compact(whole.agent_of, *rows)
    edges = [
        np.stack([getattr(whole, f"{end}_{c}") for c in ("buffer", "lo", "hi", "value", "delta")], axis=1)
        for end in ("initial", "final")
    ]
    system, ids = assemble(whole.agents, whole.agent_of[left.events], whole.counter_init, *map(left.rows, rows), *edges)
    assert ids.tolist() == list(range(system.events)), "events are listed by agent already"
    return system, left


def in_whole(whole: System, left: Compact, system: System, witness: Witness) -> dict[str, Any]:
    """The witness of the compact system as one of the whole: what was left out runs as soon as it can."""
    order: list[list[int]] = []
    at, mine = whole.agent_first[:-1].tolist(), system.agent_first[:-1].tolist()
    for agent, count in witness.order:
        mine[agent] += count
        upto = int(left.events[mine[agent] - 1]) + 1
        order.append([agent, upto - at[agent]])
        at[agent] = upto
    for event in witness.events if witness.kind == "race" else ():
        before = int(left.events[event])
        agent = int(whole.agent_of[before])
        order.append([agent, before - at[agent]])
        at[agent] = before
    events = [int(left.events[event]) for event in witness.events]
    return witness.to_json() | {"system": whole.digest, "order": order, "events": events}


@pytest.mark.turns(4)
def test_findings_and_witnesses_are_those_of_the_whole_system() -> None:
    rng, seen = Random(71), Counter[str]()
    for drawn in random_systems(cases(600, 2500), seed=71, max_agents=4, max_events=7):
        whole, rows = thinned(drawn, rng)
        system, left = compact_system(whole, rows)
        mine, theirs = judge(system, limit=None), judge(whole, limit=None)
        assert mine.run.complete == theirs.run.complete
        number = {int(event): n for n, event in enumerate(left.events)}
        races = {(number[r.first], number[r.second], r.buffer, r.lo) for r in theirs.races.races}
        assert {(r.first, r.second, r.buffer, r.lo) for r in mine.races.races} == races
        assert mine.dataflow.correct == theirs.dataflow.correct or mine.races.racy
        raw = whole.to_json()
        for race in mine.races.races[:4]:
            assert replay(raw, in_whole(whole, left, system, race_witness(system, race)))
            seen["race"] += 1
        for fault in mine.dataflow.faults[:4]:
            found = fault_witness(mine.run, fault)
            if found.kind != "final":
                assert replay(raw, in_whole(whole, left, system, found)), found
                seen[found.kind] += 1
        seen["stuck"] += not mine.run.complete
        seen["left out"] += whole.events - system.events
    assert (
        set(seen) == {"race", "uninitialised", "stale", "partial", "stuck", "left out"} and min(seen.values()) > 20
    ), seen


def test_what_only_waits_joins_the_next_event_and_the_rest_goes() -> None:
    none = np.zeros((0, 3), np.int64)
    agent = np.array([0, 0, 0, 0, 1, 1, 1])
    waits = np.array([[1, 0, 1], [2, 1, 1], [5, 0, 1]])
    left = compact(agent, waits, np.array([[2, 2, 1]]), np.array([[4, 0, 0, 8, 0, 0, 0]]))
    assert left.events.tolist() == [2, 4, 5]
    assert left.into.tolist() == [GONE, 0, 0, GONE, 1, 2, GONE]
    assert left.rows(waits).tolist() == [[0, 0, 1], [0, 1, 1], [2, 0, 1]]
    assert compact(np.zeros(0, np.int64), none, none, none).events.tolist() == []


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expansion, "WHOLE", 0)


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("name", ["fast", "two-warps", "naive"])
def test_brief_systems_of_plans_number_what_they_keep(name: str) -> None:
    schedule = small_plan(SMALL[name], MODELS["qk-norm"])
    touching = {0, schedule.launch.workers - 1}
    whole = expand(schedule, 3, 2, "word", touching)
    brief = expand(schedule, 3, 2, "word", touching, brief=True)
    assert brief.system.events < 0.8 * whole.system.events
    assert greedy(brief.system).complete and greedy(whole.system).complete
    for mine, theirs in zip(brief.event_id, whole.event_id, strict=True):
        at = np.nonzero(mine != GONE)
        own, all_of_them = mine[at], theirs[at]
        assert (brief.system.agent_of[own] == whole.system.agent_of[all_of_them]).all()
        # every access, signal and wait is there, in the same order
        assert {*np.unique(own)} == {*range(brief.system.events)} - _others(brief)
    for table in ("wait", "signal", "access"):
        assert len(getattr(brief.system, f"{table}_event")) == len(getattr(whole.system, f"{table}_event"))


def _others(flat: Flat) -> set[int]:
    """Events of agents that only stand for words or weak signals, and those of other groups."""
    workers = {*np.concatenate([ids.reshape(-1) for ids in flat.event_id]).tolist()}
    assert len(flat.event_id) == 1
    return {e for e in range(flat.system.events) if flat.system.event_tag[e] < 0 or e not in workers}


@pytest.mark.usefixtures("everything_is_large")
def test_a_wait_of_a_joined_event_is_told_where_it_stands() -> None:
    """The first wait of the first step that waits asks for too much: everybody else gets stuck somewhere."""
    schedule = small_plan(SMALL["naive"], MODELS["qk-norm"])
    counters = tuple(c.model_copy(update={"init": 0}) for c in schedule.counters)
    programs = tuple(p.model_copy(update={"body": _without_signals(p.body)}) for p in schedule.programs)
    stuck = schedule.model_copy(update={"counters": counters, "programs": programs})
    found = []
    for brief in (False, True):
        flat = expand(stuck, 0, 1, touching=(), brief=brief)
        deadlock = diagnose(greedy(flat.system))
        assert deadlock is not None
        places = [flat.waiter(h.event, h.counter) for h in deadlock.heads]
        found.append({(trace.program.name, worker, event) for trace, worker, event in places})
    assert found[0] == found[1] and len(found[0]) > 1


def _without_signals(body: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        node.model_copy(update={"body": _without_signals(node.body)} if hasattr(node, "body") else {"signals": ()})
        for node in body
    )
