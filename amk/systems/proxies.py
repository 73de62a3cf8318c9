"""Ordinary writes before asynchronous accesses of the same bytes need a `fence.proxy.async` between.

An operation of the generic proxy is before one of the async proxy only if a proxy fence lies between them in causality
order (PTX ISA, memory consistency model, proxies). So a fence must happen after the write and before the access. The
writer may issue it, or the one that issues the copy, or anybody between.

Two places need none. Giving a slot back, an ordinary read before an asynchronous write, has no fence in pipelines in
use, because a read is over when its value is there. Nor has an access behind an asynchronous
one whose completion is waited for.

Property: `unfenced` returns None only if every such pair has its fence in every run. Cost: async accesses times writes
of their buffer.
"""

from __future__ import annotations

import numpy as np

from amk.systems.flat_judge import READ, Bools, Clocks, Counts, System
from amk.systems.rules import ASYNC, FENCE, GENERIC, Rules


def unfenced(block: System, rules: Rules, clocks: Clocks) -> tuple[int, int] | None:
    """A write and an asynchronous access behind it without a fence that must be between."""
    access_event = np.repeat(np.arange(block.events), np.diff(block.access_first))
    proxy = np.append(rules.proxy, np.zeros(block.events - len(rules.proxy), dtype=np.int64))
    writes = np.flatnonzero((proxy[access_event] == GENERIC) & (block.access_kind != READ))
    fences = _fences(block, proxy == FENCE)
    for row in np.flatnonzero(proxy[access_event] == ASYNC).tolist():
        event = int(access_event[row])
        meets = (
            (block.access_buffer[writes] == block.access_buffer[row])
            & (block.access_lo[writes] < block.access_hi[row])
            & (block.access_lo[row] < block.access_hi[writes])
        )
        written = access_event[writes[meets]]
        if not len(written):
            continue
        before = clocks.at(event)
        fenced = _fenced(fences, before, clocks)
        agent, index = block.agent_of[written], block.index_of[written]
        bad = np.flatnonzero((index < before[agent]) & (index >= fenced[agent]))
        if len(bad):
            return int(written[bad[0]]), event
    return None


def _fences(block: System, is_fence: Bools) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for event in np.flatnonzero(is_fence).tolist():
        found.setdefault(int(block.agent_of[event]), []).append(event)
    return found


def _fenced(fences: dict[int, list[int]], before: Counts, clocks: Clocks) -> Counts:
    """[agents] How many first events of each agent are behind a fence that is over."""
    most = np.zeros_like(before)
    index = clocks.system.index_of
    for agent, events in fences.items():
        over = [event for event in events if index[event] < before[agent]]
        if over:
            most = np.maximum(most, clocks.at(over[-1]))
    return most
