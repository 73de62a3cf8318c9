"""Barriers by phase and flags by value as counters that only grow, with what must hold for that to be the same.

A barrier becomes the count of all arrivals and bytes that it ever got, a flag the number of stores. One complete run
tells which phase each wait means, and so its threshold. The wait means this phase in every run if the count stays in a
*count range* while the wait is pending: never as low as the phase before of the same parity, never as high as the one
after.

Property: if every count range holds in the system of counters, both systems have the same runs. The proof is by
induction over a run. As long as every count is in its ranges, both systems meet the same waits. So the first count
outside of one would be outside in both.

Arrivals have count ranges where a phase could end elsewhere:

* A wait for the next phase means the phase of the arrival before it, so that arrival has one.
* So has everything that arrives at a barrier that counts bytes, or at which some call arrives several times. Its phases
  then consist of the same arrivals in each run, and no arrival reaches over the end of its phase.
* A call that expects bytes and does not arrive must come before some arrival of its phase. Otherwise the arrivals could
  end the phase first.

The upper end holds iff the event must happen before a watcher, an agent that waits for the count and does nothing else.
The lower end holds if the arrivals that must happen before the event are enough.

Cost: a greedy run, and clocks of as many waits more as there are different upper ends.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from amk.systems.flat_judge import I64, Clocks, Counts, System
from amk.systems.flat_system import FlatSystem
from amk.systems.machine import Machine
from amk.systems.rules import ADD, EQUAL, EXPECT, NEXT_PHASE, ONLY_EXPECT, PARITY, STORE, Rules


@dataclass(frozen=True)
class CountRange:
    """Until the event starts, and from when its agent gets there, low <= count of the counter; count < high, if any."""

    event: int
    counter: int
    low: int
    high: int | None
    waits: bool
    """It is of a wait, which is no evidence for its own count range."""


@dataclass(frozen=True, eq=False)
class Grown:
    """The system of counters, with watchers behind its own agents; events keep their numbers."""

    block: System
    count_ranges: tuple[CountRange, ...]
    watcher: dict[tuple[int, int], int]
    """Event that waits for the counter to be at least that."""
    arrivals: dict[int, tuple[CountRange, tuple[int, ...]]]
    """Of every event that only expects bytes: its count range, and the arrivals of its phase."""


def grown(system: FlatSystem, run: Machine) -> Grown:
    """run: a complete run of the system."""
    rules = system.rules or Rules.plain(system.block)
    reader = _Reader(system, rules, run)
    block = reader.counters()
    count_ranges = tuple(reader.count_ranges())
    most = block.counter_init.copy()
    np.add.at(most, block.signal_counter, block.signal_amount)
    highs = {(b.counter, b.high) for b in count_ranges if b.high is not None and b.high <= most[b.counter]}
    return _watched(block, count_ranges, highs, reader.arrivals(count_ranges))


class _Reader:
    def __init__(self, system: FlatSystem, rules: Rules, run: Machine) -> None:
        self.block, self.rules, self.run = system.block, rules, run
        self.initial = system.block.counter_init.tolist()
        self.next_phase = set(system.block.wait_counter[rules.wait == NEXT_PHASE].tolist())
        several = (rules.signal == ADD) & (system.block.signal_amount > 1)
        self.whole = set(system.block.signal_counter[several & (rules.phase[system.block.signal_counter] > 0)].tolist())
        self.whole |= set(system.block.signal_counter[np.isin(rules.signal, (EXPECT, ONLY_EXPECT))].tolist())

    def counters(self) -> System:
        block, rules = self.block, self.rules
        threshold, amount, init = block.wait_threshold.copy(), block.signal_amount.copy(), block.counter_init.copy()
        for row in np.flatnonzero(rules.wait != 0).tolist():
            threshold[row] = self.threshold(row)
        amount[np.isin(rules.signal, (STORE, EXPECT, ONLY_EXPECT))] = 1
        init[block.signal_counter[rules.signal == STORE]] = 0
        return replace(block, wait_threshold=threshold, signal_amount=amount, counter_init=init)

    def threshold(self, row: int) -> int:
        counter, met = int(self.block.wait_counter[row]), self.run.wait_counts[row]
        if self.rules.wait[row] == EQUAL:
            return met
        if self.rules.wait[row] == PARITY:
            return self.total(counter, met)
        agent = int(self.block.agent_of[self.block.wait_event[row]])
        return self.total(counter, self.arrived(agent, counter, int(self.block.wait_event[row])) + 1)

    def total(self, counter: int, phases: int) -> int:
        return self.run.totals[counter][phases]

    def arrived(self, agent: int, counter: int, event: int) -> int:
        """The phase of the agent's last arrival before the event; -1: there is none."""
        block = self.block
        mine = (block.signal_counter == counter) & (block.agent_of[block.signal_event] == agent)
        rows = np.flatnonzero(mine & (block.signal_event < event))
        return self.run.sent[int(rows[-1])] if len(rows) else -1

    def count_ranges(self) -> list[CountRange]:
        found = []
        for row in np.flatnonzero(self.rules.wait != 0).tolist():
            event, counter = int(self.block.wait_event[row]), int(self.block.wait_counter[row])
            if self.rules.wait[row] != NEXT_PHASE:
                found.append(CountRange(event, counter, *self.around(row, counter), waits=True))
        for row, (event, counter) in enumerate(
            zip(self.block.signal_event.tolist(), self.block.signal_counter.tolist(), strict=True)
        ):
            sent = self.run.sent[row]
            if self.rules.signal[row] == STORE:
                found.append(CountRange(event, counter, sent, sent + 1, waits=False))
            elif counter in self.whole or (counter in self.next_phase and self.rules.signal[row] == ADD):
                low, high = self.total(counter, sent), self.upper(counter, sent + 1)
                found.append(CountRange(event, counter, low, high, waits=False))
        return found

    def arrivals(self, count_ranges: tuple[CountRange, ...]) -> dict[int, tuple[CountRange, tuple[int, ...]]]:
        block, found = self.block, {}
        of = {
            (count_range.event, count_range.counter): count_range
            for count_range in count_ranges
            if not count_range.waits
        }
        arrive = np.flatnonzero(np.isin(self.rules.signal, (ADD, EXPECT)))
        for row in np.flatnonzero(self.rules.signal == ONLY_EXPECT).tolist():
            event, counter = int(block.signal_event[row]), int(block.signal_counter[row])
            alike = (k for k in arrive.tolist() if block.signal_counter[k] == counter)
            same = tuple(int(block.signal_event[k]) for k in alike if self.run.sent[k] == self.run.sent[row])
            found[event] = (of[event, counter], same)
        return found

    def upper(self, counter: int, phases: int) -> int | None:
        totals = self.run.totals[counter]
        return totals[phases] if phases < len(totals) else None

    def around(self, row: int, counter: int) -> tuple[int, int | None]:
        met = self.run.wait_counts[row]
        if self.rules.wait[row] == PARITY:
            return self.total(counter, max(0, met - 1)), self.upper(counter, met + 1)
        values = [self.initial[counter], *self.run.stored.get(counter, ())]
        wanted = values[met]
        low = next((k + 1 for k in range(met - 1, -1, -1) if values[k] == wanted), 0)
        high = next((k for k in range(met + 1, len(values)) if values[k] != wanted), None)
        return low, high


