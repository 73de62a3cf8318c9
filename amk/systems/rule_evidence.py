"""Evidence that `rule_proof` checks: how every wait was met in a run, and what comes before what in all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from amk.systems.flat_judge import COLUMNS, Clocks, System, judge
from amk.systems.flat_system import FlatSystem
from amk.systems.machine import ran
from amk.systems.phases import CountRange, over
from amk.systems.rule_proof import Skeleton, skeleton, with_order
from amk.systems.rule_reading import Pair
from amk.systems.rules import ADD, ASYNC, EXPECT, FENCE, GENERIC, ONLY_EXPECT

Json = dict[str, Any]


def evidence(system: FlatSystem, block: Json, orders: Json) -> tuple[Json, System]:
    """What is said of a SAFE system's rows, and the extended system that a certificate must be for."""
    run, trouble = ran(system)
    assert trouble is None, trouble
    claims: Json = {
        "met": [run.wait_counts[row] for row in range(len(block["wait_counter"]))],
        "sent": [run.sent[row] for row in range(len(block["signal_counter"]))],
    }
    found = skeleton(block, orders, claims)
    clocks = judge(_system(found.columns)).clocks
    pairs = sorted({*_count_ranges(found, clocks), *_expected(found, clocks), *_fences(found, clocks)})
    claims["before"] = [list(pair) for pair in pairs]
    return claims, _system(with_order(found.columns, pairs))


def _system(columns: Json) -> System:
    tags = np.full(columns["agent_first"][-1], -1, dtype=np.int64)
    fields: dict[str, Any] = {name: np.array(columns[name], dtype=np.int64) for name in COLUMNS if name in columns}
    return System(**fields | {"event_tag": tags})


def _count_ranges(skeleton: Skeleton, clocks: Clocks) -> Iterator[Pair]:
    reading = skeleton.reading
    for event, counter, low, high, waits in skeleton.count_ranges:
        target = event - 1 if waits else event
        known = over(CountRange(event, counter, low, high, waits), clocks)
        last: dict[int, int] = {}
        for row in reading.rows_of[counter] if low else ():
            other = reading.signal_event[row]
            agent = reading.agent_of[other]
            if agent != reading.agent_of[event] and int(clocks.system.index_of[other]) < int(known[agent]):
                last[agent] = max(last.get(agent, other), other)
        yield from ((other, target) for other in last.values())
        if high is not None and (counter, high) in skeleton.watchers:
            yield event, skeleton.watchers[counter, high]


def _expected(skeleton: Skeleton, clocks: Clocks) -> Iterator[Pair]:
    reading = skeleton.reading
    for row, rule in enumerate(reading.signal_rule):
        if rule == ONLY_EXPECT:
            event, counter = reading.signal_event[row], reading.block["signal_counter"][row]
            alike = [r for r in reading.rows_of[counter] if reading.signal_rule[r] in (ADD, EXPECT)]
            later = [reading.signal_event[r] for r in alike if reading.sent[r] == reading.sent[row]]
            yield from ((event, other) for other in later if _precedes(clocks, event, other))


def _precedes(clocks: Clocks, before: int, after: int) -> bool:
    return bool(clocks.precedes(np.array([before]), np.array([after]))[0])


def _fences(skeleton: Skeleton, clocks: Clocks) -> Iterator[Pair]:
    reading, block = skeleton.reading, skeleton.reading.block
    fences = [event for event, proxy in enumerate(reading.proxy) if proxy == FENCE]
    first = block["access_first"]
    writes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in range(reading.events):
        for row in range(first[event], first[event + 1]):
            if reading.proxy[event] == GENERIC and block["access_kind"][row]:
                writes[block["access_buffer"][row]].append((event, row))
    for event in range(reading.events):
        for row in range(first[event], first[event + 1]) if reading.proxy[event] == ASYNC else ():
            for write, other in writes[block["access_buffer"][row]]:
                lo, hi = block["access_lo"], block["access_hi"]
                if lo[row] < hi[other] and lo[other] < hi[row]:
                    yield from _chain(write, event, fences, clocks)


def _chain(write: int, access: int, fences: list[int], clocks: Clocks) -> Iterator[Pair]:
    if _precedes(clocks, access, write):
        yield access, write
        return
    for fence in fences:
        if _precedes(clocks, write, fence) and _precedes(clocks, fence, access):
            yield write, fence
            yield fence, access
            return
