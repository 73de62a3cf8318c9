"""Witnesses: evidence for UNSAFE that anyone can replay.

Property: a witness names an interleaving (agents in run-length form) and what is wrong where it ends.

    kind            events          the interleaving ends ...
    deadlock        blocked heads   with every agent of ``wait_cycle`` before its blocked head: an event X of theirs
                                    from there on would need increments that only events of X give, so none ever runs
    race            a, b            where both are enabled; they conflict at (buffer, byte)
    unordered_sum   a, b            where both are enabled; both add floats at (buffer, byte)
    uninitialised   e               with e, which reads (buffer, byte) before anything wrote it
    stale           e               with e, which reads (buffer, byte) and finds another value than intended
    partial         e               with e, which adds to (buffer, byte) after a reader took the sum as complete
    final           none            after every write of (buffer, byte), with the wrong content there

Algorithm: keep of a run only what the end needs: the events themselves, what comes before them in program order, and
per wait the producers that came first in the run; any subset of a run closed in this way is itself a run. Then go
through it backwards and drop every event that is the last of its agent and whose increments no later wait misses.

Minimal: if any one entry of the interleaving is left out, `replay` no longer confirms the witness. (Leaving out an
earlier entry of an agent delays its later events and drops the last one, so it is enough that no last one can go.)

Cost: O(events + signals). `replay` confirms a witness without the validator.

Errors: `MalformedWitness` for JSON that is no witness of the given system.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from amk.validator.memory.races import Fault, Race
from amk.validator.order.greedy_run import Deadlock, Run, greedy
from amk.validator.program.system import DONT_CARE, I64, READ, WRITE, Bools, System

FORMAT: Final = "amk.witness/2"
KINDS: Final = ("deadlock", "race", "unordered_sum", "uninitialised", "stale", "partial", "final")
_KEYS: Final = {"format", "kind", "system", "order", "events", "buffer", "byte", "wait_cycle"}


class MalformedWitness(ValueError):
    """The JSON does not describe a witness of this system."""


@dataclass(frozen=True)
class Witness:
    """``order``: (agent, events in a row); ``wait_cycle``: (agent, event, counter, threshold, most from others)."""

    kind: str
    system: str
    order: tuple[tuple[int, int], ...]
    events: tuple[int, ...]
    buffer: int | None = None
    byte: int | None = None
    wait_cycle: tuple[tuple[int, int, int, int, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": self.kind,
            "system": self.system,
            "order": [list(leg) for leg in self.order],
            "events": list(self.events),
            "buffer": self.buffer,
            "byte": self.byte,
            "wait_cycle": [list(row) for row in self.wait_cycle],
        }


def _int_rows(raw: object, width: int, high: int) -> tuple[tuple[int, ...], ...]:
    if not isinstance(raw, list) or not all(isinstance(row, list) and len(row) == width for row in raw):
        raise MalformedWitness(f"expected rows of {width} integers")
    if not all(type(entry) is int and 0 <= entry <= high for row in raw for entry in row):
        raise MalformedWitness(f"entries must be integers in [0, {high}]")
    return tuple(tuple(row) for row in raw)


def witness_from_json(raw: object, system: System) -> Witness:
    """Witness from decoded JSON of any origin; raises `MalformedWitness` and nothing else."""
    if not isinstance(raw, dict) or raw.get("format") != FORMAT or set(raw) != _KEYS:
        raise MalformedWitness(f"expected an object with format {FORMAT!r} and keys {sorted(_KEYS)}")
    if raw["kind"] not in KINDS or raw["system"] != system.digest:
        raise MalformedWitness("unknown kind, or made for another system")
    order = _int_rows(raw["order"], 2, system.events)
    if any(agent >= system.agents for agent, _ in order) or sum(count for _, count in order) > system.events:
        raise MalformedWitness("order: names an agent or more events than the system has")
    events = _int_rows([[event] for event in raw["events"]] if isinstance(raw["events"], list) else None, 1, 1 << 30)
    wanted = {"race": 2, "unordered_sum": 2, "deadlock": len(events), "final": 0}.get(raw["kind"], 1)
    if any(row[0] >= system.events for row in events) or len(events) != wanted:
        raise MalformedWitness("events: wrong number, or not in the system")
    for name in ("buffer", "byte"):
        absent = raw[name] is None and raw["kind"] == "deadlock"
        if not absent and (type(raw[name]) is not int or raw[name] < 0):
            raise MalformedWitness(f"{name}: expected a non-negative integer")
    wait_cycle = _int_rows(raw["wait_cycle"], 5, 1 << 62)
    flat = tuple(row[0] for row in events)
    return Witness(raw["kind"], raw["system"], order, flat, raw["buffer"], raw["byte"], wait_cycle)  # type: ignore[arg-type]


def _legs(system: System, order: Iterable[int]) -> tuple[tuple[int, int], ...]:
    legs: list[list[int]] = []
    for event in order:
        agent = int(system.agent_of[event])
        if legs and legs[-1][0] == agent:
            legs[-1][1] += 1
        else:
            legs.append([agent, 1])
    return tuple((agent, count) for agent, count in legs)


class Slice:
    """The part of a run that some events need."""

    def __init__(self, run: Run) -> None:
        self.run, self.system = run, run.system
        self.members = np.zeros(self.system.events, dtype=bool)
        self.pending: list[int] = []
        system = self.system
        order = np.lexsort((run.position[system.signal_event], system.signal_counter))
        self.suppliers = system.signal_event[order].tolist()
        self.amounts = system.signal_amount[order].tolist()
        # of each counter: where its next supplier in run order is that may not be kept yet, and what those before gave
        self.next = np.searchsorted(system.signal_counter[order], np.arange(system.counters)).tolist()
        self.value = system.counter_init.tolist()

    def _keep(self, event: int) -> None:
        """Keep the event and what precedes it in its agent."""
        first = int(self.system.agent_first[self.system.agent_of[event]])
        while event >= first and not self.members[event]:
            self.members[event] = True
            self.pending.append(event)
            event -= 1

    def _require_waits(self, event: int) -> None:
        system = self.system
        for k in range(int(system.wait_first[event]), int(system.wait_first[event + 1])):
            counter, threshold = int(system.wait_counter[k]), int(system.wait_threshold[k])
            while self.value[counter] < threshold:
                at = self.next[counter]
                self._keep(self.suppliers[at])
                self.value[counter] += self.amounts[at]
                self.next[counter] = at + 1

    def enable(self, event: int) -> None:
        """Keep what it takes for the event to be enabled, without running it."""
        if self.system.index_of[event]:
            self._keep(event - 1)
        self._require_waits(event)
        self._drain()

    def execute(self, event: int) -> None:
        self._keep(event)
        self._drain()

    def _drain(self) -> None:
        while self.pending:
            self._require_waits(self.pending.pop())

    def order(self) -> list[int]:
        """The part in run order."""
        found: list[int] = self.run.order[self.members[self.run.order]].tolist()
        return found

    def legs(self, required: Collection[int], enabled: Collection[int] = ()) -> tuple[tuple[int, int], ...]:
        """The part in run order, without what neither the required events nor enabling the others needs."""
        return _legs(self.system, _pruned(self.system, self.order(), {*required}, enabled))


class _Pruning:
    """Goes backwards through a legal order of which everything before the event at hand may still be kept.

    value[c] = counter before that event; slack[c] = least surplus of c over the thresholds of the later waits kept.
    """

    def __init__(self, system: System, order: list[int]) -> None:
        self.system = system
        self.value: dict[int, int] = {}
        self.slack: dict[int, int] = {}
        for event in order:
            for counter, amount in self.increments(event).items():
                self.value[counter] = self.now(counter) + amount

    def increments(self, event: int) -> dict[int, int]:
        """counter -> increments of the event."""
        found: dict[int, int] = {}
        for k in range(*self.system.signal_first[event : event + 2].tolist()):
            counter = int(self.system.signal_counter[k])
            found[counter] = found.get(counter, 0) + int(self.system.signal_amount[k])
        return found

    def now(self, counter: int) -> int:
        return self.value.setdefault(counter, int(self.system.counter_init[counter]))

    def hold(self, event: int) -> None:
        """Its waits must stay met."""
        for k in range(*self.system.wait_first[event : event + 2].tolist()):
            counter = int(self.system.wait_counter[k])
            surplus = self.now(counter) - int(self.system.wait_threshold[k])
            self.slack[counter] = min(self.slack.get(counter, surplus), surplus)

    def step(self, event: int, is_needed: bool) -> bool:
        """Whether the event, now at hand, stays; it goes if it is not needed and no later wait misses it."""
        increments = self.increments(event)
        for counter, amount in increments.items():
            self.value[counter] -= amount
        watched = {counter: amount for counter, amount in increments.items() if counter in self.slack}
        if is_needed or any(self.slack[counter] < amount for counter, amount in watched.items()):
            self.hold(event)
            return True
        for counter, amount in watched.items():
            self.slack[counter] -= amount
        return False


class EventSet(Protocol):
    """Events that must stay, as long as the discarded ones are gone."""

    def __contains__(self, event: object, /) -> bool: ...
    def discard(self, event: int, /) -> None: ...


def _pruned(system: System, order: list[int], required: EventSet, enabled: Collection[int]) -> list[int]:
    """The events of a legal order that remain when each that can be dropped is, last ones first."""
    pruning = _Pruning(system, order)
    for event in enabled:
        pruning.hold(event)
    kept: list[int] = []
    agents: set[int] = set()
    for event in reversed(order):
        agent = int(system.agent_of[event])
        if pruning.step(event, agent in agents or event in required):
            agents.add(agent)
            kept.append(event)
        else:
            required.discard(event)
    return kept[::-1]


Content = tuple[int, int]


class _Content:
    """Of the events of a run those without which the guilty one would not find the byte as the fault says.

    What it finds is left by the last event before it that writes the byte; reads since then may have taken it as a
    complete sum.
    """

    def __init__(self, system: System, order: list[int], kind: str, guilty: int, fault: Fault) -> None:
        self.kind, self.guilty = kind, guilty
        here = np.flatnonzero(
            (system.initial_buffer == fault.buffer) & _over(system.initial_lo, system.initial_hi, fault)
        )
        contents = zip(system.initial_value[here].tolist(), system.initial_delta[here].tolist(), strict=True)
        self.initial: Content | None = (None, *contents)[-1]
        self.touches: dict[int, list[tuple[int, Content]]] = {}
        rows = _accesses(system, fault)
        for row in rows[np.argsort(system.access_kind[rows], kind="stable")].tolist():  # an event reads first
            content = int(system.access_value[row]), int(system.access_delta[row])
            touch = int(system.access_kind[row]), content
            self.touches.setdefault(int(system.access_event[row]), []).append(touch)
        self.before = dict.fromkeys(event for event in order[: order.index(guilty)] if event in self.touches)

    def __contains__(self, event: object) -> bool:
        return event == self.guilty or (event in self.before and not self._faulty(event))

    def discard(self, event: int) -> None:
        self.before.pop(event, None)

    def _faulty(self, dropped: object) -> bool:
        cell, reads = self.initial, list[Content]()
        for event in (event for event in reversed(self.before) if event != dropped):
            kind, content = self.touches[event][-1]
            if kind != READ:
                cell = content
                break
            reads += [content for _, content in self.touches[event]]
        taken = any(content == cell and content[0] != DONT_CARE for content in reads)
        for kind, content in self.touches[self.guilty]:
            if _fault_kind(kind, content, cell, taken) == self.kind:
                return True
            taken = kind == READ and (taken or (content == cell and content[0] != DONT_CARE))
            cell = cell if kind == READ else content
        return False


def _fault_kind(kind: int, expected: Content, cell: Content | None, is_taken: bool) -> str | None:
    """What is wrong with an access that finds the byte like this; is_taken: as a complete sum."""
    if kind == WRITE:
        return None
    if expected[0] == DONT_CARE:
        return None if kind == READ or cell is None or cell[0] == DONT_CARE else "stale"
    if cell != expected:
        return "uninitialised" if cell is None else "stale"
    return "partial" if kind != READ and is_taken else None


def _before(system: System, events: Iterable[int]) -> set[int]:
    """The events just before them in their agents."""
    return {event - 1 for event in events if system.index_of[event]}


def deadlock_witness(run: Run, deadlock: Deadlock) -> Witness:
    inside = {head.agent for head in deadlock.wait_cycle}
    wait_cycle = tuple(
        (h.agent, h.event, h.counter, h.threshold, h.value + sum(n for agent, n in h.missing if agent not in inside))
        for h in deadlock.wait_cycle
    )
    part = Slice(run)
    reached = _before(run.system, (head.event for head in deadlock.wait_cycle))
    for event in reached:
        part.execute(event)
    heads = tuple(head.event for head in deadlock.heads)
    return Witness("deadlock", run.system.digest, part.legs(reached), heads, wait_cycle=wait_cycle)


def race_witness(system: System, race: Race, kind: str = "race") -> Witness:
    """A minimal interleaving to a state where both events are enabled."""
    part = Slice(greedy(system, (race.first, race.second)))
    pair = (race.first, race.second)
    for event in pair:
        part.enable(event)
    return Witness(kind, system.digest, part.legs(_before(system, pair), pair), pair, race.buffer, race.lo)


def _accesses(system: System, fault: Fault) -> I64:
    """Rows of accesses to the faulty byte."""
    return np.flatnonzero((system.access_buffer == fault.buffer) & _over(system.access_lo, system.access_hi, fault))


def _over(lo: I64, hi: I64, fault: Fault) -> Bools:
    """Which spans have the faulty byte."""
    covers: Bools = (lo <= fault.lo) & (fault.lo < hi)
    return covers


def _definers(system: System, fault: Fault) -> I64:
    """Every event that writes or accumulates the faulty byte."""
    rows = _accesses(system, fault)
    return np.unique(system.access_event[rows[system.access_kind[rows] != READ]])


def fault_witness(run: Run, fault: Fault) -> Witness:
    """The faulty read, the definition it sees, and what these need; for final content, every write of the byte."""
    system, part, definers = run.system, Slice(run), _definers(run.system, fault)
    if fault.event < 0:
        for event in definers.tolist():
            part.execute(event)
        return Witness("final", system.digest, part.legs(definers.tolist()), (), fault.buffer, fault.lo)
    guilty = fault.writer if fault.kind == "partial" and fault.writer is not None else fault.event
    seen = definers[run.position[definers] < run.position[fault.event]]
    for event in {guilty, fault.event, *seen[np.argsort(run.position[seen])][-1:].tolist()}:
        part.execute(event)
    order, longer = part.order(), None
    while order != longer:
        longer = order
        order = _pruned(system, longer, _Content(system, longer, fault.kind, guilty, fault), ())
    return Witness(fault.kind, system.digest, _legs(system, order), (guilty,), fault.buffer, fault.lo)
