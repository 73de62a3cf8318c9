"""The order of all nodes of all workers, through the agents of an inter-CTA system.

Two nodes of different workers are ordered through agents:  x < y  iff some agent c of x's worker has
    hi[x, c]  finished before  y,   read from   G(y) = JOIN over agents d of y's worker of P*(last lo[y, d] node).
If y is itself a node of an agent, G(y) is its own clock. For conjunctive waits this is exact; what else partial
thresholds between workers imply is found by `ImpliedOrder`. Say x lets both warps 0 and 1 signal c, and y waits for
c >= 1: neither signal must come before y, but one of the two does, and x comes before both.

Where a node stands among the agents (`Places`) and the clocks are all that the first part of this depends on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Final, Protocol

import numpy as np

from amk.validator.order.clocks import Clocks
from amk.validator.order.greedy_run import greedy
from amk.validator.order.two_levels import Group, InterCtaSystem
from amk.validator.program.system import I32, I64, Bools, System

MAX_STEPS: Final = 1 << 22


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
    """What only partial thresholds order, for a node that several agents of its worker carry on.

    Algorithm: the definition. If x does not run, every agent of its worker stops at the first node whose past contains
    x (`hi`: exact, as local waits are conjunctive); run everything else of the inter-CTA system greedily; x < y iff y,
    or a node of an agent wholly before y, never runs. Nodes with equal exits share a run. Where every wait of the
    inter-CTA system is conjunctive the intervals say all this already and nothing is run.

    Cost: one greedy run of the inter-CTA system per distinct set of exits, up to `MAX_STEPS` events in all; pairs
    beyond that count as unordered, which is sound (`verify` then asks the flat check).
    """

    def __init__(self, inter_cta: InterCtaSystem) -> None:
        self.inter_cta = inter_cta
        self.left = MAX_STEPS
        self.ran: dict[tuple[int, ...], Bools] = {}

    @cached_property
    def is_needed(self) -> bool:
        return not conjunctive(self.inter_cta.clocks)

    def several(self, g: int, node: I64) -> Bools:
        """Which nodes of group `g` are outside all agents and carried on by more than one of them."""
        orders = self.inter_cta.orders[g]
        carried = (orders.hi[node] < [len(agent) for agent in orders.agents]).sum(axis=1)
        found: Bools = (carried > 1) & (orders.slot[node] < 0)
        return found

    def precedes(self, i: int, before: tuple[int, int], j: int, worker: I64, node: I64) -> Bools:
        """Elementwise: node `before` = (worker, node) of group `i` before nodes of group `j`; workers count from the
        group's first."""
        stopped: Bools = np.zeros(len(node), dtype=bool)
        if (reached := self._reached(i, *before)) is None:
            return stopped
        orders = self.inter_cta.orders[j]
        inside = np.flatnonzero(orders.slot[node] >= 0)
        stopped[inside] = ~reached[self.inter_cta.events(j, worker[inside], node[inside])]
        for d, agent in enumerate(orders.agents):
            upto = orders.lo[node, d]
            some = np.flatnonzero(upto > 0)
            stopped[some] |= ~reached[self.inter_cta.events(j, worker[some], agent[upto[some] - 1])]
        return stopped

    def _reached(self, g: int, worker: int, node: int) -> Bools | None:
        """[events] what runs without this node, None if that is no longer asked."""
        orders, where = self.inter_cta.orders[g], np.array([worker])
        exits = [(agent, int(first)) for agent, first in zip(orders.agents, orders.hi[node], strict=True)]
        held = tuple(int(self.inter_cta.events(g, where, c[k : k + 1])[0]) for c, k in exits if k < len(c))
        if held not in self.ran:
            self.left -= self.inter_cta.system.events
            if self.left < 0:
                return None
            run = greedy(self.inter_cta.system, held)
            self.ran[held] = run.position < len(run.order)
        return self.ran[held]


NEVER: Final = -(1 << 30)
AT_ONCE: Final = 1 << 15
"""Pairs that are looked at together: what is made of more comes in fresh memory each time, which takes longer to get
than to fill."""


class Ordering(Protocol):
    """Must-happen-before of numbered nodes, and a total order that agrees with it."""

    system: System

    def placed(self, numbers: I64) -> I64:
        """Sort keys of these nodes in a run of everything."""
        ...

    def node(self, number: int) -> tuple[Group, int, int]:
        """(group, worker, local node)."""
        ...

    def numbers(self, worker: I64, event: I64) -> I64:
        """Numbers of local events of workers."""
        ...

    def precedes(self, before: I64, after: I64) -> Bools:
        """Elementwise: all of `before` finishes before any of `after` starts, in every execution."""
        ...

    def precedes_plainly(self, before: I64, after: I64) -> Bools:
        """`precedes`, but for what takes runs to find: False says nothing."""
        ...


