"""A run that leaves events out ends where a greedy one ends, and is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from amk.validator.evidence.shortened_runs import PART, shortened
from amk.validator.order.greedy_run import Run, greedy
from amk.validator.program.builder import SystemBuilder
from amk.validator.program.system import System
from tests.cases import cases
from tests.validator.random_systems import random_systems


def runs(system: System, run: Run) -> bool:
    """Event by event: the next of its agent, and its waits hold; then what the run says of its end."""
    values, at = system.counter_init.copy(), np.zeros(system.agents, np.int64)
    for event in run.order.tolist():
        waits, signals = (slice(*f[event : event + 2].tolist()) for f in (system.wait_first, system.signal_first))
        if at[system.agent_of[event]] != system.index_of[event]:
            return False
        if (values[system.wait_counter[waits]] < system.wait_threshold[waits]).any():
            return False
        at[system.agent_of[event]] += 1
        np.add.at(values, system.signal_counter[signals], system.signal_amount[signals])
    return np.array_equal(at, run.cut) and np.array_equal(values, run.values)


def held_events(system: System, rng: Random) -> Iterator[list[int]]:
    for _ in range(4):
        some = rng.sample(range(system.events), min(system.events, rng.randint(0, 3)))
        yield list({int(system.agent_of[event]): event for event in some}.values())


@pytest.mark.parametrize("part", [PART, 3])
def test_shortened_runs_end_where_greedy_ones_do(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amk.validator.evidence.shortened_runs.PART", part)
    rng, seen = Random(3), Counter[str]()
    for system in random_systems(cases(400, 1500), 17, max_agents=6, max_events=9):
        if not (run := greedy(system)).complete:
            continue
        for held in held_events(system, rng):
            found, plain = shortened(run, held), greedy(system, held)
            assert np.array_equal(found.cut, plain.cut) and np.array_equal(found.values, plain.values)
            assert runs(system, found)
            end = np.where(np.isin(np.arange(system.agents), system.agent_of[held]), found.cut, system.agent_size)
            seen["nothing else stops"] += bool((found.cut == end).all())
            seen["others stop"] += bool((found.cut < end).any())
            # in another order than that of the complete run
            seen["goes on"] += bool((np.diff(run.position[found.order]) < 0).any())
    assert min(seen.values()) > cases(20, 50) and len(seen) == 3, seen


def test_what_later_signals_serve_as_well_runs_later() -> None:
    build = SystemBuilder()
    counter = build.counter()
    first, second, waiter = (build.event(build.agent()) for _ in range(3))
    build.signal(first, counter)
    build.wait(waiter, counter, 1)
    build.signal(second, counter)
    system = build.build()
    run = Run(system, np.array([[0, first, 1], [2, waiter, 1], [1, second, 1]]), system.agent_size, np.array([2]))
    assert shortened(run, [first]).order.tolist() == [second, waiter]


def test_only_a_complete_run_is_shortened() -> None:
    build = SystemBuilder()
    build.wait(build.event(build.agent()), build.counter(), 1)
    with pytest.raises(ValueError, match="complete"):
        shortened(greedy(build.build()), [])
