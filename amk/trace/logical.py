"""When every event of a flat system would run if each had a given length and nothing else cost time.

One run, not a proof: agents run ahead as far as their waits allow, an event begins when its last wait is met and
signals when it ends. Times are in the unit of the lengths. Cost: O((events + waits + signals) log agents).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

import numpy as np
import numpy.typing as npt

from amk.validator.program.system import I64, System

F64 = npt.NDArray[np.float64]
NEVER: Final = np.inf


@dataclass(frozen=True, eq=False)
class LogicalRun:
    """Per event: ready (its agent gets to it), begin, end; NEVER if it does not happen.

    release: event whose signal let it begin, -1 if none had to be waited for; wait: index of that wait in the system.
    signallers: per counter, the events that signalled it in the order of the run, with the value that each left.
    """

    ready: F64
    begin: F64
    end: F64
    release: I64
    wait: I64
    signallers: list[list[tuple[int, int]]]

    def givers(self, counter: int, threshold: int) -> list[int]:
        """Events up to the one that brought the counter to the threshold, that one first; none if none had to."""
        rows = self.signallers[counter]
        count = bisect_left(rows, (threshold, -1)) + 1
        return [event for _, event in reversed(rows[:count])]


def logical_run(system: System, length: F64) -> LogicalRun:
    """length: [events], not negative."""
    return _Run(system, length).finish()


class _Run:
    """Plain lists, because scalar access is the cost."""

    def __init__(self, system: System, length: F64) -> None:
        self.system, self.length = system, length.tolist()
        self.first = system.agent_first.tolist()
        self.at = self.first[:-1]
        self.wait_first, self.signal_first = system.wait_first.tolist(), system.signal_first.tolist()
        self.wait_counter, self.threshold = system.wait_counter.tolist(), system.wait_threshold.tolist()
        self.signal_counter, self.amount = system.signal_counter.tolist(), system.signal_amount.tolist()
        self.value = system.counter_init.tolist()
        self.parked: list[list[tuple[int, int]]] = [[] for _ in self.value]
        self.ready, self.begin, self.end = ([NEVER] * system.events for _ in range(3))
        self.release, self.wait = [-1] * system.events, [-1] * system.events
        self.signallers: list[list[tuple[int, int]]] = [[] for _ in self.value]
        self.heap: list[tuple[float, int]] = []

    def finish(self) -> LogicalRun:
        for agent in range(self.system.agents):
            self._arrive(agent, 0.0)
        while self.heap:
            now, event = heappop(self.heap)
            agent = int(self.system.agent_of[event])
            self._signal(event, now)
            self.at[agent] += 1
            self._arrive(agent, now)
        ready, begin, end = (np.array(column, np.float64) for column in (self.ready, self.begin, self.end))
        return LogicalRun(
            ready, begin, end, np.array(self.release, np.int64), np.array(self.wait, np.int64), self.signallers
        )

    def _arrive(self, agent: int, now: float) -> None:
        event = self.at[agent]
        if event < self.first[agent + 1]:
            self.ready[event] = now
            self._try(agent, event, now)

    def _try(self, agent: int, event: int, now: float) -> None:
        """Begin the event, or park its agent at the first wait that does not hold."""
        for k in range(self.wait_first[event], self.wait_first[event + 1]):
            counter = self.wait_counter[k]
            if self.value[counter] < self.threshold[k]:
                self.wait[event] = k
                heappush(self.parked[counter], (self.threshold[k], agent))
                return
        self.begin[event] = now
        self.end[event] = now + self.length[event]
        heappush(self.heap, (self.end[event], event))

    def _signal(self, event: int, now: float) -> None:
        for k in range(self.signal_first[event], self.signal_first[event + 1]):
            counter = self.signal_counter[k]
            self.value[counter] += self.amount[k]
            self.signallers[counter].append((self.value[counter], event))
            parked = self.parked[counter]
            while parked and parked[0][0] <= self.value[counter]:
                agent = heappop(parked)[1]
                self.release[self.at[agent]] = event
                self._try(agent, self.at[agent], now)
