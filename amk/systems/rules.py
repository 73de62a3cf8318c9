"""What waits and signals do that are not plain counters: phases of barriers, flags that are stored, proxies of memory.

A file says them as numbers per row (`orders.wait_rule` and so on). A system without any has no `Rules`.

* `PARITY`: wait until the phase of that parity is over (PTX ISA, `mbarrier.try_wait.parity`). The number of completed
  phases is odd iff the parity is 0. A wait that comes a phase early passes at once. One that comes two late blocks.
* `NEXT_PHASE`: wait until the phase is over in which this agent arrived last (`bar.sync`, `barrier.cluster.wait`).
* `EQUAL`: wait until the flag holds that value. A flag that nobody stores to holds what it began with.
* `ADD`: on a barrier, that many arrivals.
* `EXPECT`: one arrival that makes the phase wait for that many bytes (`mbarrier.arrive.expect_tx`). `ONLY_EXPECT` is no
  arrival (`mbarrier.expect_tx`).
* `COMPLETE`: that many bytes have come (`mbarrier::complete_tx::bytes`).
* `STORE`: the flag holds amount - 1 from now on, whatever it held (amounts are positive).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from amk.systems.flat_judge import I64, System
from amk.systems.rule_numbers import (
    ADD,
    ASYNC,
    AT_LEAST,
    COMPLETE,
    EQUAL,
    EXPECT,
    FENCE,
    GENERIC,
    HIGHEST,
    NEXT_PHASE,
    ONLY_EXPECT,
    PARITY,
    STORE,
)

__all__ = [
    "ADD", "ASYNC", "AT_LEAST", "COMPLETE", "EQUAL", "EXPECT", "FENCE", "GENERIC", "HIGHEST", "MOST_BYTES",
    "NEXT_PHASE", "ONLY_EXPECT", "PARITY", "STORE", "Rules", "arrives_again", "crowded", "mixed", "never_arrived",
]  # fmt: skip

CTA, CLUSTER = 0, 1
"""The scopes of a named barrier, and of the barrier of a cluster."""
MOST_BYTES: Final = 1 << 20
"""An mbarrier counts fewer bytes than this (PTX ISA, mbarrier: valid range of the tx-count)."""
NAMED: Final = 16
"""Named barriers of a CTA."""


@dataclass(frozen=True, eq=False)
class Rules:
    """wait [waits], signal [signals]: see above. phase [counters]: arrivals of a phase, 0 for what is no barrier.
    proxy [events]: how it touches memory, or that it is a `fence.proxy.async`."""

    wait: I64
    signal: I64
    phase: I64
    proxy: I64

    @classmethod
    def plain(cls, block: System) -> Rules:
        sizes = (len(block.wait_counter), len(block.signal_counter), block.counters, block.events)
        return cls(*(np.zeros(size, dtype=np.int64) for size in sizes))

    @property
    def silent(self) -> bool:
        """Nothing but counters is used."""
        return not any(column.any() for column in (self.wait, self.signal, self.phase, self.proxy))


def mixed(block: System, rules: Rules) -> str | None:
    """Why these rules do not fit the counters they are of, if they do not."""
    phased = rules.phase > 0
    waits, signals = phased[block.wait_counter], phased[block.signal_counter]
    stored = np.zeros(block.counters, dtype=bool)
    stored[block.signal_counter[rules.signal == STORE]] = True
    added = np.zeros(block.counters, dtype=bool)
    added[block.signal_counter[rules.signal != STORE]] = True
    equal = np.zeros(block.counters, dtype=bool)
    equal[block.wait_counter[rules.wait == EQUAL]] = True
    bytes_ = (rules.signal == EXPECT) | (rules.signal == COMPLETE) | (rules.signal == ONLY_EXPECT)
    if (waits != ((rules.wait == PARITY) | (rules.wait == NEXT_PHASE))).any():
        return "waits for a parity or the next phase are for barriers, others for what is none"
    if (~signals & bytes_).any():
        return "bytes are expected and completed at barriers alone"
    if (block.signal_amount[bytes_] >= MOST_BYTES).any():
        return f"an mbarrier counts fewer than {MOST_BYTES:,} bytes"
    if (stored & phased).any() or (equal & added & ~stored).any():
        return "a value is stored to a flag, and only a flag is waited for to be equal"
    if (stored & added).any():
        return "a flag that is stored to is not added to as well"
    if stored[block.wait_counter[rules.wait != EQUAL]].any():
        return "a flag that is stored to is waited for to be equal"
    if (block.wait_threshold[rules.wait == PARITY] > 1).any():
        return "a parity is 0 or 1"
    if (np.diff(block.access_first)[rules.proxy == FENCE] > 0).any():
        return "a proxy fence touches no memory"
    if (block.counter_init[phased] != 0).any():
        return "a barrier begins in its first phase, without arrivals"
    return None


def crowded(block: System, rules: Rules, scope: I64, place: I64) -> str | None:
    """More named barriers in a CTA than there are: barriers of one CTA whose phases are waited for by arriving."""
    rows = np.flatnonzero((rules.wait == NEXT_PHASE) & (scope[block.wait_counter] == CTA))
    if len(set(block.wait_counter[rows].tolist())) <= NAMED:
        return None
    where = place[block.agent_of[block.wait_event[rows]]]
    pairs = np.unique(np.column_stack((where, block.wait_counter[rows])), axis=0)
    _, counts = np.unique(pairs[:, :-1], axis=0, return_counts=True)
    most = int(counts.max(initial=0))
    return f"{most} named barriers in one CTA, which has {NAMED}" if most > NAMED else None


def never_arrived(block: System, rules: Rules) -> int | None:
    """A wait for the next phase of a barrier at which its agent has not arrived before, which PTX leaves undefined."""
    for row in np.flatnonzero(rules.wait == NEXT_PHASE).tolist():
        event, counter = int(block.wait_event[row]), int(block.wait_counter[row])
        first = int(block.agent_first[block.agent_of[event]])
        before = (block.signal_event >= first) & (block.signal_event < event)
        if not (before & (block.signal_counter == counter)).any():
            return event
    return None


def arrives_again(block: System, rules: Rules, scope: I64) -> int | None:
    """An arrival at the barrier of a cluster before its agent waited for the one before, or another wait for the same
    arrival: PTX has each thread arrive once before `barrier.cluster` completes."""
    paired = np.unique(block.wait_counter[rules.wait == NEXT_PHASE])
    for counter in paired[scope[paired] == CLUSTER].tolist():
        for_others = (block.wait_counter == counter) & (rules.wait == NEXT_PHASE)
        calls = [(int(event), 1) for event in block.wait_event[for_others]]
        calls += [(int(event), 0) for event in block.signal_event[block.signal_counter == counter]]
        before: dict[int, int] = {}
        for event, waits in sorted(calls):
            if before.get(agent := int(block.agent_of[event]), 1) == waits:
                return event
            before[agent] = waits
    return None
