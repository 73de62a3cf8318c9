"""Witnesses: evidence for UNSAFE that anyone can replay.

Property: a witness names an interleaving (agents in run-length form) and what is wrong where it ends.

    kind            events          the interleaving ends ...
    deadlock        blocked heads   in the maximal cut: some agent unfinished, none enabled; ``knot`` says why
    race            a, b            where both are enabled; they conflict at (buffer, byte)
    unordered_sum   a, b            where both are enabled; both add floats at (buffer, byte)
    uninitialised   e               with e, which reads (buffer, byte) before anything wrote it
    stale           e               with e, which reads (buffer, byte) and finds another value than intended
    partial         e               with e, which adds to (buffer, byte) after a reader took the sum as complete
    final           none            complete, with the wrong content at (buffer, byte)

Algorithm: keep of a run only what the end needs: the events themselves, what comes before them in program order, and
per wait the producers that came first in the run; any subset of a run closed in this way is itself a run.

Cost: O(events + signals). `replay` confirms a witness without the validator.

Errors: `MalformedWitness` for JSON that is no witness of the given system.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from amk.validator.dataflow import Fault
from amk.validator.liveness import Deadlock, Run, greedy
from amk.validator.races import Race
from amk.validator.system import READ, System

FORMAT: Final = "amk.witness/1"
KINDS: Final = ("deadlock", "race", "unordered_sum", "uninitialised", "stale", "partial", "final")
_KEYS: Final = {"format", "kind", "system", "order", "events", "buffer", "byte", "knot"}


class MalformedWitness(ValueError):
    """The JSON does not describe a witness of this system."""


@dataclass(frozen=True)
class Witness:
    """``order``: (agent, events in a row); ``knot``: (agent, event, counter, threshold, attainable from outside)."""

    kind: str
    system: str
    order: tuple[tuple[int, int], ...]
    events: tuple[int, ...]
    buffer: int | None = None
    byte: int | None = None
    knot: tuple[tuple[int, int, int, int, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": self.kind,
            "system": self.system,
            "order": [list(leg) for leg in self.order],
            "events": list(self.events),
            "buffer": self.buffer,
            "byte": self.byte,
            "knot": [list(row) for row in self.knot],
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
    knot = _int_rows(raw["knot"], 5, 1 << 62)
    flat = tuple(row[0] for row in events)
    return Witness(raw["kind"], raw["system"], order, flat, raw["buffer"], raw["byte"], knot)  # type: ignore[arg-type]


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
        self.kept = np.zeros(self.system.events, dtype=bool)
        self.pending: list[int] = []
        self.producers: dict[int, list[tuple[int, int]]] = {}

    def _suppliers(self, counter: int) -> list[tuple[int, int]]:
        """(event, amount) on the counter in run order."""
        if counter not in self.producers:
            entries = np.flatnonzero(self.system.signal_counter == counter)
            events = self.system.signal_event[entries]
            order = np.argsort(self.run.position[events], kind="stable")
            amounts = self.system.signal_amount[entries[order]].tolist()
            self.producers[counter] = list(zip(events[order].tolist(), amounts, strict=True))
        return self.producers[counter]

    def _keep(self, event: int) -> None:
        """Keep the event and what precedes it in its agent."""
        first = int(self.system.agent_first[self.system.agent_of[event]])
        while event >= first and not self.kept[event]:
            self.kept[event] = True
            self.pending.append(event)
            event -= 1

    def _require_waits(self, event: int) -> None:
        system = self.system
        for k in range(int(system.wait_first[event]), int(system.wait_first[event + 1])):
            counter = int(system.wait_counter[k])
            value = int(system.counter_init[counter])
            for producer, amount in self._suppliers(counter):
                if value >= system.wait_threshold[k]:
                    break
                self._keep(producer)
                value += amount

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

    def legs(self) -> tuple[tuple[int, int], ...]:
        return _legs(self.system, self.run.order[self.kept[self.run.order]].tolist())


def deadlock_witness(run: Run, deadlock: Deadlock) -> Witness:
    inside = {head.agent for head in deadlock.knot}
    knot = tuple(
        (h.agent, h.event, h.counter, h.threshold, h.value + sum(n for agent, n in h.missing if agent not in inside))
        for h in deadlock.knot
    )
    order = _legs(run.system, run.order.tolist())
    return Witness("deadlock", run.system.digest, order, tuple(head.event for head in deadlock.heads), knot=knot)


def race_witness(system: System, race: Race, kind: str = "race") -> Witness:
    """A shortest-by-slicing interleaving to a state where both events are enabled."""
    part = Slice(greedy(system, (race.first, race.second)))
    part.enable(race.first)
    part.enable(race.second)
    return Witness(kind, system.digest, part.legs(), (race.first, race.second), race.buffer, race.lo)


def _definers(run: Run, fault: Fault, before: int) -> Collection[int]:
    """The last event that wrote or accumulated the faulty byte before a run position, if any."""
    system = run.system
    covers = (system.access_buffer == fault.buffer) & (system.access_lo <= fault.lo) & (system.access_hi > fault.lo)
    events = system.access_event[np.flatnonzero(covers & (system.access_kind != READ))]
    events = events[run.position[events] < before]
    return (int(events[np.argmax(run.position[events])]),) if len(events) else ()


def fault_witness(run: Run, fault: Fault) -> Witness:
    """The faulty read, the definition it sees, and what these need. Final content needs the whole run."""
    system = run.system
    if fault.event < 0:
        return Witness("final", system.digest, _legs(system, run.order.tolist()), (), fault.buffer, fault.lo)
    part = Slice(run)
    guilty = fault.event
    part.execute(fault.event)
    for event in _definers(run, fault, int(run.position[fault.event])):
        part.execute(event)
    if fault.kind == "partial" and fault.writer is not None:
        guilty = fault.writer
        part.execute(guilty)
    return Witness(fault.kind, system.digest, part.legs(), (guilty,), fault.buffer, fault.lo)
