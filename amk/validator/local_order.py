"""What one worker guarantees by itself: clocks over its warps with every global wait taken as granted.

Property (section 11 of the theory): with C1 (a barrier belongs to one worker), C2 (every local wait is conjunctive: all
agents of the barrier's role arrive once per round) and C3 (the worker alone runs to completion), the local prefixes of
interface events together with the global counters decide must-happen-before between interface events exactly.

An *interface* event waits on or signals a global counter in at least one worker of the program; its warp is an
interface warp. For every local event e and interface warp a:
    lo[e, a] = number of interface events of a that finish before e starts
    hi[e, a] = index of the first interface event of a whose local past contains e (their number if there is none)
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
    """past [events, warps]; warps: interface warps; chains: their interface events; slot [events]: index or -1."""

    trace: Trace
    run: Run
    past: I64
    warps: tuple[int, ...]
    chains: tuple[I64, ...]
    slot: I64
    lo: I64
    hi: I64

    @property
    def complete(self) -> bool:
        """C3."""
        return self.run.complete


def local_order(counters: CounterEvents) -> LocalOrder:
    """Clocks and brackets of the program whose counter events are given."""
    trace = counters.trace
    run = greedy(trace.local_system)
    past = must_clocks(run).matrix().astype(np.int64)
    touched = np.unique(np.concatenate((counters.waits[:, 1], counters.signals[:, 1])))
    warps = tuple(int(w) for w in np.unique(trace.warp_of[touched]))
    chains = tuple(touched[trace.warp_of[touched] == w] for w in warps)
    slot = np.full(trace.events, -1, np.int64)
    lo = np.zeros((trace.events, len(warps)), np.int64)
    hi = np.zeros((trace.events, len(warps)), np.int64)
    for k, (warp, chain) in enumerate(zip(warps, chains, strict=True)):
        slot[chain] = np.arange(len(chain))
        lo[:, k] = np.searchsorted(trace.index_of[chain], past[:, warp], side="left")
        for other in range(trace.warps):
            events = slice(int(trace.first[other]), int(trace.first[other + 1]))
            hi[events, k] = np.searchsorted(past[chain, other], trace.index_of[events], side="right")
        hi[chain, k] = np.arange(len(chain))
    return LocalOrder(trace, run, past, warps, chains, slot, lo, hi)
