"""The polynomial checks equal exploration by definition: verdict, maximal cut, every clock, races, reads-from."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amk.judges.explore import (
    Exploration,
    Programs,
    explore,
    explore_memory,
    must_precede,
    races_by_definition,
)
from amk.validator.memory.flat import Judgement, judge
from amk.validator.memory.races import Race
from amk.validator.program.system import System
from tests.cases import cases
from tests.validator.batches import differences
from tests.validator.compiled_explorer import compiler, explore_all
from tests.validator.random_systems import random_batch, random_system, random_systems

SYSTEMS = cases(500, 2_000)
BATCH = 50
Faults = set[tuple[str, int, int, int]]


def pairs(races: tuple[Race, ...]) -> frozenset[tuple[int, int]]:
    return frozenset((race.first, race.second) for race in races)


def faults(judgement: Judgement) -> Faults:
    """(kind, event, buffer, byte) in the explorer's terms: it blames a partial sum on the late addition."""
    found: Faults = set()
    for fault in judgement.dataflow.faults:
        late = fault.writer if fault.kind == "partial" else None
        event = fault.event if late is None else late
        found |= {(fault.kind, event, fault.buffer, byte) for byte in range(fault.lo, fault.hi)}
    return found


def compare(system: System, truth: Exploration, mine: Judgement) -> None:
    assert (mine.deadlock is not None) == truth.deadlock
    assert truth.maximal == {tuple(mine.run.cut.tolist())}
    top = tuple(system.agent_size.tolist())
    clocks = [tuple(row) for row in mine.clocks.matrix().tolist()]
    assert clocks == [truth.earliest.get(event, top) for event in range(system.events)]
    assert pairs(mine.races.races) == truth.races
    assert mine.races.racy == bool(truth.races)
    if not truth.races:
        assert pairs(mine.races.unordered_sums) == truth.unordered_sums
        assert mine.races.deterministic == (not truth.unordered_sums)


def compare_memory(system: System, mine: Judgement) -> None:
    """Found faults are real; in a race-free system none are missed (which ones a racing sum shows may differ)."""
    truth = explore_memory(system)
    assert faults(mine) <= truth
    if not mine.races.racy:
        assert mine.dataflow.correct == (not truth)


@pytest.mark.turns(4)
def test_random_systems_agree_with_exploration() -> None:
    """Also what is read and written, which the compiled exploration of fifty thousand leaves out."""
    seen = {"deadlock": 0, "racy": 0, "safe": 0, "faulty": 0, "unordered": 0}
    for system in random_systems(SYSTEMS, seed=2024):
        mine, truth = judge(system, limit=None), explore(system)
        compare(system, truth, mine)
        compare_memory(system, mine)
        seen["deadlock"] += truth.deadlock
        seen["racy"] += bool(truth.races)
        seen["safe"] += mine.safe
        seen["faulty"] += not truth.races and not mine.dataflow.correct
        seen["unordered"] += not truth.races and bool(truth.unordered_sums)
    assert min(seen.values()) > SYSTEMS // 200, seen


@given(st.randoms(use_true_random=False))
@settings(max_examples=cases(50, 150), deadline=None)
def test_drawn_systems_agree_with_exploration(rng: Random) -> None:
    system = random_system(rng)
    mine = judge(system, limit=None)
    compare(system, explore(system), mine)
    compare_memory(system, mine)


def test_small_blocks_change_nothing() -> None:
    for system in random_systems(cases(80, 300), seed=3):
        whole, cut = judge(system, limit=None), judge(system, limit=None, block=1)
        assert pairs(whole.races.races) == pairs(cut.races.races)
        assert whole.races.deterministic == cut.races.deterministic
        assert faults(whole) == faults(cut)


def test_withheld_runs_agree_with_clocks_on_larger_systems() -> None:
    """Too many cuts to visit; per conflicting pair the withheld run is the definition."""
    for system in random_systems(cases(50, 150), seed=4, max_agents=8, max_events=8):
        mine = judge(system, limit=None)
        assert pairs(mine.races.races) == races_by_definition(system)
        if not mine.races.racy:
            assert pairs(mine.races.unordered_sums) == races_by_definition(system, keep_sums=True)


def test_withheld_runs_agree_with_every_clock() -> None:
    for system in random_systems(cases(20, 60), seed=6):
        code, clocks = Programs(system), judge(system).clocks.matrix()
        for after in range(system.events):
            for before in range(system.events):
                counted = clocks[after, system.agent_of[before]] > system.index_of[before]
                assert counted == (before != after and must_precede(code, before, after)) or before == after


@pytest.mark.turns(4)
@pytest.mark.skipif(compiler() is None, reason="needs a C compiler")
def test_thousands_of_random_systems_agree_with_compiled_exploration() -> None:
    """A slice of the recorded million (`tests.validator.long_checks random`)."""
    rng, seen, number = Random(7), Counter[str](), cases(15_000, 50_000)
    for _ in range(number // BATCH):
        found, counts = differences(random_batch(rng, BATCH))
        assert not found
        seen.update(counts)
    assert seen["systems"] == number and min(seen["deadlock"], seen["racy"]) > number // 50


@pytest.mark.skipif(compiler() is None, reason="needs a C compiler")
def test_compiled_exploration_is_the_python_one() -> None:
    for seed in range(40):
        batch = random_batch(Random(seed), 1)
        truth, compiled = explore(batch.system), explore_all(batch.system, batch.first_agent)
        assert (compiled.stuck[0], compiled.states) == (len(truth.maximal), truth.states)
        assert {tuple(compiled.cut.tolist())} == truth.maximal
        earliest = {e: tuple(compiled.earliest[e, : batch.system.agents].tolist()) for e in truth.earliest}
        assert earliest == truth.earliest
        assert (compiled.races, compiled.sums) == (truth.races, truth.unordered_sums)
