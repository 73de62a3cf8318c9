"""What one worker guarantees by itself: clocks over its warps with every global wait taken as granted.

Property (section 11 of the theory): with C1 (a barrier belongs to one worker), C2 (every local wait is conjunctive: all
agents of the barrier's role arrive once per round) and C3 (the worker alone runs to completion), the local prefixes of
interface events together with the global counters decide must-happen-before between interface events exactly.

An *interface* event waits on or signals a global counter in at least one worker of the program; its warp is an
interface warp. A *crew* is all events of one item together (every warp of the step's role). Events and crews are nodes:
events first, then crews by item. For a node x and an interface warp a:
    past[x, w] = number of first events of warp w that finish before any part of x starts
    need[x, w] = number of first events of warp w that contain x's part on w (0 if none): x < y  iff  past[y] >= need[x]
    lo[x, a]   = number of interface events of a that finish before any part of x starts
    hi[x, a]   = index of the first interface event of a whose local past contains x (their number if there is none)
An interface event contains itself: hi = its own index.

Cost: one clock pass over a single worker; all workers of a program share it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amk.validator.counter_events import CounterEvents
from amk.validator.liveness import Run, greedy
from amk.validator.order import must_clocks
from amk.validator.system import I64
from amk.validator.trace import Trace


@dataclass(frozen=True, eq=False)
class LocalOrder:
    """past, need [nodes, warps]; lo, hi [nodes, chains]; slot [nodes] index in its chain or -1; leader [nodes] an event.

    warps: interface warps; chains: their interface events, in program order.
    """

    trace: Trace
    run: Run
    warps: tuple[int, ...]
    chains: tuple[I64, ...]
    past: I64
    need: I64
    slot: I64
    lo: I64
    hi: I64
    leader: I64

    @property
    def complete(self) -> bool:
        """C3."""
        return self.run.complete

    @property
    def nodes(self) -> int:
        return len(self.slot)

    def crew(self, item: int) -> int:
        """Node of all warps that run the item."""
        return self.trace.events + item


def local_order(counters: CounterEvents) -> LocalOrder:
    """Clocks and brackets of the program whose counter events are given."""
    trace = counters.trace
    run = greedy(trace.local_system)
    past = must_clocks(run).matrix().astype(np.int64)
    touched = np.unique(np.concatenate((counters.waits[:, 1], counters.signals[:, 1])))
    warps = tuple(int(w) for w in np.unique(trace.warp_of[touched]))
    chains = tuple(touched[trace.warp_of[touched] == w] for w in warps)
    slot = np.full(trace.events + len(trace.items), -1, np.int64)
    lo = np.zeros((trace.events, len(warps)), np.int64)
    hi = np.zeros((trace.events, len(warps)), np.int64)
    need = np.zeros((trace.events, trace.warps), np.int64)
    need[np.arange(trace.events), trace.warp_of] = trace.index_of + 1
    for k, (warp, chain) in enumerate(zip(warps, chains, strict=True)):
        slot[chain] = np.arange(len(chain))
        lo[:, k] = np.searchsorted(trace.index_of[chain], past[:, warp], side="left")
        for other in range(trace.warps):
            events = slice(int(trace.first[other]), int(trace.first[other + 1]))
            hi[events, k] = np.searchsorted(past[chain, other], trace.index_of[events], side="right")
        hi[chain, k] = np.arange(len(chain))
    member, absent = trace.event_of, (trace.event_of < 0)[:, :, None]
    huge = np.iinfo(np.int64).max
    return LocalOrder(
        trace, run, warps, chains,
        past=np.concatenate((past, np.where(absent, huge, past[member]).min(axis=1))),
        need=np.concatenate((need, np.where(absent, 0, need[member]).max(axis=1))),
        slot=slot,
        lo=np.concatenate((lo, np.where(absent, huge, lo[member]).min(axis=1))),
        hi=np.concatenate((hi, np.where(absent, -1, hi[member]).max(axis=1))),
        leader=np.concatenate((np.arange(trace.events), member.max(axis=1))),
    )  # fmt: skip
