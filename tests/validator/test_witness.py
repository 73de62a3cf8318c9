"""Every UNSAFE has a witness that replays; a witness of something else does not."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from amk.adversary.system_builder import SystemBuilder
from amk.judges.replay import replay
from amk.validator.evidence.witness import (
    MalformedWitness,
    Witness,
    deadlock_witness,
    fault_witness,
    race_witness,
    witness_from_json,
)
from amk.validator.memory.flat import judge
from amk.validator.program.system import System
from tests.cases import cases
from tests.validator.random_systems import random_systems


def witnesses(system: System) -> list[Witness]:
    mine = judge(system, limit=None)
    found = [deadlock_witness(mine.run, mine.deadlock)] if mine.deadlock else []
    found += [race_witness(system, race) for race in mine.races.races]
    found += [race_witness(system, race, "unordered_sum") for race in mine.races.unordered_sums]
    return found + [fault_witness(mine.run, fault) for fault in mine.dataflow.faults]


@pytest.mark.turns(4)
def test_all_witnesses_of_random_systems_replay() -> None:
    kinds: Counter[str] = Counter()
    for system in random_systems(cases(700, 3000), seed=31):
        raw = system.to_json()
        for witness in witnesses(system):
            coded = json.loads(json.dumps(witness.to_json()))
            assert witness_from_json(coded, system) == witness
            assert replay(raw, coded), (raw, coded)
            kinds[witness.kind] += 1
    assert set(kinds) == {"deadlock", "race", "unordered_sum", "uninitialised", "stale", "partial", "final"}
    assert min(kinds.values()) > 20, kinds


def test_witnesses_of_larger_systems_replay() -> None:
    for system in random_systems(cases(30, 60), seed=32, max_agents=8, max_events=10):
        raw = system.to_json()
        assert all(replay(raw, witness.to_json()) for witness in witnesses(system)[:10])


def test_no_entry_of_a_witness_can_be_left_out() -> None:
    """Dropping any single step of the interleaving makes the replay fail, for every kind."""
    tried: Counter[str] = Counter()
    for system in random_systems(cases(150, 600), seed=34, max_agents=5, max_events=6):
        raw = system.to_json()
        for witness in witnesses(system)[:6]:
            coded = witness.to_json()
            steps = [agent for agent, count in witness.order for _ in range(count)]
            assert replay(raw, coded | {"order": [[agent, 1] for agent in steps]})
            for i in range(len(steps)):
                rest = [[agent, 1] for agent in (*steps[:i], *steps[i + 1 :])]
                assert not replay(raw, coded | {"order": rest}), (raw, coded, i)
                tried[witness.kind] += 1
    assert set(tried) == {"deadlock", "race", "unordered_sum", "uninitialised", "stale", "partial", "final"}


def test_a_knot_that_does_not_block_is_not_confirmed() -> None:
    build = SystemBuilder()
    left, right = build.agent(), build.agent()
    first, second = build.event(left), build.event(right)
    counter = build.counter()
    build.wait(first, counter, 1)
    build.signal(second, counter)
    raw = build.build().to_json()
    claim: dict[str, Any] = {"kind": "deadlock", "events": [first], "buffer": None, "byte": None, "order": []}
    assert not replay(raw, claim | {"wait_cycle": [[left, first, counter, 1, 0]]})
    assert not replay(raw, claim | {"wait_cycle": []})
    assert not replay(raw, claim | {"wait_cycle": [[left, first, counter, 2, 1]]})


def test_safe_systems_admit_no_claim() -> None:
    """Whatever a forged witness claims about a SAFE system, the simulator does not confirm it."""
    tried = 0
    for system in random_systems(cases(350, 1500), seed=33):
        mine = judge(system)
        if not mine.safe or system.events < 2:
            continue
        raw, legs = system.to_json(), mine.run.legs[:, [0, 2]].tolist()
        for cut in range(len(legs) + 1):
            base = {"order": legs[:cut], "buffer": 0, "byte": tried % 4}
            for kind in ("deadlock", "race", "uninitialised", "stale", "partial", "final"):
                claim = base | {"kind": kind, "events": [tried % system.events, (tried + 1) % system.events]}
                assert not replay(raw, claim), claim
                tried += 1
    assert tried > cases(700, 3000)


def test_slices_drop_what_the_race_does_not_need() -> None:
    build = SystemBuilder()
    bystander, left, right = build.agent(), build.agent(), build.agent()
    for _ in range(10):
        build.event(bystander)
    build.edge(build.event(left), last := build.event(right))
    build.write(last, 0, 0, 1)
    build.write(build.event(left), 0, 0, 1)
    system = build.build()
    (race,) = judge(system).races.races
    assert race_witness(system, race).order == ((left, 1),)


def test_an_illegal_interleaving_is_not_confirmed() -> None:
    build = SystemBuilder()
    first, second = build.event(build.agent()), build.event(build.agent())
    build.edge(first, second)
    raw = build.build().to_json()
    claim: dict[str, Any] = {"kind": "deadlock", "events": [], "buffer": None, "byte": None}
    assert not replay(raw, claim | {"order": [[1, 1]]})
    assert not replay(raw, claim | {"order": [[0, 1], [0, 1]]})
    assert not replay(raw, claim | {"order": [[0, 1]]})


@pytest.mark.parametrize(
    "change",
    [
        {"format": "x"},
        {"kind": "magic"},
        {"system": "0"},
        {"order": [[9, 1]]},
        {"order": [[0, 99]]},
        {"order": [[0]]},
        {"order": 3},
        {"events": [0]},
        {"events": [0, 99]},
        {"events": None},
        {"buffer": None},
        {"byte": -1},
        {"wait_cycle": [[1]]},
        {"more": 1},
    ],
)
def test_malformed_witnesses_are_named(change: dict[str, Any]) -> None:
    build = SystemBuilder()
    for _ in range(2):
        build.write(build.event(build.agent()), 0, 0, 1)
    system = build.build()
    raw = race_witness(system, judge(system).races.races[0]).to_json()
    assert witness_from_json(raw, system).kind == "race"
    with pytest.raises(MalformedWitness):
        witness_from_json(raw | change, system)
