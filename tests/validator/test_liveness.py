"""Deadlock verdicts, causes and wait cycles."""

from __future__ import annotations

from random import Random

import numpy as np

from amk.adversary.system_builder import SystemBuilder
from amk.judges.explore import explore
from amk.systems.replayed_run import replayed
from amk.validator.order.greedy_run import Deadlock, diagnose, greedy
from amk.validator.program.system import System
from tests.cases import cases
from tests.validator.random_systems import random_systems


def ring(queues: int, inverted: bool) -> System:
    """Queue k runs producer k then consumer k (inverted: consumer first); consumer k waits for producer k+1."""
    build = SystemBuilder()
    counters = [build.counter() for _ in range(queues)]
    for k in range(queues):
        agent = build.agent()
        events = [build.event(agent), build.event(agent)]
        producer, consumer = reversed(events) if inverted else events
        build.signal(producer, counters[k])
        build.wait(consumer, counters[(k + 1) % queues], 1)
    return build.build()


def knot_is_static(system: System, deadlock: Deadlock) -> bool:
    """The wait cycle's own claim: increments from outside never reach any of its thresholds."""
    outside = {head.agent: head.event for head in deadlock.wait_cycle}
    for head in deadlock.wait_cycle:
        value = int(system.counter_init[head.counter])
        for k in range(len(system.signal_counter)):
            event = int(system.signal_event[k])
            agent = int(system.agent_of[event])
            if system.signal_counter[k] == head.counter and event < outside.get(agent, system.events):
                value += int(system.signal_amount[k])
        if value >= head.threshold:
            return False
    return bool(deadlock.wait_cycle)


def test_queue_cycles_deadlock_only_when_inverted() -> None:
    for queues in range(2, 8):
        assert diagnose(greedy(ring(queues, inverted=False))) is None
        deadlock = diagnose(greedy(ring(queues, inverted=True)))
        assert deadlock is not None and deadlock.cause == "cycle of queues"
        assert len(deadlock.wait_cycle) == queues and deadlock.cut == (0,) * queues


def test_too_few_producers_names_the_counter() -> None:
    build = SystemBuilder()
    counter = build.counter(1)
    build.signal(build.event(build.agent()), counter, 2)
    waiter = build.event(build.agent())
    build.wait(waiter, counter, 4)
    deadlock = diagnose(greedy(build.build()))
    assert deadlock is not None and deadlock.cause == "too few producers"
    (head,) = deadlock.wait_cycle
    assert (head.value, head.threshold, head.attainable, head.missing) == (3, 4, 3, ())


def test_waiting_for_ones_own_signal_is_a_cycle_of_one() -> None:
    build = SystemBuilder()
    counter, event = build.counter(), build.event(build.agent())
    build.wait(event, counter, 1)
    build.signal(event, counter)
    deadlock = diagnose(greedy(build.build()))
    assert deadlock is not None and deadlock.cause == "cycle of queues"
    assert deadlock.wait_cycle[0].missing == ((0, 1),)


def test_bystanders_are_not_in_the_knot() -> None:
    """An agent that waits for the cycle is blocked too, but is not its cause."""
    build = SystemBuilder()
    a, b, c = build.counter(), build.counter(), build.counter()
    for mine, other in ((a, b), (b, a)):
        event = build.event(build.agent())
        build.wait(event, other, 1)
        build.signal(event, mine)
    bystander = build.event(build.agent())
    build.wait(bystander, a, 1)
    build.signal(bystander, c)
    deadlock = diagnose(greedy(build.build()))
    assert deadlock is not None and len(deadlock.heads) == 3
    assert {head.agent for head in deadlock.wait_cycle} == {0, 1}


def test_knots_of_random_deadlocks_are_proofs_by_themselves() -> None:
    found = {"cycle of queues": 0, "too few producers": 0}
    for system in random_systems(cases(800, 3000), seed=21):
        deadlock = diagnose(greedy(system))
        if deadlock is not None:
            found[deadlock.cause] += 1
            assert knot_is_static(system, deadlock)
    assert min(found.values()) > 20, found


def test_held_events_stop_the_run_where_exploration_says() -> None:
    for system in random_systems(cases(100, 300), seed=22):
        run = greedy(system, (0,))
        assert run.position[0] == len(run.order)
        truth = explore(system)
        assert tuple(run.cut.tolist()) <= max(truth.maximal)


def test_a_run_is_in_program_order_and_leaves_no_event_twice() -> None:
    for system in random_systems(cases(60, 200), seed=23):
        order = greedy(system).order.tolist()
        assert len(set(order)) == len(order)
        for agent in range(system.agents):
            mine = [event for event in order if system.agent_of[event] == agent]
            assert mine == list(range(int(system.agent_first[agent]), int(system.agent_first[agent]) + len(mine)))


def test_empty_systems_are_live() -> None:
    assert diagnose(greedy(SystemBuilder().build())) is None
    build = SystemBuilder()
    build.agent()
    assert diagnose(greedy(build.build())) is None


def is_run(system: System, order: list[int]) -> bool:
    """The definition: every event is the next of its agent, and its waits hold when it runs."""
    values, done = system.counter_init.tolist(), [0] * system.agents
    for event in order:
        agent = int(system.agent_of[event])
        waits = range(*system.wait_first[event : event + 2].tolist())
        if done[agent] != system.index_of[event]:
            return False
        if any(values[system.wait_counter[k]] < system.wait_threshold[k] for k in waits):
            return False
        done[agent] += 1
        for k in range(*system.signal_first[event : event + 2].tolist()):
            values[system.signal_counter[k]] += int(system.signal_amount[k])
    return True


def test_an_order_replays_if_and_only_if_it_is_a_run() -> None:
    rng, seen = Random(11), {True: 0, False: 0}
    for system in random_systems(seed=11, count=400):
        run = greedy(system)
        if not run.complete or system.events < 2:
            continue
        for swaps in range(4):
            order = run.order.tolist()
            for _ in range(swaps):
                i = rng.randrange(len(order) - 1)
                order[i], order[i + 1] = order[i + 1], order[i]
            found = replayed(system, np.array(order, np.int64))
            assert (found is not None) == is_run(system, order), order
            seen[found is not None] += 1
            if found is not None:
                assert found.complete and found.order.tolist() == order
                assert found.values.tolist() == run.values.tolist()
    assert min(seen.values()) > 50, seen
    assert replayed(ring(3, inverted=False), np.arange(2)) is None
