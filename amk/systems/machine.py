"""Runs a system with rules step by step, with happens-before: what a run shows is so, whatever any proof says.

An agent steps when its waits hold. The waits that acquire join what was released to them, then the accesses happen,
then each signal is carried out in turn.

* Barrier: waits for a phase and later ones join what its arrivals released (PTX ISA, mbarrier: phases).
* Counter: every addition continues the releases before it. A store begins anew.
* `fence.proxy.async` passes what happened before it on to accesses of the async proxy.

Trouble is what a run shows:

* agents that wait for ever;
* two accesses of which neither happens before the other;
* a read of something else than it means;
* ordinary writes before an asynchronous access without a proxy fence between;
* more arrivals than a phase counts (undefined by PTX).

Cost: accesses of a buffer squared; meant for up to `machine.LARGEST` events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from amk.systems.flat_judge import ACCUMULATE_FLOAT, ACCUMULATE_INT, DONT_CARE, READ
from amk.systems.flat_system import FlatSystem
from amk.systems.rules import (
    ADD,
    AT_LEAST,
    COMPLETE,
    EQUAL,
    EXPECT,
    FENCE,
    GENERIC,
    NEXT_PHASE,
    ONLY_EXPECT,
    PARITY,
    STORE,
    Rules,
)

LARGEST: Final = 100_000
Clock = dict[int, int]
Kind = Literal["deadlock", "race", "uninitialised", "stale", "unfenced", "arrivals"]
Box = tuple[int, int, int]


@dataclass(frozen=True)
class Trouble:
    """events: the two of a race, writer or not and reader, all that wait; box: buffer, lo, hi."""

    kind: Kind
    events: tuple[int, ...]
    box: Box | None = None


@dataclass(frozen=True)
class Touch:
    """An access that happened."""

    event: int
    agent: int
    index: int
    lo: int
    hi: int
    kind: int
    ordinary: bool


@dataclass
class Phase:
    """Of a barrier: the number of phases that are over, arrivals and bytes that this one still needs."""

    size: int
    number: int = 0
    pending: int = 0
    bytes: int = 0
    beyond_arrivals: int = 0
    expected_bytes: int = 0

    def __post_init__(self) -> None:
        self.pending = self.size


class Machine:
    """Where each agent is and what every counter, barrier and byte holds."""

    def __init__(self, system: FlatSystem) -> None:
        block = system.block
        rules = system.rules or Rules.plain(block)
        self.system, self.block = system, block
        self.at: list[int] = block.agent_first[:-1].tolist()
        self.ends: list[int] = block.agent_first[1:].tolist()
        self.agent_of, self.index_of = block.agent_of.tolist(), block.index_of.tolist()
        self.value: list[int] = block.counter_init.tolist()
        self.phases = [Phase(size) if size else None for size in rules.phase.tolist()]
        self.proxy = rules.proxy.tolist()
        first = {t: getattr(block, f"{t}_first").tolist() for t in ("wait", "signal", "access")}
        self.waits = _rows(
            first["wait"], block.wait_counter, block.wait_threshold, rules.wait, system.acquires.astype(int)
        )
        self.signals = _rows(
            first["signal"], block.signal_counter, block.signal_amount, rules.signal, system.releases.astype(int)
        )
        self.accesses = _rows(
            first["access"], block.access_buffer, block.access_lo, block.access_hi, block.access_kind,
            block.access_value,
        )  # fmt: skip
        self.first_row = (first["wait"], first["signal"])
        self.clock: list[Clock] = [{} for _ in self.at]
        self.fenced: list[Clock] = [{} for _ in self.at]
        self.signal_clocks: dict[int, tuple[Clock, Clock]] = defaultdict(lambda: ({}, {}))
        self.over: dict[int, tuple[Clock, Clock]] = defaultdict(lambda: ({}, {}))
        self.joined: dict[tuple[int, int], int] = {}
        self.touched: dict[int, list[Touch]] = defaultdict(list)
        self.content: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        columns = (block.initial_buffer, block.initial_lo, block.initial_hi, block.initial_value)
        for buffer, lo, hi, value in zip(*(column.tolist() for column in columns), strict=True):
            self._hold(buffer, lo, hi, value)
        self.order: list[int] = []
        self.wait_counts: dict[int, int] = {}
        """Per wait: how many phases were over, or stores done, when it was met."""
        self.sent: dict[int, int] = {}
        """Per signal: the same, before it."""
        self.stored: dict[int, list[int]] = {}
        self.totals: dict[int, list[int]] = defaultdict(lambda: [0])
        """Per barrier: arrivals and bytes of its first phases together, for each number of phases."""
        self.expected: dict[int, int] = defaultdict(int)
        """Per barrier: the most bytes that one of its phases expected."""

    def enabled(self, agent: int) -> bool:
        event = self.at[agent]
        return event < self.ends[agent] and all(self.met_now(agent, *row[:3]) for row in self.waits[event])

    def met_now(self, agent: int, counter: int, threshold: int, rule: int) -> bool:
        """Whether the wait holds."""
        phase = self.phases[counter]
        if rule == AT_LEAST:
            return self.value[counter] >= threshold
        if rule == EQUAL:
            return self.value[counter] == threshold
        assert phase is not None
        if rule == PARITY:
            return phase.number & 1 != threshold
        return phase.number > self.joined.get((agent, counter), -1)

    def step(self, agent: int) -> Trouble | None:
        """Carry out the agent's next event, whose waits hold."""
        event = self.at[agent]
        self.order.append(event)
        for row, (counter, _, rule, acquires) in enumerate(self.waits[event], self.first_row[0][event]):
            self.wait_counts[row] = self._count(counter)
            if acquires:
                self._join(agent, (self.over if rule in (PARITY, NEXT_PHASE) else self.signal_clocks)[counter])
        self.clock[agent][agent] = self.index_of[event] + 1
        trouble = None
        for buffer, lo, hi, kind, value in sorted(self.accesses[event], key=lambda row: row[3]):
            trouble = trouble or self._touch(event, (buffer, lo, hi), kind, value)
        if self.proxy[event] == FENCE:
            self.fenced[agent] = dict(self.clock[agent])
        for row, (counter, amount, rule, releases) in enumerate(self.signals[event], self.first_row[1][event]):
            self.sent[row] = self._count(counter)
            if not self._signal(agent, counter, amount, rule, bool(releases)):
                trouble = trouble or Trouble("arrivals", (event,))
        self.at[agent] += 1
        return trouble

    def _count(self, counter: int) -> int:
        phase = self.phases[counter]
        return phase.number if phase is not None else len(self.stored.get(counter, ()))

    def _join(self, agent: int, other: tuple[Clock, Clock]) -> None:
        _join(self.clock[agent], other[0])
        _join(self.fenced[agent], other[1])

    def _signal(self, agent: int, counter: int, amount: int, rule: int, releases: bool) -> bool:
        phase = self.phases[counter]
        if rule == STORE:
            self.stored.setdefault(counter, []).append(amount - 1)
            self.value[counter] = amount - 1
            self.signal_clocks[counter] = ({}, {})
        elif phase is None:
            self.value[counter] += amount
        if releases:
            _join(self.signal_clocks[counter][0], self.clock[agent])
            _join(self.signal_clocks[counter][1], self.fenced[agent])
        return phase is None or self._arrive(agent, counter, phase, amount, rule)

    def _arrive(self, agent: int, counter: int, phase: Phase, amount: int, rule: int) -> bool:
        self.joined[agent, counter] = phase.number
        phase.pending -= {ADD: amount, EXPECT: 1}.get(rule, 0)
        phase.bytes += {ADD: 0, COMPLETE: -amount}.get(rule, amount)
        # in the count of `phases`, each call that expects bytes is one
        phase.beyond_arrivals += {EXPECT: amount, ONLY_EXPECT: amount + 1}.get(rule, 0)
        phase.expected_bytes += amount if rule in (EXPECT, ONLY_EXPECT) else 0
        self.expected[counter] = max(self.expected[counter], phase.expected_bytes)
        if phase.pending < 0:
            return False
        if phase.pending == 0 and phase.bytes == 0:
            totals = self.totals[counter]
            totals.append(totals[-1] + phase.size + phase.beyond_arrivals)
            phase.number, phase.pending = phase.number + 1, phase.size
            phase.beyond_arrivals = phase.expected_bytes = 0
            self.over[counter] = (dict(self.signal_clocks[counter][0]), dict(self.signal_clocks[counter][1]))
        return True

    def _touch(self, event: int, box: Box, kind: int, value: int) -> Trouble | None:
        agent, (buffer, lo, hi) = self.agent_of[event], box
        ordinary = self.proxy[event] == GENERIC
        trouble = None
        for other in self.touched[buffer]:
            if other.lo < hi and lo < other.hi:
                trouble = trouble or self._conflict(agent, ordinary, kind, event, other, box)
        if trouble is None:
            trouble = self._content(event, box, kind, value)
        self.touched[buffer].append(Touch(event, agent, self.index_of[event], lo, hi, kind, ordinary))
        return trouble

    def _conflict(self, agent: int, ordinary: bool, kind: int, event: int, other: Touch, box: Box) -> Trouble | None:
        both = (box[0], max(box[1], other.lo), min(box[2], other.hi))
        unordered = other.agent != agent and self.clock[agent].get(other.agent, 0) <= other.index
        if unordered and conflict(kind, other.kind):
            return Trouble("race", (other.event, event), both)
        unseen = self.fenced[agent].get(other.agent, 0) <= other.index
        if other.ordinary and other.kind != READ and not ordinary and unseen:
            return Trouble("unfenced", (other.event, event), both)
        return None

    def _content(self, event: int, box: Box, kind: int, value: int) -> Trouble | None:
        buffer, lo, hi = box
        if kind != READ:
            self._hold(buffer, lo, hi, value)
            return None
        return None if value == DONT_CARE else self._wrong(event, box, value)

    def _wrong(self, event: int, box: Box, value: int) -> Trouble | None:
        found = [part for part in self.content[box[0]] if part[0] < box[2] and box[1] < part[1]]
        bad = next((part for part in found if part[2] != value), None)
        if bad is not None:
            return Trouble("stale", (event,), (box[0], max(bad[0], box[1]), min(bad[1], box[2])))
        covered = sum(min(hi, box[2]) - max(lo, box[1]) for lo, hi, _ in found)
        return None if covered == box[2] - box[1] else Trouble("uninitialised", (event,), box)

    def _hold(self, buffer: int, lo: int, hi: int, value: int) -> None:
        kept = []
        for first, end, held in self.content[buffer]:
            if first < lo:
                kept.append((first, min(end, lo), held))
            if end > hi:
                kept.append((max(first, hi), end, held))
        self.content[buffer] = [*kept, (lo, hi, value)]

    def end(self) -> Trouble | None:
        """What is wrong when nobody can go on any more."""
        stuck = tuple(event for event, end in zip(self.at, self.ends, strict=True) if event < end)
        if stuck:
            return Trouble("deadlock", stuck)
        block = self.block
        columns = (block.final_buffer, block.final_lo, block.final_hi, block.final_value)
        wanted = zip(*(column.tolist() for column in columns), strict=True)
        wrong = (self._wrong(-1, (buffer, lo, hi), value) for buffer, lo, hi, value in wanted)
        return next((trouble for trouble in wrong if trouble is not None), None)


