"""Edits that may mend a system with barriers by phase, flags or proxies; as in `edits`, each changes one statement."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from amk.systems.edits import Edit, Group, groups, moved_signals, stronger_orders
from amk.systems.flat_judge import I64, READ, Bools
from amk.systems.flat_system import FlatSystem
from amk.systems.machine import Trouble
from amk.systems.rules import ADD, ASYNC, COMPLETE, EXPECT, FENCE, PARITY, Rules

NUMBER: Final = r"[\s\[]*\d+\]?$"
"""What tells the barriers of one array apart."""


def against(system: FlatSystem, trouble: Trouble) -> Iterator[Edit]:
    """What to try, in the order of how often it is the mistake."""
    assert system.rules is not None
    if trouble.kind == "unfenced":
        yield from _fences(system, system.rules, trouble)
        return
    yield from stronger_orders(system)
    yield from _parities(system, system.rules)
    yield from _sizes(system, system.rules)
    yield from _expected(system, system.rules)
    if trouble.kind == "race":
        yield from _later(system, system.rules, trouble)


def _names(system: FlatSystem, group: Group) -> tuple[str, str]:
    return system.block.agent_name(group.agent), system.block.counter_name(group.counter)


def _parities(system: FlatSystem, rules: Rules) -> Iterator[Edit]:
    """All waits of one line with the other parity: a line may wait for several barriers."""
    block = system.block
    lines: dict[tuple[int, str], list[Group]] = {}
    for group in groups(system, "wait"):
        if (rules.wait[group.rows] == PARITY).all():
            lines.setdefault((group.agent, group.place or f"of {group.counter}"), []).append(group)
    for alike in lines.values():
        rows = np.concatenate([group.rows for group in alike])
        threshold = block.wait_threshold.copy()
        threshold[rows] ^= 1
        agent, name = _names(system, alike[0])
        many = " and others" if len(alike) > 1 else ""
        change = f"let {agent} wait for {name}{many} with the other parity{alike[0].place}"
        yield Edit(change, replace(system, block=replace(block, wait_threshold=threshold)))


def _sizes(system: FlatSystem, rules: Rules) -> Iterator[Edit]:
    """Barriers that count another number of arrivals: all that count as many, those of one array, or one of them."""
    for size in sorted(set(rules.phase[rules.phase > 0].tolist())):
        alike = np.flatnonzero(rules.phase == size)
        families: dict[str, list[int]] = {}
        for counter in alike.tolist():
            families.setdefault(re.sub(NUMBER, "", system.block.counter_name(counter)), []).append(counter)
        chosen = [alike, *map(np.array, families.values()), *(np.array([counter]) for counter in alike.tolist())]
        for some in {tuple(one.tolist()): one for one in chosen}.values():
            for other in (size - 1, size + 1, size - 2, size + 2):
                if other < 1:
                    continue
                phase = rules.phase.copy()
                phase[some] = other
                name = system.block.counter_name(int(some[0])) + (" and others" if len(some) > 1 else "")
                change = f"let {name} count {other} arrivals instead of {size}"
                yield Edit(change, replace(system, rules=replace(rules, phase=phase)))


def _expected(system: FlatSystem, rules: Rules) -> Iterator[Edit]:
    """Every phase expects the bytes that come in one, if as many come in each."""
    block = system.block
    expects, brings = np.flatnonzero(rules.signal == EXPECT), np.flatnonzero(rules.signal == COMPLETE)
    if not len(expects) or not len(brings):
        return
    amount = block.signal_amount.copy()
    for counter in set(block.signal_counter[expects].tolist()):
        mine = expects[block.signal_counter[expects] == counter]
        come = int(block.signal_amount[brings[block.signal_counter[brings] == counter]].sum())
        if come % len(mine) or not come:
            return
        amount[mine] = come // len(mine)
    if (amount == block.signal_amount).all():
        return
    agent = block.agent_name(int(block.agent_of[block.signal_event[expects[0]]]))
    place = system.source_of(int(block.signal_event[expects[0]]))
    change = f"let {agent} expect {int(amount[expects[0]])} bytes, as many as come{f' at {place}' if place else ''}"
    yield Edit(change, replace(system, block=replace(block, signal_amount=amount)))


def _later(system: FlatSystem, rules: Rules, trouble: Trouble) -> Iterator[Edit]:
    """Arrivals that are sent before the racing access of their agent, sent behind it."""
    block = system.block
    for event in trouble.events:
        agent = int(block.agent_of[event])
        same = system.source == system.source[event] if system.source[event] >= 0 else np.arange(block.events) == event
        alike = np.flatnonzero((block.agent_of == agent) & same)
        rows = _arrivals(system, rules, agent)
        place = np.searchsorted(alike, block.signal_event[rows])
        if not len(rows) or (place == len(alike)).any():
            continue
        moved, releases, order = moved_signals(block, system.releases, rows, alike[place])
        edited = replace(system, block=moved, releases=releases, rules=replace(rules, signal=rules.signal[order]))
        source = system.source_of(event)
        change = f"let {block.agent_name(agent)} arrive behind its access{f' at {source}' if source else ''}"
        yield Edit(change, edited)


def _arrivals(system: FlatSystem, rules: Rules, agent: int) -> I64:
    block = system.block
    mine = (
        (block.agent_of[block.signal_event] == agent) & (rules.signal == ADD) & (rules.phase[block.signal_counter] > 0)
    )
    return np.flatnonzero(mine)


def _fences(system: FlatSystem, rules: Rules, trouble: Trouble) -> Iterator[Edit]:
    """A fence behind the agent's ordinary writes, or behind those of all agents."""
    block, write = system.block, trouble.events[0]
    writes = _writes(system) & (rules.proxy != ASYNC)
    agent = int(block.agent_of[write])
    every = sorted(set(block.agent_of[writes].tolist()))
    source = system.source_of(write)
    at = f" at {source}" if source else ""
    for agents in ([agent], every):
        proxy = rules.proxy.copy()
        if not all(_fence(system, one, writes, proxy) for one in agents):
            continue
        who = block.agent_name(agent) + (" and all who write" if len(agents) > 1 else "")
        change = f"let {who} execute `fence.proxy.async` behind the write{at}"
        yield Edit(change, replace(system, rules=replace(rules, proxy=proxy)))


def _fence(system: FlatSystem, agent: int, writes: Bools, proxy: I64) -> bool:
    """Make what the agent does next behind each write a fence as well (a signal, say); False: it does nothing more."""
    block = system.block
    silent = np.flatnonzero((np.diff(block.access_first) == 0) & (block.agent_of == agent))
    following = np.searchsorted(silent, np.flatnonzero(writes & (block.agent_of == agent)), side="right")
    if (following == len(silent)).any():
        return False
    proxy[silent[following]] = FENCE
    return True


def _writes(system: FlatSystem) -> Bools:
    block = system.block
    found = np.zeros(block.events, dtype=bool)
    event = np.repeat(np.arange(block.events), np.diff(block.access_first))
    found[event[block.access_kind != READ]] = True
    return found
