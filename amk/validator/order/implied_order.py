"""Orders that only partial thresholds between workers imply.

Property: x must-happen-before y, for a node x that several chains of its worker carry on. Say x lets both warps 0
and 1 signal c, and y waits for c >= 1: neither signal must come before y, but one of the two does, and x comes
before both.

Algorithm: the definition. x withheld stops every chain of its worker at the first node whose past contains x (`hi`:
exact, as local waits are conjunctive); run everything else of the inter-CTA system greedily; x < y iff y, or a chain
node wholly before y, never runs. Nodes with equal exits share a run.

Where every wait of the inter-CTA system is conjunctive the intervals say all this already and nothing is run.

Cost: one greedy run of the inter-CTA system per distinct set of exits, up to `MAX_STEPS` events in all; pairs beyond
that count as unordered, which is sound (`verify` then asks the flat check).
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, Protocol

import numpy as np

from amk.validator.order.clocks import Clocks
from amk.validator.order.greedy_run import greedy
from amk.validator.order.within_cta import Chains
from amk.validator.program.system import I64, Bools, System

MAX_STEPS: Final = 1 << 22


class Chained(Protocol):
    """What this needs to know of an inter-CTA system."""

    system: System
    chains: list[Chains]

    @property
    def clocks(self) -> Clocks: ...

    def events(self, g: int, worker: I64, node: I64) -> I64: ...


def conjunctive(clocks: Clocks) -> bool:
    """Is every wait met by signals that must come before it? Counters of one producing agent always are."""
    system = clocks.system
    for (counter, threshold), row in zip(clocks.threshold_keys.tolist(), clocks.threshold_rows, strict=True):
        mine = np.flatnonzero(system.signal_counter == counter)
        event = system.signal_event[mine]
        certain = row[system.agent_of[event]] > system.index_of[event]
        if int(system.counter_init[counter]) + int(system.signal_amount[mine][certain].sum()) < threshold:
            return False
    return True


class ImpliedOrder:
    """Answers for one inter-CTA system; keeps what ran."""

    def __init__(self, inter_cta: Chained) -> None:
        self.inter_cta = inter_cta
        self.left = MAX_STEPS
        self.ran: dict[tuple[int, ...], Bools] = {}

    @cached_property
    def needed(self) -> bool:
        return not conjunctive(self.inter_cta.clocks)

    def several(self, g: int, node: I64) -> Bools:
        """Which nodes of group `g` are outside all chains and carried on by more than one of them."""
        chains = self.inter_cta.chains[g]
        carried = (chains.hi[node] < [len(chain) for chain in chains.chains]).sum(axis=1)
        found: Bools = (carried > 1) & (chains.slot[node] < 0)
        return found

    def precedes(self, i: int, before: tuple[int, int], j: int, worker: I64, node: I64) -> Bools:
        """Elementwise: node `before` = (worker, node) of group `i` before nodes of group `j`; workers count from the
        group's first."""
        stopped: Bools = np.zeros(len(node), dtype=bool)
        if (reached := self._reached(i, *before)) is None:
            return stopped
        chains = self.inter_cta.chains[j]
        inside = np.flatnonzero(chains.slot[node] >= 0)
        stopped[inside] = ~reached[self.inter_cta.events(j, worker[inside], node[inside])]
        for d, chain in enumerate(chains.chains):
            upto = chains.lo[node, d]
            some = np.flatnonzero(upto > 0)
            stopped[some] |= ~reached[self.inter_cta.events(j, worker[some], chain[upto[some] - 1])]
        return stopped

    def _reached(self, g: int, worker: int, node: int) -> Bools | None:
        """[events] what runs without this node, None if that is no longer asked."""
        chains, where = self.inter_cta.chains[g], np.array([worker])
        exits = [(chain, int(first)) for chain, first in zip(chains.chains, chains.hi[node], strict=True)]
        held = tuple(int(self.inter_cta.events(g, where, c[k : k + 1])[0]) for c, k in exits if k < len(c))
        if held not in self.ran:
            self.left -= self.inter_cta.system.events
            if self.left < 0:
                return None
            run = greedy(self.inter_cta.system, held)
            self.ran[held] = run.position < len(run.order)
        return self.ran[held]
