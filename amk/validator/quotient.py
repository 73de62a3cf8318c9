"""The interface nodes of all workers as one flat system, and the order of everything else through them.

Every chain of every worker is an agent. A chain's node also waits for the local prefix of the worker's other chains, so
that barriers between them (and the back-pressure they carry) are kept. Tagged words add one joint agent per distinct
set of writers: it waits for them and readers wait for it, which saves a wait per (reader, writer) pair. Joints of one
set run in tag order; as every writer's steps do too, that adds no constraint.

Kinds of edges:
    block   everything that can block, hints included: decides liveness. A crew counts as one blocking unit (`pre`).
    wait    the same as an order: what cannot exist before what else is over.
    word    what orders tagged words and whatever is read before it is overwritten: fenced counters and tagged words.
    fence   what orders all memory: acquire waits on release signals.
Weak signals on a counter that an acquire waits for still count, but come from an agent without a past.

A *strict* quotient is one of whose runs every node is a run of the flat system too: a step happens as a whole, after
everything that any part of it comes after, and each of its events after all that the step waits for (see `withheld`).

Two nodes of different workers are ordered through chains:  x < y  iff some chain c of x's worker has
    hi[x, c]  finished before  y,   read from   G(y) = JOIN over chains d of y's worker of P*(last lo[y, d] node).
If y is itself in a chain, G(y) is its own clock. For conjunctive waits this is exact; what else partial thresholds
between workers imply is found by `implied_order`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from amk.validator.builder import assemble
from amk.validator.counter_events import Instances
from amk.validator.implied_order import ImpliedOrder
from amk.validator.liveness import Run, greedy
from amk.validator.local_order import Chains, LocalOrder, chains_of, crew_chains, require_order, warp_chains
from amk.validator.order import MAX_CELLS, Clocks, ClocksTooLarge, must_clocks
from amk.validator.system import I32, I64, Bools, System
from amk.validator.trace import Trace
from amk.validator.words import Words

Edges = Literal["block", "wait", "word", "fence"]


@dataclass(frozen=True, eq=False)
class Group:
    """All workers of one program. waits, signals: rows of `CounterEvents`. node_base: number of its first node."""

    number: int
    first: int
    count: int
    order: LocalOrder
    waits: I64
    signals: I64
    node_base: int

    @property
    def nodes(self) -> int:
        return self.order.nodes


def projected(groups: list[Group], edges: Edges) -> list[Group]:
    """The groups with the waits that these edges keep, and the signals on counters that these wait for."""
    strong = edges not in ("block", "wait")
    waits = [g.waits[g.waits[:, 4] == 0] if strong else g.waits for g in groups]
    awaited = np.unique(np.concatenate([w[:, 2] for w in waits]))
    signals = [g.signals[np.isin(g.signals[:, 2], awaited)] for g in groups]
    return [replace(g, waits=w, signals=s) for g, w, s in zip(groups, waits, signals, strict=True)]


class Quotient:
    """Builds the system of one kind of edges and runs it."""

    def __init__(
        self, groups: list[Group], instances: Instances, words: Words, edges: Edges, strict: bool = False
    ) -> None:
        self.groups, self.instances, self.edges = projected(groups, edges), instances, edges
        self.strict = strict
        self.words = words if edges != "fence" else None
        self.strong = edges not in ("block", "wait")
        groups = self.groups
        self.chains = [self._chains(g) for g in groups]
        self.base = np.cumsum([0, *(g.count * len(c) for g, c in zip(groups, self.chains, strict=True))])
        lengths = [np.tile([len(c) for c in ch.chains], g.count) for g, ch in zip(groups, self.chains, strict=True)]
        self.joints = [len(t) for t in self.words.targets] if self.words else []
        void = sum(int(g.signals[:, 4].sum()) for g in groups) if self.strong else 0
        self.lengths = np.concatenate([*lengths, self.joints, [void]]).astype(np.int64)
        self.chain_first = np.concatenate(([0], np.cumsum(self.lengths)))
        self.init = instances.init().tolist()
        self.waits: list[I64] = [np.zeros((0, 3), np.int64)]
        self.signals: list[I64] = [np.zeros((0, 3), np.int64)]
        self.system: System = self._build()

    @cached_property
    def run(self) -> Run:
        return greedy(self.system)

    @cached_property
    def clocks(self) -> Clocks:
        return must_clocks(self.run)

    def _chains(self, group: Group) -> Chains:
        signals = group.signals[group.signals[:, 4] == 0] if self.strong else group.signals
        events = np.concatenate((group.waits[:, 1], signals[:, 1]))
        found = warp_chains(group.order, events)
        if self.words is not None:
            writes = self.words.writes[self.words.writes[:, 0] == group.number]
            steps = np.unique(writes[:, 3:1:-1], axis=0)
            parts = np.split(steps[:, 1], np.flatnonzero(np.diff(steps[:, 0])) + 1)
            for items in {part.tobytes() for part in parts if len(part)}:
                require_order(group.order, np.frombuffer(items, np.int64))
            needs = self.words.needs[self.words.needs[:, 0] == group.number, 2]
            found += crew_chains(group.order, np.concatenate((writes[:, 2], needs)))
        return chains_of(group.order, found)

    def events(self, g: int, worker: I64, node: I64) -> I64:
        """Quotient events of chain nodes of group `g`; worker counts from the group's first."""
        chains = self.chains[g]
        numbers: I64 = self.chain_first[self.base[g] + worker * len(chains) + chains.of[node]] + chains.slot[node]
        return numbers

    def owner(self, event: int) -> tuple[Trace, int, int]:
        """(trace, worker, local node) of the quotient event of a worker."""
        agent = int(self.system.agent_of[event])
        g = int(np.searchsorted(self.base, agent, side="right")) - 1
        group, chains = self.groups[g], self.chains[g]
        worker, chain = divmod(agent - int(self.base[g]), len(chains))
        return group.order.trace, group.first + worker, int(chains.chains[chain][self.system.index_of[event]])

    def _build(self) -> System:
        void = int(self.chain_first[-2])
        for g, group in enumerate(self.groups):
            rows = group.waits
            event = self.events(g, rows[:, 0] - group.first, rows[:, 1])
            self.waits.append(np.stack((event, rows[:, 2], np.maximum(rows[:, 3], 0)), axis=1))
            rows = group.signals
            loose = np.flatnonzero(rows[:, 4]) if self.strong else np.zeros(0, np.int64)
            tight = np.setdiff1d(np.arange(len(rows)), loose)
            event = np.empty(len(rows), np.int64)
            event[tight] = self.events(g, rows[tight, 0] - group.first, rows[tight, 1])
            event[loose] = void + np.arange(len(loose))
            void += len(loose)
            self.signals.append(np.stack((event, rows[:, 2], rows[:, 3]), axis=1))
            self._add_prefixes(g)
        self.words_base = len(self.init)
        if self.words:
            self._add_words(self.words)
        agent = np.repeat(np.arange(len(self.lengths)), self.lengths)
        return assemble(
            len(self.lengths), agent, self.init, np.concatenate(self.waits), np.concatenate(self.signals), ()
        )[0]

    def is_prefix(self, counter: I64) -> Bools:
        """Which of these counters only count the nodes of a chain, for the chains of the same worker."""
        found: Bools = (counter >= self.instances.total) & (counter < self.words_base)
        return found

    def _fresh(self, count: int) -> int:
        first = len(self.init)
        self.init += [0] * count
        return first

    def _add_prefixes(self, g: int) -> None:
        """One private counter per chain counts its finished nodes; the other chains of the worker wait for them."""
        group, chains = self.groups[g], self.chains[g]
        if len(chains) < 2:
            return
        workers = np.arange(group.count)
        base = self._fresh(group.count * len(chains)) + workers * len(chains)
        prefix = chains.pre if self.edges == "block" else chains.lo
        if self.strict:
            prefix = _with_members(chains)
        for a, chain in enumerate(chains.chains):
            event = self.events(g, workers[:, None], chain[None, :])
            own = np.repeat(base + a, len(chain))
            self.signals.append(np.stack((event.reshape(-1), own, np.ones_like(own)), axis=1))
            for b in range(len(chains)):
                need = np.maximum.accumulate(prefix[chain, b])
                fresh = np.flatnonzero(np.diff(need, prepend=0) > 0)
                if a != b and len(fresh):
                    counter = np.repeat(base + b, len(fresh))
                    rows = (event[:, fresh].reshape(-1), counter, np.tile(need[fresh], group.count))
                    self.waits.append(np.stack(rows, axis=1))

    def _add_words(self, words: Words) -> None:
        base = self._fresh(words.counters)
        joint_base = self._fresh(len(words.joints))
        joint_first = self.chain_first[len(self.lengths) - 1 - len(words.joints) : -1]
        for g, group in enumerate(self.groups):
            rows = words.writes[words.writes[:, 0] == g]
            event = self.events(g, rows[:, 1] - group.first, group.order.trace.events + rows[:, 2])
            self.signals.append(np.stack((event, base + rows[:, 3], np.ones_like(event)), axis=1))
            table = words.needs[words.needs[:, 0] == g, 1:]
            event = self.events(g, table[:, 0] - group.first, group.order.trace.events + table[:, 1])
            self.waits.append(np.stack((event, joint_base + table[:, 2], table[:, 3] + 1), axis=1))
            if self.strict:
                which, node = _members(self.chains[g], table[:, 1])
                event = self.events(g, table[which, 0] - group.first, node)
                self.waits.append(np.stack((event, joint_base + table[which, 2], table[which, 3] + 1), axis=1))
        for j, (members, targets) in enumerate(zip(words.joints, words.targets, strict=True)):
            event = int(joint_first[j]) + np.arange(len(targets))
            self.signals.append(np.stack((event, np.full_like(event, joint_base + j), np.ones_like(event)), axis=1))
            counter = np.tile(base + members, len(targets))
            self.waits.append(np.stack((np.repeat(event, len(members)), counter, targets.reshape(-1)), axis=1))

    def started(self, event: I64) -> I32:
        """[..., agents] P of quotient events."""
        rows: I32 = self.clocks.rows[self.clocks.row_of[event]]
        np.put_along_axis(rows, self.system.agent_of[event][..., None], self.system.index_of[event][..., None], -1)
        return rows

    def finished(self, event: I64) -> I32:
        """[..., agents] P* of quotient events; -1 stands for nothing."""
        rows: I32 = self.clocks.rows[self.clocks.row_of[event]]
        done = self.system.index_of[event][..., None] + 1
        np.put_along_axis(rows, self.system.agent_of[event][..., None], done, -1)
        rows[event < 0] = 0
        return rows