@dataclass(frozen=True, eq=False)
class Places:
    """Where nodes stand among the agents of their workers; all [n, most agents of a worker], -1 where there is
    none.

    agent: its number. hi: see `local_order`. view: what the node's G joins: 2 e for the clock of the
    inter-CTA system event e that the node itself is, 2 e + 1 for that of the end of an agent's last node e before it.
    """

    agent: I32
    hi: I32
    view: I32

    def part(self, some: slice) -> Places:
        return Places(self.agent[some], self.hi[some], self.view[some])


def between_workers(clocks: Clocks, before: Places, after: Places) -> Bools:
    """Elementwise: is a node of `before` ordered before that of `after` through agents?"""
    ordered: Bools = np.zeros(len(before.hi), bool)
    for low in range(0, len(ordered) if clocks.system.events else 0, AT_ONCE):
        some = slice(low, low + AT_ONCE)
        ordered[some] = _between_workers(clocks, before.part(some), after.part(some))
    return ordered


def _between_workers(clocks: Clocks, before: Places, after: Places) -> Bools:
    system = clocks.system
    ordered: Bools = np.zeros(len(before.hi), bool)
    left = np.arange(len(ordered))
    for a, d in product(range(before.agent.shape[1]), range(after.view.shape[1])):
        agent, view = before.agent[:, a].take(left), after.view[:, d].take(left)
        event = np.maximum(view >> 1, 0)
        seen = clocks.rows[clocks.row_of.take(event), agent]
        # of its own agent a view shows more than the row, which it shares with earlier events
        own = system.agent_of.take(event) == agent
        seen = np.where(own, np.maximum(seen, system.index_of.take(event) + (view & 1)), seen)
        found = (agent >= 0) & (view >= 0) & (seen > before.hi[:, a].take(left))
        ordered[left[found]] = True
        left = left[~found]
    return ordered


def divided(numbers: I64, by: int) -> tuple[I64, I64]:
    """As `divmod`, in a fifth of the time."""
    inter_cta = numbers // by
    return inter_cta, numbers - inter_cta * by


