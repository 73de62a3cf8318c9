"""Confirms races without the flat system.

Property: if `MaximalRuns.both_enabled(x, y)`, the flat system with the same kind of edges has an interleaving, at
every position, after which both events are enabled, which is what a race between them is. The converse does not
hold: a strict inter-CTA system forbids some interleavings, so False says nothing and the flat system is asked.

Argument. A run of a strict inter-CTA system is turned into a run of the flat system node by node: before a node,
everything that comes locally before any event of it, then its events. By induction each of these is enabled.
  - Of what comes before, chain nodes and whatever belongs to one have run: `pre` counts each node of which any part
    comes before any part. All else waits for barriers only, which ask for nothing but what comes before them (C2).
  - Events of the node itself: counters and words are those of the flat system, with every wait that the flat system
  has
    at any position whatever the data say (a step waits for all words that any of its warps may read, each of its
    events that is a node by itself does too, and the step after these), and a word is written when the whole step
    has been.
With x and y withheld no node runs that x or y belongs to, or comes before any part of. When nothing else can run, x
is enabled if its own waits hold and every node has run of which any part comes before x; what else comes before x
then runs as above, and is not y if nothing local puts y before x.

The same goes for a step that did not run because x or y belongs to it, if its waits hold: those of its events that
come before x or y are neither.

The inter-CTA system of `block` is one of whose runs every node is a run of the flat system with the waits of
`block`, and a run of that is one with other edges, which only leave waits out. So it may be asked in place of a
strict one; what it shows, the strict one shows too, which has fewer nodes, and waits that all are among those of
`block`.

Cost: one run of the inter-CTA system for each set of places where chains stop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amk.validator.order.between_ctas import InterCtaSystem
from amk.validator.order.greedy_run import Run, greedy
from amk.validator.order.within_cta import Chains
from amk.validator.program.system import I64


@dataclass(frozen=True)
class Event:
    """A local event of a worker of a group (numbers as in the inter-CTA system; the worker as in the schedule)."""

    group: int
    worker: int
    number: int


class MaximalRuns:
    """Maximal runs of an inter-CTA system, strict or of `block`, that leave out one or two events."""

    def __init__(self, inter_cta: InterCtaSystem) -> None:
        if not inter_cta.whole:
            raise ValueError("only the runs of a strict inter-CTA system are runs of the flat system")
        self.inter_cta = inter_cta
        self._runs: dict[tuple[int, ...], Run] = {}

    def both_enabled(self, x: Event, y: Event) -> bool:
        if (x.group, x.worker) == (y.group, y.worker) and (self._before(x, y) or self._before(y, x)):
            return False
        run = self._without((x, y))
        return self._enabled(run, x, (x, y)) and self._enabled(run, y, (x, y))

    def enabled_without(self, y: Event, x: Event) -> bool:
        """Is y enabled in some interleaving that leaves x out? Then x does not come before y."""
        if (x.group, x.worker) == (y.group, y.worker) and self._before(x, y):
            return False
        return self._enabled(self._without((x,)), y, (x,))

    def _without(self, events: tuple[Event, ...]) -> Run:
        held: dict[int, int] = {}
        for event in events:
            for agent, first in self._stops(event):
                held[agent] = min(first, held.get(agent, first))
        stops = tuple(sorted(held.values()))
        if stops not in self._runs:
            self._runs[stops] = greedy(self.inter_cta.system, stops)
        return self._runs[stops]

    def _before(self, x: Event, y: Event) -> bool:
        order = self.inter_cta.groups[x.group].order
        return bool((order.past[y.number] >= order.need[x.number]).all())

    def _chains(self, event: Event) -> tuple[Chains, int]:
        """(chains of the event's group, inter-CTA system agent of the first chain of its worker)."""
        inter_cta = self.inter_cta
        chains = inter_cta.chains[event.group]
        worker = event.worker - inter_cta.groups[event.group].first
        return chains, int(inter_cta.base[event.group]) + worker * len(chains)

    def _nodes(self, event: Event) -> list[int]:
        """The event, and the warp group that it belongs to."""
        trace = self.inter_cta.groups[event.group].order.trace
        return [event.number, trace.events + int(trace.item[event.number])]

    def _stops(self, event: Event) -> list[tuple[int, int]]:
        """(agent, inter-CTA system event) where the chains of its worker have to stop for the event to be left out."""
        chains, agent = self._chains(event)
        order, found = chains.order, []
        warp, index = int(order.trace.warp_of[event.number]), int(order.trace.index_of[event.number])
        for a, chain in enumerate(chains.chains):
            later = np.isin(chain, self._nodes(event)) | (order.late[chain, warp] > index)
            if later.any():
                found.append((agent + a, int(self.inter_cta.chain_first[agent + a]) + int(later.argmax())))
        return found

    def _enabled(self, run: Run, event: Event, held: tuple[Event, ...]) -> bool:
        """Has everything run that comes before the event, and do its waits hold? The event itself may have run too.

        A step that did not run because of a withheld event counts if its waits hold: those of its events that come
        before this one can run.
        """
        chains, agent = self._chains(event)
        parted = {self._nodes(h)[1] for h in held if (h.group, h.worker) == (event.group, event.worker)}
        for a, (chain, upto) in enumerate(zip(chains.chains, chains.pre[event.number].tolist(), strict=True)):
            for node in chain[int(run.cut[agent + a]) : upto].tolist():
                if node not in parted or not self._met(run, agent, chains, node):
                    return False
        return all(self._met(run, agent, chains, node) for node in self._nodes(event) if chains.slot[node] >= 0)

    def _met(self, run: Run, agent: int, chains: Chains, node: int) -> bool:
        """Do the waits for other workers hold, counters and words?"""
        number = int(self.inter_cta.chain_first[agent + chains.of[node]] + chains.slot[node])
        system = self.inter_cta.system
        span = slice(int(system.wait_first[number]), int(system.wait_first[number + 1]))
        counter: I64 = system.wait_counter[span]
        met = run.values[counter] >= system.wait_threshold[span]
        return bool((met | self.inter_cta.is_prefix(counter)).all())