def _watched(
    block: System,
    count_ranges: tuple[CountRange, ...],
    highs: set[tuple[int, int]],
    arrivals: dict[int, tuple[CountRange, tuple[int, ...]]],
) -> Grown:
    """One agent per counter, that waits for its upper ends in turn."""
    chains: dict[int, list[int]] = defaultdict(list)
    for counter, high in sorted(highs):
        chains[counter].append(high)
    watcher: dict[tuple[int, int], int] = {}
    first, event = block.agent_first.tolist(), block.events
    rows = []
    for counter, chain in chains.items():
        for high in chain:
            watcher[counter, high] = event
            rows.append((counter, high))
            event += 1
        first.append(event)
    more = len(rows)

    def longer(name: str) -> I64:
        column: I64 = getattr(block, name)
        return np.append(column, np.full(more, column[-1], dtype=np.int64))

    wait_first = np.append(block.wait_first, block.wait_first[-1] + 1 + np.arange(more))
    extended = replace(
        block,
        agent_first=np.array(first, dtype=np.int64),
        event_tag=np.append(block.event_tag, np.full(more, -1, dtype=np.int64)),
        wait_first=wait_first,
        wait_counter=np.append(block.wait_counter, np.array([c for c, _ in rows], dtype=np.int64)),
        wait_threshold=np.append(block.wait_threshold, np.array([h for _, h in rows], dtype=np.int64)),
        signal_first=longer("signal_first"),
        access_first=longer("access_first"),
        agent_names=(*block.agent_names, *(f"watcher {c}" for c in chains)) if block.agent_names else (),
    )
    return Grown(extended, count_ranges, watcher, arrivals)


def broken(system: Grown, clocks: Clocks) -> tuple[CountRange, bool] | None:
    """A count range that is not proved, and whether it is its upper end; clocks: of `system.block`."""
    block = system.block
    rows_of: dict[int, I64] = {}
    for count_range in system.count_ranges:
        rows = rows_of.setdefault(count_range.counter, np.flatnonzero(block.signal_counter == count_range.counter))
        if count_range.low > int(block.counter_init[count_range.counter]):
            events = block.signal_event[rows]
            done = block.index_of[events] < over(count_range, clocks)[block.agent_of[events]]
            if int(block.counter_init[count_range.counter] + block.signal_amount[rows][done].sum()) < count_range.low:
                return count_range, False
        watcher = system.watcher.get((count_range.counter, count_range.high or 0))
        if watcher is not None:
            pair = np.array([[count_range.event], [watcher]], dtype=np.int64)
            if not bool(clocks.precedes(pair[0], pair[1])[0]):
                return count_range, True
    for event, (count_range, arrivals) in system.arrivals.items():
        if not any(bool(clocks.precedes(np.array([event]), np.array([other]))[0]) for other in arrivals):
            return count_range, True
    return None


def over(count_range: CountRange, clocks: Clocks) -> Counts:
    """[agents] How many first events of each are over when the agent of the count range gets to its event."""
    index = int(clocks.system.index_of[count_range.event])
    if not count_range.waits:
        return clocks.at(count_range.event)
    agent = int(clocks.system.agent_of[count_range.event])
    before = clocks.at(count_range.event - 1) if index else np.zeros_like(clocks.rows[0])
    before[agent] = index
    return before
