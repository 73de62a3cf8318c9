"""Clocks by throttled runs: one greedy run per agent, exact, at a cost that does not depend on convergence.

Property: ``P(b)[w]`` = least k such that b starts in some execution in which agent w runs only its first k events.

Algorithm: for each agent w, run greedily with w stopped before its first event; what runs needs none of w. Let w run on
to its next signal, continue, and what runs now needs w that far; and so on. Each agent costs one greedy run, so all
clocks cost O(agents * (events + waits + signals)): more than the fixpoint where that converges at once, far less where
shared counters with partial thresholds make it creep.
"""

from __future__ import annotations

import numpy as np

from amk.validator.order.greedy_run import Machine
from amk.validator.program.system import I64, System


def needed_of(system: System, agent: int) -> I64:
    """[events] how many first events of ``agent`` finish before each event starts (if it ever does)."""
    first, end = int(system.agent_first[agent]), int(system.agent_first[agent + 1])
    stops = first + 1 + np.flatnonzero(np.diff(system.signal_first[first : end + 1]) > 0)
    machine = Machine(system, (first,) if first < end else ())
    machine.run()
    phases = [(0, len(machine.legs))]
    for stop in stops.tolist():
        before = len(machine.legs)
        machine.release(agent, stop)
        machine.run()
        phases.append((stop - first, len(machine.legs) - before))
        if machine.at[agent] < stop:
            break
    legs = np.array(machine.legs, dtype=np.int64).reshape(-1, 3)
    counted, spans = np.array(phases, dtype=np.int64).T
    count = legs[:, 2]
    events = np.repeat(legs[:, 1] - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
    needed = np.full(system.events, end - first, dtype=np.int64)
    needed[events] = np.repeat(np.repeat(counted, spans), count)
    needed[first:end] = np.arange(end - first)
    return needed
