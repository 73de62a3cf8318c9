"""Maximal runs that leave events out, found from a complete run.

Property: `shortened(run, held)` is a maximal run of the system that executes none of the held events, as
`greedy(system, held)` is. There is one maximal cut (see `liveness`), so they end alike; the events may come in another
order.

Algorithm: go through the complete run, which stands as it is up to the first held event, without those and what follows
them on their agents. Where the waits of an event no longer hold by its turn, leave it out too, with what follows it;
again, until all that is left of a part of the run can run as it stands. If the first event that was left out of some
agent could run at the end, because signals that are later in the complete run serve it as well, a greedy run goes on
from there.

Cost: a sort of the waits and signals of each part that runs, and a few operations on these columns per round, of which
there are as many as waits that are left out one for the other, mostly two or three. Parts of which nothing runs cost
nothing: held events mostly stop everything soon.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from amk.validator.order.greedy_run import Machine, Run
from amk.validator.program.sorting import by_key
from amk.validator.program.system import I64, Bools, System

PART: Final = 1 << 11
"""Events of the complete run that are looked at together."""


def shortened(run: Run, held: Collection[int]) -> Run:
    """The maximal run that executes none of the held events (at most one per agent); `run` is a complete one."""
    if not run.complete:
        raise ValueError("only a complete run shows what is in order")
    system, order = run.system, run.order
    end = system.agent_size.copy()
    for event in held:
        end[system.agent_of[event]] = system.index_of[event]
    first = min((int(run.position[event]) for event in held), default=len(order))
    values = system.counter_init + _given(system, run.position[system.signal_event] < first, slice(None))
    cut, left = end.copy(), order[first:]
    while len(left := left[system.index_of[left] < cut[system.agent_of[left]]]):
        values += _part(system, left[:PART], cut, values)
        left = left[PART:]
    order = order[system.index_of[order] < cut[system.agent_of[order]]]
    legs = np.stack((system.agent_of[order], order, np.ones_like(order)), axis=1)
    if not _stuck(system, end, cut, values):
        machine = Machine(system, held)
        machine.resume(cut, values)
        machine.run()
        legs = np.concatenate((legs, np.array(machine.legs, np.int64).reshape(-1, 3)))
        cut, values = np.array(machine.at, np.int64) - system.agent_first[:-1], np.array(machine.value, np.int64)
    return Run(system, legs, cut, values)


def _part(system: System, events: I64, cut: I64, values: I64) -> I64:
    """What those of these events add to the counters that can run in this order, given the values before; agents are
    cut at the first that cannot."""
    agent, index = system.agent_of[events], system.index_of[events]
    by, wait = _entries(system.wait_first, events)
    giving, signal = _entries(system.signal_first, events)
    place, counter = np.append(by, giving), np.append(system.wait_counter[wait], system.signal_counter[signal])
    # an event waits before it signals
    ranked = by_key(counter * len(events) + place)
    place, counter = place[ranked], counter[ranked]
    amount = np.append(np.zeros(len(wait), np.int64), system.signal_amount[signal])[ranked]
    waits = np.flatnonzero(ranked < len(wait))
    by, needed = place[waits], system.wait_threshold[wait[ranked[waits]]] - values[counter[waits]]
    fresh = np.flatnonzero(np.diff(counter, prepend=-1))
    start = np.repeat(fresh, np.diff(fresh, append=len(counter)))[waits]
    while True:
        there = index < cut[agent]
        given = np.append(0, np.cumsum(amount * there[place]))
        late = by[(given[waits] - given[start] < needed) & there[by]]
        if not len(late):
            return _given(system, there[giving], signal)
        np.minimum.at(cut, agent[late], index[late])


def _entries(first: I64, events: I64) -> tuple[I64, I64]:
    """(place among the events, entry) of all entries of these events in a table."""
    count = first[events + 1] - first[events]
    place = np.repeat(np.arange(len(events)), count)
    return place, np.arange(len(place)) + (first[events] - (np.cumsum(count) - count))[place]


def _given(system: System, there: Bools, signals: I64 | slice) -> I64:
    """[counters] what the signals that are there add."""
    amount = np.zeros(system.counters, np.int64)
    np.add.at(amount, system.signal_counter[signals][there], system.signal_amount[signals][there])
    return amount


def _stuck(system: System, end: I64, cut: I64, values: I64) -> bool:
    """Does some wait of the next event of every agent that has not come to its end not hold?"""
    stopped = np.flatnonzero(cut < end)
    place, wait = _entries(system.wait_first, (system.agent_first[:-1] + cut)[stopped])
    failing = values[system.wait_counter[wait]] < system.wait_threshold[wait]
    return bool(np.bincount(place[failing], minlength=len(stopped)).all())
