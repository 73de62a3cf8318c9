"""Deadlock: one greedy run decides.

Property: every interleaving of the system executes every event.

Assumptions: counters only grow, so an enabled event stays enabled until it runs. Reachable cuts are therefore closed
under join and there is one maximal cut; a system deadlocks iff that cut is not the full one.

Algorithm: run each agent as far as it goes; park it on the counter that blocks it; a signal wakes the waiters whose
threshold is met. Cost: O(events + waits log waits + signals).

Witness: the run itself ends in the stuck cut. The *wait cycle* explains it: agents D, each stuck at a head h_d with a
wait (c, t) such that  init(c) + (all increments of c outside X) < t,  where X = every event of D from h_d on. No event
of X can be the first of X to run, whatever the others do, so none ever runs. A wait cycle of one agent whose counter
receives too little in all is "too few producers"; otherwise it is a cycle of queues.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from amk.validator.program.system import I64, System


@dataclass(frozen=True, eq=False)
class Run:
    """A maximal run: ``legs`` [n, 3] = (agent, first event, events run in a row)."""

    system: System
    legs: I64
    cut: I64
    values: I64

    @property
    def complete(self) -> bool:
        return bool((self.cut == self.system.agent_size).all())

    @cached_property
    def order(self) -> I64:
        """[executed] event ids in the order they ran."""
        first, count = self.legs[:, 1], self.legs[:, 2]
        ends = np.cumsum(count)
        return np.repeat(first - (ends - count), count) + np.arange(int(ends[-1]) if len(ends) else 0)

    @cached_property
    def position(self) -> I64:
        """[events] rank in `order`; events that never run get the number of executed events."""
        position = np.full(self.system.events, len(self.order), dtype=np.int64)
        position[self.order] = np.arange(len(self.order))
        return position


class Machine:
    """Counter values, agent positions and parked waiters of one greedy run. What changes is in plain lists, because
    scalar access is the cost; the columns are read through views, because as lists they take 40 bytes a number."""

    def __init__(self, system: System, stops: Collection[int]) -> None:
        sync = np.flatnonzero((np.diff(system.wait_first) > 0) | (np.diff(system.signal_first) > 0))
        self.sync, self.first = sync.data, system.agent_first[:-1]
        bounds = np.searchsorted(sync, system.agent_first).tolist()
        self.cursor, self.last = bounds[:-1], bounds[1:]
        self.at, self.end = system.agent_first[:-1].tolist(), system.agent_first[1:].tolist()
        for event in stops:
            self.end[system.agent_of[event]] = event
            self.last[system.agent_of[event]] = int(np.searchsorted(sync, event))
        self.wait_first, self.signal_first = system.wait_first.data, system.signal_first.data
        self.wait_counter, self.threshold = system.wait_counter.data, system.wait_threshold.data
        self.signal_counter, self.amount = system.signal_counter.data, system.signal_amount.data
        self.value = system.counter_init.tolist()
        self.parked: list[list[tuple[int, int]]] = [[] for _ in self.value]
        self.held_up = [0] * system.agents
        self.ready = deque(range(system.agents))
        self.legs: list[tuple[int, int, int]] = []

    def run(self) -> None:
        """Run every ready agent to its next wait that does not hold, and park it there; its signals make others ready.

        One function, because what every agent would have to look up first costs as much as its steps.
        """
        value, parked, at, legs, sync = self.value, self.parked, self.at, self.legs, self.sync
        wait_first, wait_counter, threshold = self.wait_first, self.wait_counter, self.threshold
        signal_first, signal_counter, amount = self.signal_first, self.signal_counter, self.amount
        cursors, lasts, ends, held_up = self.cursor, self.last, self.end, self.held_up
        ready, next_ready = self.ready.append, self.ready.popleft
        while self.ready:
            agent = next_ready()
            cursor, last, stop = cursors[agent], lasts[agent], ends[agent]
            # counters only grow, so waits that held before the agent was parked hold still
            first = held_up[agent]
            while cursor < last:
                event = sync[cursor]
                for k in range(max(wait_first[event], first), wait_first[event + 1]):
                    counter = wait_counter[k]
                    if value[counter] < threshold[k]:
                        heappush(parked[counter], (threshold[k], agent))
                        held_up[agent], stop = k, event
                        break
                if stop == event:
                    break
                for k in range(signal_first[event], signal_first[event + 1]):
                    counter = signal_counter[k]
                    value[counter] += amount[k]
                    waiting = parked[counter]
                    while waiting and waiting[0][0] <= value[counter]:
                        ready(heappop(waiting)[1])
                cursor += 1
            cursors[agent] = cursor
            if stop > at[agent]:
                legs.append((agent, at[agent], stop - at[agent]))
                at[agent] = stop

    def release(self, agent: int, stop: int) -> None:
        """Let an agent that was held, and is not parked, run on until just before event ``stop``."""
        self.end[agent] = stop
        self.last[agent] = bisect_left(self.sync, stop)
        self.ready.append(agent)


def greedy(system: System, stops: Collection[int] = ()) -> Run:
    """The maximal run of the system that executes none of the held events (at most one per agent)."""
    machine = Machine(system, stops)
    machine.run()
    legs = np.array(machine.legs, dtype=np.int64).reshape(-1, 3)
    cut = np.array(machine.at, dtype=np.int64) - system.agent_first[:-1]
    return Run(system, legs, cut, np.array(machine.value, dtype=np.int64))


@dataclass(frozen=True)
class BlockedHead:
    """A head stuck at ``value < threshold``; ``missing`` = (agent, increments of the counter it has not delivered).

    attainable: counter value if every event of the system ran.
    """

    agent: int
    event: int
    counter: int
    value: int
    threshold: int
    missing: tuple[tuple[int, int], ...]
    attainable: int


@dataclass(frozen=True)
class Deadlock:
    cut: tuple[int, ...]
    heads: tuple[BlockedHead, ...]
    cause: Literal["too few producers", "cycle of queues"]
    wait_cycle: tuple[BlockedHead, ...]


def _missing(system: System, run: Run, counters: set[int]) -> dict[int, tuple[tuple[int, int], ...]]:
    """counter -> (agent, increments that never happened), by agent."""
    wanted = np.zeros(system.counters, bool)
    wanted[list(counters)] = True
    at = np.flatnonzero(wanted[system.signal_counter] & (run.position[system.signal_event] >= len(run.order)))
    pair = system.signal_counter[at] * system.agents + system.agent_of[system.signal_event[at]]
    key, which = np.unique(pair, return_inverse=True)
    amount = np.zeros(len(key), np.int64)
    np.add.at(amount, which.reshape(-1), system.signal_amount[at])
    found: dict[int, list[tuple[int, int]]] = {}
    for counter, agent, increments in zip(*(c.tolist() for c in (*np.divmod(key, system.agents), amount)), strict=True):
        found.setdefault(counter, []).append((agent, increments))
    return {counter: tuple(rows) for counter, rows in found.items()}


def _blocked_heads(system: System, run: Run) -> list[BlockedHead]:
    """Per stuck agent its failing wait; one that can never be met is preferred because it explains most."""
    agents = np.flatnonzero(run.cut < system.agent_size)
    failing: list[list[tuple[int, int, int, int]]] = []
    for event in (system.agent_first[agents] + run.cut[agents]).tolist():
        span = range(int(system.wait_first[event]), int(system.wait_first[event + 1]))
        waits = [(event, int(system.wait_counter[k]), int(system.wait_threshold[k])) for k in span]
        failing.append([(e, c, int(run.values[c]), t) for e, c, t in waits if run.values[c] < t])
    # once per counter: many agents may be stuck at one that many have not signalled
    missing = _missing(system, run, {counter for stuck in failing for _, counter, *_ in stuck})
    total = {counter: sum(amount for _, amount in rows) for counter, rows in missing.items()}
    heads = []
    for agent, stuck in zip(agents.tolist(), failing, strict=True):
        found = [BlockedHead(agent, e, c, v, t, missing.get(c, ()), v + total.get(c, 0)) for e, c, v, t in stuck]
        heads.append(min(found, key=lambda head: head.attainable - head.threshold))
    return heads


def _holds(head: BlockedHead, wait_cycle: set[int]) -> bool:
    """Head stays blocked even if every agent outside the wait cycle delivers all its increments."""
    return head.value + sum(amount for agent, amount in head.missing if agent not in wait_cycle) < head.threshold


def _wait_cycle(heads: list[BlockedHead]) -> tuple[BlockedHead, ...]:
    """An inclusion-minimal wait cycle among the blocked heads (all of them together always form one)."""
    starved = [head for head in heads if head.attainable < head.threshold]
    if starved:
        return (starved[0],)
    by_agent = {head.agent: head for head in heads}
    # following one supplier each from any head ends in a cycle; close it under further suppliers, then trim
    path = [heads[0].agent]
    while len(set(path)) == len(path):
        path.append(next(agent for agent, _ in by_agent[path[-1]].missing if agent in by_agent))
    wait_cycle = set(path[path.index(path[-1]) :])
    while open_heads := [agent for agent in wait_cycle if not _holds(by_agent[agent], wait_cycle)]:
        wait_cycle |= {agent for member in open_heads for agent, _ in by_agent[member].missing}
    for agent in sorted(wait_cycle):
        if all(_holds(by_agent[other], wait_cycle - {agent}) for other in wait_cycle - {agent}) and len(wait_cycle) > 1:
            wait_cycle.discard(agent)
    return tuple(by_agent[agent] for agent in sorted(wait_cycle))


def diagnose(run: Run) -> Deadlock | None:
    """Why the maximal run is not complete, or None if it is."""
    if run.complete:
        return None
    heads = _blocked_heads(run.system, run)
    wait_cycle = _wait_cycle(heads)
    starved = len(wait_cycle) == 1 and wait_cycle[0].attainable < wait_cycle[0].threshold
    cause: Literal["too few producers", "cycle of queues"] = "too few producers" if starved else "cycle of queues"
    return Deadlock(tuple(run.cut.tolist()), tuple(heads), cause, wait_cycle)