def _members(chains: Chains, items: I64) -> tuple[I64, I64]:
    """(position in items, event) of every event of these items that is a chain node by itself."""
    member = chains.order.trace.event_of[items]
    alone = (member >= 0) & (chains.slot[member] >= 0)
    which, warp = np.nonzero(alone)
    return which, member[which, warp]


def _with_members(chains: Chains) -> I64:
    """`pre`, where a crew comes after those of its own events that are chain nodes too."""
    prefix = chains.pre.copy()
    nodes = np.arange(chains.order.trace.events, chains.order.nodes)
    which, event = _members(chains, nodes - chains.order.trace.events)
    np.maximum.at(prefix, (nodes[which], chains.of[event]), chains.slot[event] + 1)
    return prefix


class Ordering(Protocol):
    """Must-happen-before of numbered nodes, and a total order that agrees with it."""

    system: System

    @property
    def position(self) -> I64: ...

    def node(self, number: int) -> tuple[Group, int, int]:
        """(group, worker, local node)."""
        ...

    def numbers(self, worker: I64, event: I64) -> I64:
        """Numbers of local events of workers."""
        ...

    def precedes(self, before: I64, after: I64) -> Bools:
        """Elementwise: all of `before` finishes before any of `after` starts, in every execution."""
        ...


class BracketOrder:
    """Must-happen-before and a compatible total order for all nodes of all workers (the `Clocks` of the composition).

    Nodes are numbered group by group, worker by worker: node_base + (worker - first) * nodes + node.
    """

    def __init__(self, quotient: Quotient) -> None:
        self.quotient, self.implied = quotient, ImpliedOrder(quotient)
        groups = quotient.groups
        self.system = groups[0].order.trace.local_system
        self.group_of = np.repeat(np.arange(len(groups), dtype=np.int32), [g.count * g.nodes for g in groups])
        self.worker_of = np.concatenate([np.repeat(np.arange(g.count, dtype=np.int32), g.nodes) for g in groups])
        self.node_of = np.concatenate([np.tile(np.arange(g.nodes, dtype=np.int32), g.count) for g in groups])
        self._rows: list[I32] = []
        self._views: list[I64] = []
        for g in range(len(groups)):
            self._prepare(g)

    def _prepare(self, g: int) -> None:
        """G per (worker, distinct view); a view is a cut of the worker's chains, or a chain node itself."""
        group, chains, quotient = self.quotient.groups[g], self.quotient.chains[g], self.quotient
        own = np.where(chains.slot >= 0, np.arange(group.nodes), -1)
        key = np.concatenate((own[:, None], np.where(own[:, None] >= 0, 0, chains.lo)), axis=1)
        views, view_of = np.unique(key, axis=0, return_inverse=True)
        if group.count * len(views) * quotient.system.agents > MAX_CELLS:
            raise ClocksTooLarge(f"{group.count * len(views)} views x {quotient.system.agents} chains")
        rows = np.zeros((group.count, len(views), quotient.system.agents), np.int32)
        workers = np.arange(group.count)[:, None]
        interface = np.flatnonzero(views[:, 0] >= 0)
        if len(interface):
            rows[:, interface] = quotient.started(quotient.events(g, workers, views[None, interface, 0]))
        private = np.flatnonzero(views[:, 0] < 0)
        for b, chain in enumerate(chains.chains):
            lo = views[private, 1 + b]
            last = quotient.events(g, workers, chain[np.maximum(lo - 1, 0)][None, :])
            rows[:, private] = np.maximum(rows[:, private], quotient.finished(np.where(lo > 0, last, -1)))
        self._rows.append(rows)
        self._views.append(view_of.reshape(-1))

    def node(self, number: int) -> tuple[Group, int, int]:
        """(group, worker, node) of a composite number."""
        group = self.quotient.groups[int(self.group_of[number])]
        return group, group.first + int(self.worker_of[number]), int(self.node_of[number])

    def numbers(self, worker: I64, event: I64) -> I64:
        first = [g.node_base + np.arange(g.count) * g.nodes for g in self.quotient.groups]
        base = np.empty(sum(g.count for g in self.quotient.groups), np.int64)
        base[np.concatenate([g.first + np.arange(g.count) for g in self.quotient.groups])] = np.concatenate(first)
        numbers: I64 = base[worker] + event
        return numbers

    @cached_property
    def position(self) -> I64:
        """[total] sort key of a run of everything: last chain node before it, then the local run."""
        return np.concatenate([self._positions(g).reshape(-1) for g in range(len(self.quotient.groups))])

    def _positions(self, g: int) -> I64:
        group, chains, ran = self.quotient.groups[g], self.quotient.chains[g], self.quotient.run.position
        workers = np.arange(group.count)[:, None]
        last = np.full((group.count, group.nodes), -1, np.int64)
        for b, chain in enumerate(chains.chains):
            position = ran[self.quotient.events(g, workers, chain[None, :])]
            lo = chains.lo[:, b]
            np.maximum(last, np.where(lo > 0, position[:, np.maximum(lo - 1, 0)], -1), out=last)
        for chain in chains.chains:
            last[:, chain] = ran[self.quotient.events(g, workers, chain[None, :])]
        leader = np.maximum(group.order.leader, 0)
        scale = max(g.nodes for g in self.quotient.groups)
        return (last + 1) * scale + group.order.run.position[leader][None, :]

    def precedes(self, before: I64, after: I64) -> Bools:
        """Elementwise: all of `before` finishes before any of `after` starts, in every execution."""
        groups = self.quotient.groups
        if len(groups) == 1:
            return self._precedes(0, 0, before, after)
        ordered: Bools = np.zeros(len(before), dtype=bool)
        for i in range(len(groups)):
            for j in range(len(groups)):
                at = np.flatnonzero((self.group_of[before] == i) & (self.group_of[after] == j))
                ordered[at] = self._precedes(i, j, before[at], after[at])
        return ordered

    def _precedes(self, i: int, j: int, before: I64, after: I64) -> Bools:
        worker, node = self.worker_of[before], self.node_of[before]
        other, later = self.worker_of[after], self.node_of[after]
        ordered: Bools = np.zeros(len(before), dtype=bool)
        chains, view = self.quotient.chains[i], self._views[j][later]
        for a in range(len(chains)):
            agent = self.quotient.base[i] + worker * len(chains) + a
            ordered |= self._rows[j][other, view, agent] > chains.hi[node, a]
        if i == j:
            order = self.quotient.groups[i].order
            near = np.flatnonzero((worker == other) & ~ordered)
            ordered[near] = (order.past[later[near]] >= order.need[node[near]]).all(axis=1)
        self._ask(i, j, before, after, ordered)
        return ordered

    def _ask(self, i: int, j: int, before: I64, after: I64, ordered: Bools) -> None:
        """What brackets leave unordered although partial thresholds order it."""
        open_ = np.flatnonzero(~ordered & (before != after))
        open_ = open_[self.implied.several(i, self.node_of[before[open_]])]
        if not len(open_) or not self.implied.needed:
            return
        for number in np.unique(before[open_]).tolist():
            at = open_[before[open_] == number]
            first = int(self.worker_of[number]), int(self.node_of[number])
            ordered[at] = self.implied.precedes(i, first, j, self.worker_of[after[at]], self.node_of[after[at]])
