"""Edits of a system that may mend it: each is what a person would change at one line of the kernel.

Property: none; whoever uses an edit asks for the verdict on the result. An edit changes all events of one source line
alike (all events on one counter of one agent, where there are no sources), because in a kernel they are one statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from amk.systems.flat_judge import I64, BlockedHead, Bools, Race, System
from amk.systems.flat_system import FlatSystem

STEPS: Final = (1, 2, 3, 4)
"""How much thresholds, amounts and initial values are changed by."""


@dataclass(frozen=True, eq=False)
class Edit:
    """`change` as an instruction; code: the rule that the system broke, where it is one of the memory model."""

    change: str
    system: FlatSystem
    code: str | None = None
    event: int | None = None


@dataclass(frozen=True, eq=False)
class Group:
    """Waits or signals of one statement; rows of the table."""

    counter: int
    agent: int
    rows: I64
    place: str


def groups(system: FlatSystem, table: str) -> list[Group]:
    """Rows of a table by agent, counter and source."""
    block = system.block
    counter, event = getattr(block, f"{table}_counter"), getattr(block, f"{table}_event")
    if not len(counter):
        return []
    agent, source = block.agent_of[event], system.source[event]
    keys = np.stack((agent, counter, source), axis=1)
    unique, which = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(which.reshape(-1), kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(which.reshape(-1)))[:-1])
    return [
        Group(int(c), int(a), rows, f" at {system.sources[s]}" if s >= 0 else "")
        for (a, c, s), rows in zip(unique.tolist(), parts, strict=True)
    ]


def _called(system: FlatSystem, group: Group) -> tuple[str, str]:
    return system.block.agent_name(group.agent), system.block.counter_name(group.counter)


def stronger_orders(system: FlatSystem) -> Iterator[Edit]:
    """Relaxed waits that acquire, relaxed signals that release: one statement, then two, then all."""
    weak = [("wait", g) for g in groups(system, "wait") if not system.acquires[g.rows].all()]
    weak += [("signal", g) for g in groups(system, "signal") if not system.releases[g.rows].all()]
    single = [[one] for one in weak]
    pairs = [[one, two] for i, one in enumerate(weak) for two in weak[i + 1 :]] if len(weak) < 8 else []
    for chosen in (*single, *pairs, *([weak] if len(weak) > 2 else [])):
        acquires, releases = system.acquires.copy(), system.releases.copy()
        changes = []
        for table, group in chosen:
            (acquires if table == "wait" else releases)[group.rows] = True
            agent, counter = _called(system, group)
            what, order = ("wait for", "acquire") if table == "wait" else ("signal of", "release")
            changes.append(f"make {agent}'s {what} {counter}{group.place} {order}")
        table, group = chosen[0]
        event = int(getattr(system.block, f"{table}_event")[group.rows[0]])
        code = "AMK503" if table == "wait" else "AMK502"
        yield Edit("; ".join(changes), replace(system, acquires=acquires, releases=releases), code, event)


def thresholds(system: FlatSystem, agents: set[int], up: bool) -> Iterator[Edit]:
    """Waits of these agents that ask for some more, or less."""
    block = system.block
    for step in STEPS:
        for group in groups(system, "wait"):
            asked = block.wait_threshold[group.rows]
            if group.agent not in agents or (not up and int(asked.min()) < step):
                continue
            changed = block.wait_threshold.copy()
            changed[group.rows] += step if up else -step
            agent, counter = _called(system, group)
            if len(group.rows) == 1:
                how = f"wait for {counter} >= {int(changed[group.rows[0]])} instead of {int(asked[0])}"
            else:
                how = f"wait for {counter} to be {step} {'higher' if up else 'lower'}, every time"
            yield Edit(f"let {agent} {how}{group.place}", _with_block(system, replace(block, wait_threshold=changed)))


def growing_thresholds(system: FlatSystem, agents: set[int]) -> Iterator[Edit]:
    """Waits of these agents that ask for the same every time, but ask for that many more each time."""
    block = system.block
    for group in groups(system, "wait"):
        asked = block.wait_threshold[group.rows]
        if group.agent not in agents or len(group.rows) < 2 or (asked != asked[0]).any():
            continue
        first = int(asked[0]) - int(block.counter_init[group.counter])
        for more in (1, first) if first > 1 else (1,):
            changed = block.wait_threshold.copy()
            changed[group.rows] += more * np.arange(len(group.rows))
            agent, counter = _called(system, group)
            change = f"let {agent} wait for {counter} to be {more} higher each time than the time before{group.place}"
            yield Edit(change, _with_block(system, replace(block, wait_threshold=changed)))


def initial_values(system: FlatSystem, counters: set[int], up: bool) -> Iterator[Edit]:
    """Counters that start a little higher, or lower."""
    block = system.block
    for step in STEPS if up else [-step for step in STEPS]:
        for counter in sorted(counters):
            before = int(block.counter_init[counter])
            if before + step >= (not up):  # a ring that starts without a free slot is none
                init = block.counter_init.copy()
                init[counter] += step
                change = f"start {block.counter_name(counter)} at {before + step} instead of {before}"
                yield Edit(change, _with_block(system, replace(block, counter_init=init)))


def amounts(system: FlatSystem, counters: set[int]) -> Iterator[Edit]:
    """Signals of these counters that add some more."""
    block = system.block
    for step in STEPS:
        for group in groups(system, "signal"):
            if group.counter not in counters:
                continue
            changed = block.signal_amount.copy()
            changed[group.rows] += step
            agent, counter = _called(system, group)
            change = f"let {agent} add {step} more to {counter}{group.place}"
            yield Edit(change, _with_block(system, replace(block, signal_amount=changed)))


def later_signals(system: FlatSystem, race: Race) -> Iterator[Edit]:
    """Signals of an agent of the race that go out after its racing statement instead of before."""
    block = system.block
    for event in (race.first, race.second):
        agent = int(block.agent_of[event])
        alike = np.flatnonzero((block.agent_of == agent) & _same_statement(system, event))
        for group in groups(system, "signal"):
            if group.agent != agent:
                continue
            sent = block.signal_event[group.rows]
            at = np.searchsorted(alike, sent)
            if (at == len(alike)).any():
                continue
            who, counter = _called(system, group)
            place = system.source_of(event)
            behind = f" behind the access at {place}" if place else f" behind event {int(block.index_of[event])}"
            moved = moved_signals(block, system.releases, group.rows, alike[at])
            edited = replace(_with_block(system, moved[0]), releases=moved[1])
            yield Edit(f"move {who}'s signal of {counter}{group.place}{behind}", edited)


def _same_statement(system: FlatSystem, event: int) -> Bools:
    same: Bools = (
        system.source == system.source[event] if system.source[event] >= 0 else np.arange(system.block.events) == event
    )
    return same


def moved_signals(block: System, releases: Bools, rows: I64, events: I64) -> tuple[System, Bools, I64]:
    """The system in which these signals are of these events, and the order in which it has the signals."""
    event = block.signal_event.copy()
    event[rows] = events
    order = np.argsort(event, kind="stable")
    first = np.concatenate(([0], np.cumsum(np.bincount(event, minlength=block.events))))
    signal = {f"signal_{name}": getattr(block, f"signal_{name}")[order] for name in ("counter", "amount")}
    return replace(block, signal_first=first, **signal), releases[order], order


def against_race(system: FlatSystem, race: Race) -> Iterator[Edit]:
    block = system.block
    agents = {int(block.agent_of[event]) for event in (race.first, race.second)}
    yield from stronger_orders(system)
    yield from later_signals(system, race)
    # what starts above zero counts free slots
    waited = block.wait_counter[np.isin(block.agent_of[block.wait_event], sorted(agents))]
    yield from initial_values(system, set(waited[block.counter_init[waited] > 0].tolist()), up=False)
    yield from growing_thresholds(system, agents)
    yield from thresholds(system, agents, up=True)


def against_deadlock(system: FlatSystem, heads: tuple[BlockedHead, ...]) -> Iterator[Edit]:
    counters = {head.counter for head in heads}
    yield from thresholds(system, {head.agent for head in heads}, up=False)
    yield from initial_values(system, counters, up=True)
    yield from amounts(system, counters)


def _with_block(system: FlatSystem, block: System) -> FlatSystem:
    return replace(system, block=block)
