"""The interface agents of all workers as one flat system, and the order of everything else through them.

A chain is one interface warp of one worker. A chain's event also waits for the local prefix of the worker's other
chains, so that barriers between them (and the back-pressure they carry) are kept. Deadlock and must-happen-before of
interface events in the quotient are those of the whole schedule, given C1-C3 of `local_order`.

Two events of different workers are ordered through chains:  x < y  iff some chain a of x's worker has
    hi[x, a]  finished before  y,   read from   G(y) = JOIN over chains b of y's worker of P*(last lo[y, b] event).
If y is an interface event, G(y) is its own clock. For conjunctive waits this is exact, otherwise sound.

`weak=False` leaves out the edges that order no other memory: weak waits are dropped and weak signals come from a chain
of their own without a past, so that counting still works.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from amk.validator.builder import assemble
from amk.validator.counter_events import Instances
from amk.validator.liveness import Run, greedy
from amk.validator.local_order import LocalOrder
from amk.validator.order import MAX_CELLS, Clocks, ClocksTooLarge, must_clocks
from amk.validator.system import I32, I64, Bools, System


@dataclass(frozen=True, eq=False)
class Group:
    """All workers of one program. waits, signals: rows of `CounterEvents`. node_base: id of worker `first`, node 0."""

    number: int
    first: int
    count: int
    order: LocalOrder
    waits: I64
    signals: I64
    node_base: int
    chain_base: int

    @property
    def nodes(self) -> int:
        return self.order.nodes

    @property
    def chains(self) -> int:
        return len(self.order.warps)

    def chain_event(self, worker: I64, event: I64, first: I64) -> I64:
        """Quotient event of interface events."""
        position = np.searchsorted(np.array(self.order.warps), self.order.trace.warp_of[event])
        return first[self.chain_base + (worker - self.first) * self.chains + position] + self.order.slot[event]


class Quotient:
    """Builds the system, runs it and answers order questions about (worker, local event) pairs."""

    def __init__(self, groups: list[Group], instances: Instances, weak: bool) -> None:
        self.groups, self.instances, self.weak = groups, instances, weak
        sizes = [np.tile([len(c) for c in g.order.chains], g.count) for g in groups]
        lengths = np.concatenate([*sizes, [self._void]]).astype(np.int64)
        self.chain_first = np.concatenate(([0], np.cumsum(lengths)))
        self.system: System = self._build(lengths)
        self.run: Run = greedy(self.system)

    @cached_property
    def _void(self) -> int:
        """Length of the chain that carries the weak signals."""
        return 0 if self.weak else sum(int(g.signals[:, 4].sum()) for g in self.groups)

    @cached_property
    def clocks(self) -> Clocks:
        return must_clocks(self.run)

    def _build(self, lengths: I64) -> System:
        waits, signals = [], []
        init = self.instances.init().tolist()
        void = int(self.chain_first[-2])
        for group in self.groups:
            wait = group.waits if self.weak else group.waits[group.waits[:, 4] == 0]
            event = group.chain_event(wait[:, 0], wait[:, 1], self.chain_first)
            waits.append(np.stack((event, wait[:, 2], np.maximum(wait[:, 3], 0)), axis=1))
            event = group.chain_event(group.signals[:, 0], group.signals[:, 1], self.chain_first)
            if not self.weak:
                loose = np.flatnonzero(group.signals[:, 4])
                event[loose] = void + np.arange(len(loose))
                void += len(loose)
            signals.append(np.stack((event, group.signals[:, 2], group.signals[:, 3]), axis=1))
            if group.chains > 1:
                self._add_prefixes(group, waits, signals, init)
        agent = np.repeat(np.arange(len(lengths)), lengths)
        return assemble(len(lengths), agent, init, np.concatenate(waits), np.concatenate(signals), ())[0]

    def _add_prefixes(self, group: Group, waits: list[I64], signals: list[I64], init: list[int]) -> None:
        """One private counter per chain counts its finished events; the other chains of the worker wait for them."""
        order = group.order
        workers = np.arange(group.count)
        base = len(init) + workers * group.chains
        init += [0] * (group.count * group.chains)
        for a, chain in enumerate(order.chains):
            first = self.chain_first[group.chain_base + workers * group.chains + a]
            event = (first[:, None] + np.arange(len(chain))).reshape(-1)
            own = np.repeat(base + a, len(chain))
            signals.append(np.stack((event, own, np.ones_like(event)), axis=1))
            for b in range(group.chains):
                need = order.lo[chain, b]
                fresh = np.flatnonzero(np.diff(need, prepend=0) > 0)
                if a == b or not len(fresh):
                    continue
                at = (first[:, None] + fresh).reshape(-1)
                waits.append(np.stack((at, np.repeat(base + b, len(fresh)), np.tile(need[fresh], group.count)), axis=1))

    def chain_events(self, group: Group, events: I64) -> I64:
        """Quotient events of local interface events, for every worker of the group: [workers, events]."""
        worker = np.arange(group.first, group.first + group.count)
        return group.chain_event(worker[:, None], events[None, :], self.chain_first)

    def started(self, event: I64) -> I32:
        """[..., chains] P of quotient events."""
        rows: I32 = self.clocks.rows[self.clocks.row_of[event]]
        np.put_along_axis(rows, self.system.agent_of[event][..., None], self.system.index_of[event][..., None], -1)
        return rows

    def finished(self, event: I64) -> I32:
        """[..., chains] P* of quotient events; -1 stands for nothing."""
        rows: I32 = self.clocks.rows[self.clocks.row_of[event]]
        done = self.system.index_of[event][..., None] + 1
        np.put_along_axis(rows, self.system.agent_of[event][..., None], done, -1)
        rows[event < 0] = 0
        return rows


class BracketOrder:
    """Must-happen-before and a compatible total order for all nodes of all workers (the `Clocks` of the composition).

    Nodes are numbered group by group, worker by worker: node_base + (worker - first) * nodes + node.
    """

    def __init__(self, quotient: Quotient) -> None:
        self.quotient = quotient
        groups = quotient.groups
        self.group_of = np.repeat(np.arange(len(groups), dtype=np.int32), [g.count * g.nodes for g in groups])
        self.worker_of = np.concatenate([np.repeat(np.arange(g.count, dtype=np.int32), g.nodes) for g in groups])
        self.node_of = np.concatenate([np.tile(np.arange(g.nodes, dtype=np.int32), g.count) for g in groups])
        self._rows: list[I32] = []
        self._views: list[I64] = []
        for group in groups:
            self._prepare(group)

    def _prepare(self, group: Group) -> None:
        """G per (worker, distinct view); a view is a cut of the worker's chains, or an interface event itself."""
        order, quotient = group.order, self.quotient
        own = np.where(order.slot >= 0, np.arange(group.nodes), -1)
        key = np.concatenate((own[:, None], np.where(own[:, None] >= 0, 0, order.lo)), axis=1)
        views, view_of = np.unique(key, axis=0, return_inverse=True)
        if group.count * len(views) * quotient.system.agents > MAX_CELLS:
            raise ClocksTooLarge(f"{group.count * len(views)} views x {quotient.system.agents} chains")
        rows = np.zeros((group.count, len(views), quotient.system.agents), np.int32)
        interface = np.flatnonzero(views[:, 0] >= 0)
        rows[:, interface] = quotient.started(quotient.chain_events(group, views[interface, 0]))
        private = np.flatnonzero(views[:, 0] < 0)
        for b, chain in enumerate(order.chains):
            lo = views[private, 1 + b]
            last = quotient.chain_events(group, chain[np.maximum(lo - 1, 0)])
            rows[:, private] = np.maximum(rows[:, private], quotient.finished(np.where(lo > 0, last, -1)))
        self._rows.append(rows)
        self._views.append(view_of.reshape(-1))

    def node(self, number: int) -> tuple[Group, int, int]:
        """(group, worker, node) of a composite number."""
        group = self.quotient.groups[int(self.group_of[number])]
        return group, group.first + int(self.worker_of[number]), int(self.node_of[number])

    @cached_property
    def position(self) -> I64:
        """[total] sort key of a run of everything: last chain event before it, then the local run."""
        return np.concatenate([self._positions(group).reshape(-1) for group in self.quotient.groups])

    def _positions(self, group: Group) -> I64:
        order, quotient = group.order, self.quotient
        ran = quotient.run.position
        last = np.full((group.count, group.nodes), -1, np.int64)
        for b, chain in enumerate(order.chains):
            event = quotient.chain_events(group, chain)
            lo = order.lo[:, b]
            np.maximum(last, np.where(lo > 0, ran[event[:, np.maximum(lo - 1, 0)]], -1), out=last)
        for chain in order.chains:
            last[:, chain] = ran[quotient.chain_events(group, chain)]
        leader = np.maximum(order.leader, 0)
        return (last[:, leader] + 1) * group.nodes + order.run.position[leader][None, :]

    def precedes(self, before: I64, after: I64) -> Bools:
        """Elementwise: all of `before` finishes before any of `after` starts, in every execution."""
        ordered: Bools = np.zeros(len(before), dtype=bool)
        groups = self.quotient.groups
        for i, first in enumerate(groups):
            for j, second in enumerate(groups):
                if len(groups) == 1:
                    return self._precedes(first, second, j, before, after)
                at = np.flatnonzero((self.group_of[before] == i) & (self.group_of[after] == j))
                ordered[at] = self._precedes(first, second, j, before[at], after[at])
        return ordered

    def _precedes(self, first: Group, second: Group, j: int, before: I64, after: I64) -> Bools:
        worker, node, other, later = (
            self.worker_of[before],
            self.node_of[before],
            self.worker_of[after],
            self.node_of[after],
        )
        ordered: Bools = np.zeros(len(before), dtype=bool)
        view = self._views[j][later]
        for a in range(first.chains):
            chain = first.chain_base + worker * first.chains + a
            ordered |= self._rows[j][other, view, chain] > first.order.hi[node, a]
        if first is second:
            near = np.flatnonzero((worker == other) & ~ordered)
            ordered[near] = (first.order.past[later[near]] >= first.order.need[node[near]]).all(axis=1)
        return ordered