class IntervalOrder:
    """Must-happen-before and a compatible total order for all nodes of all workers (the `Clocks` of the composition).

    Nodes are numbered group by group, worker by worker: node_base + (worker - first) * nodes + node.
    """

    def __init__(self, inter_cta: InterCtaSystem) -> None:
        self.inter_cta = inter_cta
        self.implied = ImpliedOrder(inter_cta)
        self.system = inter_cta.groups[0].order.trace.local_system
        self._base = np.array([g.node_base for g in inter_cta.groups], np.int64)
        self._orders = max(1, *(len(c) for c in inter_cta.orders))

    def _local(self, numbers: I64) -> tuple[I64, I64, I64]:
        """(group, worker counted from its first, node) of composite numbers."""
        groups = self.inter_cta.groups
        if len(groups) == 1:
            return np.zeros_like(numbers), *divided(numbers - groups[0].node_base, groups[0].nodes)
        group = np.searchsorted(self._base, numbers, side="right") - 1
        nodes = np.array([g.nodes for g in groups], np.int64)
        worker, node = np.divmod(numbers - self._base[group], nodes[group])
        return group, worker, node

    def node(self, number: int) -> tuple[Group, int, int]:
        """(group, worker, node) of a composite number."""
        found = next(g for g in reversed(self.inter_cta.groups) if g.node_base <= number)
        worker, node = divmod(number - found.node_base, found.nodes)
        return found, found.first + worker, node

    def numbers(self, worker: I64, event: I64) -> I64:
        numbers: I64 = self._first[worker] + event
        return numbers

    @cached_property
    def _first(self) -> I64:
        """[workers] number of each one's first node."""
        groups = self.inter_cta.groups
        base = np.empty(sum(g.count for g in groups), np.int64)
        for g in groups:
            base[g.first : g.first + g.count] = g.node_base + np.arange(g.count) * g.nodes
        return base

    def places(self, numbers: I64) -> Places:
        group, worker, node = self._local(numbers)
        shape = (len(numbers), self._orders)
        found = Places(np.full(shape, -1, np.int32), np.full(shape, -1, np.int32), np.full(shape, -1, np.int32))
        for g, orders in enumerate(self.inter_cta.orders):
            at = np.flatnonzero(group == g)
            some = self._places(g, worker[at], node[at])
            for every, part in ((found.agent, some.agent), (found.hi, some.hi), (found.view, some.view)):
                every[at, : len(orders)] = part
        return found

    def _places(self, g: int, worker: I64, node: I64) -> Places:
        """Of nodes of one group; worker counts from its first. Its workers have equal agents one after the other."""
        inter_cta, orders, each = self.inter_cta, self.inter_cta.orders[g], worker.astype(np.int32)[:, None]
        hi, view, events = self._own[g]
        agent = each * len(orders) + (int(inter_cta.base[g]) + np.arange(len(orders), dtype=np.int32))
        return Places(agent, hi.take(node, axis=0), np.maximum(view.take(node, axis=0) + each * (2 * events), -1))

    @cached_property
    def _own(self) -> list[tuple[I32, I32, int]]:
        """By group: (hi, view) of the nodes of its first worker, no view as a large negative number, and how many
        events the agents of a worker have."""
        found = []
        for base, orders in zip(self.inter_cta.base.tolist(), self.inter_cta.orders, strict=False):
            first = self.inter_cta.agent_first[base : base + len(orders) + 1]
            view = np.where(orders.lo > 0, 2 * (first[:-1] + orders.lo) - 1, NEVER)
            alone = orders.slot >= 0
            view[alone] = NEVER
            view[alone, :1] = 2 * (first[orders.of[alone]] + orders.slot[alone])[:, None]
            found.append((orders.hi.astype(np.int32), view.astype(np.int32), int(first[-1] - first[0])))
        return found

    def placed(self, numbers: I64) -> I64:
        """Sort keys of a run of everything: last node of an agent before it, then the local run."""
        groups = self.inter_cta.groups
        view = self.places(numbers).view
        ran = np.append(self.inter_cta.run.position, -1)
        last = np.where(view >= 0, ran[view >> 1], -1).max(axis=1, initial=-1)
        group, _, node = self._local(numbers)
        local = np.empty_like(numbers)
        for g, own in enumerate(groups):
            at = np.flatnonzero(group == g)
            local[at] = own.order.run.position[np.maximum(own.order.leader[node[at]], 0)]
        keys: I64 = (last + 1) * max(g.nodes for g in groups) + local
        return keys

    def precedes(self, before: I64, after: I64) -> Bools:
        """Elementwise: all of `before` finishes before any of `after` starts, in every execution."""
        ordered = self.precedes_plainly(before, after)
        self._ask(before, after, ordered)
        return ordered

    def precedes_plainly(self, before: I64, after: I64) -> Bools:
        """`precedes`, but for what only partial thresholds order: False says nothing."""
        ordered = self.between_workers(before, after)
        self.add_local(before, after, ordered)
        return ordered

    def between_workers(self, before: I64, after: I64) -> Bools:
        """`precedes` of what agents' clocks order."""
        return between_workers(self.inter_cta.clocks, self.places(before), self.places(after))

    def add_local(self, before: I64, after: I64, ordered: Bools) -> None:
        """What a worker orders by itself."""
        for low in range(0, len(before), AT_ONCE):
            some = slice(low, low + AT_ONCE)
            self._add_local(before[some], after[some], ordered[some])

    def _add_local(self, before: I64, after: I64, ordered: Bools) -> None:
        nodes = [g.nodes for g in self.inter_cta.groups]
        # nodes of one worker are not further apart
        open_ = np.flatnonzero(~ordered & (np.abs(after - before) < max(nodes)))
        before, after = before[open_], after[open_]
        group, _, node = self._local(before)
        # where a node of the same worker would be, counted as its nodes are
        later = after - before + node
        near = (later >= 0) & (later < np.array(nodes)[group])
        for g, own in enumerate(self.inter_cta.groups):
            at = np.flatnonzero(near & (group == g))
            ordered[open_[at]] = own.order.wholly(node[at], later[at])

    def _ask(self, before: I64, after: I64, ordered: Bools) -> None:
        """What intervals leave unordered although partial thresholds order it."""
        open_ = np.flatnonzero(~ordered & (before != after))
        open_ = open_[self._several(before[open_])]
        if not len(open_) or not self.implied.is_needed:
            return
        for number in np.unique(before[open_]).tolist():
            self._imply(number, open_[before[open_] == number], after, ordered)

    def _several(self, numbers: I64) -> Bools:
        """See `ImpliedOrder.several`."""
        group, _, node = self._local(numbers)
        several = np.zeros(len(numbers), dtype=bool)
        for g in np.unique(group).tolist():
            several[group == g] = self.implied.several(g, node[group == g])
        return several

    def _imply(self, number: int, at: I64, after: I64, ordered: Bools) -> None:
        i, worker, node = (int(v[0]) for v in self._local(np.array([number])))
        group, other, later = self._local(after[at])
        for j in np.unique(group).tolist():
            some = group == j
            ordered[at[some]] = self.implied.precedes(i, (worker, node), j, other[some], later[some])