def _rows(first: list[int], *columns: object) -> list[list[tuple[int, ...]]]:
    rows = list(zip(*(column.tolist() for column in columns), strict=True))  # type: ignore[attr-defined]
    return [rows[first[e] : first[e + 1]] for e in range(len(first) - 1)]


def _join(into: Clock, other: Clock) -> None:
    for agent, count in other.items():
        if into.get(agent, 0) < count:
            into[agent] = count


def conflict(one: int, other: int) -> bool:
    """Two accesses of these kinds to one byte need an order."""
    same = one == other and one in (READ, ACCUMULATE_INT, ACCUMULATE_FLOAT)
    return not same


Choice = Callable[[list[int]], int]


def ran(system: FlatSystem, choose: Choice | None = None) -> tuple[Machine, Trouble | None]:
    """A run to its end or first trouble; choose: who of those that can goes on; otherwise one step of each in turn."""
    machine = Machine(system)
    trouble = next((t for t in _steps(machine, choose) if t is not None), None)
    return machine, trouble or machine.end()


def _steps(machine: Machine, choose: Choice | None) -> Iterator[Trouble | None]:
    agents = range(len(machine.at))
    while True:
        ready = [agent for agent in agents if machine.enabled(agent)]
        if not ready:
            return
        if choose is not None:
            yield machine.step(choose(ready))
            continue
        for agent in ready:
            if machine.enabled(agent):
                yield machine.step(agent)


def replayed_order(system: FlatSystem, order: list[tuple[int, int]]) -> Trouble | None:
    """What the run (agent, events) shows; None if it is no run, or shows nothing."""
    machine = Machine(system)
    for agent, count in order:
        for _ in range(count):
            if not 0 <= agent < len(machine.at) or not machine.enabled(agent):
                return None
            trouble = machine.step(agent)
            if trouble is not None:
                return trouble
    if any(machine.enabled(agent) for agent in range(len(machine.at))):
        return None
    return machine.end()
