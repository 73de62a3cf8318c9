"""Order on two levels: what one CTA guarantees by itself, and its interface with all others.

Within a CTA. What one worker guarantees by itself: clocks over its warps with every global wait taken as granted.

Property: with C1 (a barrier belongs to one worker), C2 (every local wait is conjunctive:
all agents of the barrier's role arrive once per round) and C3 (the worker alone runs to completion), the local
prefixes of interface nodes together with the global counters decide must-happen-before between interface nodes
exactly.

A *warp group* is all events of one item together (every warp of the step's role). Its *start* is over when all is that
comes before any part of it. Events, warp groups and starts are nodes: events first, then warp groups by item, then
starts by item. For a node x:
    past[x, w]  number of first events of warp w that finish before any part of x starts
    need[x, w]  number of first events of warp w that contain x's part on w (0 if none), of a start its past: x < y  iff
                past[y] >= need[x]
    late[x, w]  like past, but before some part of x starts

A *per-agent order* is a list of nodes, each wholly before the next, that synchronise with other workers: the nodes of
one agent of the inter-CTA system. For an agent c:
    lo[x, c]    number of its nodes that are wholly before x
    hi[x, c]    index of its first node whose past contains x (their number if there is none; a node contains itself)
    pre[x, c]   number of its nodes some part of which precedes some part of x: what x as a whole may be blocked by

Cost: one clock pass over a single worker; all workers of a program share it.

Between CTAs. The interface nodes of all workers as one flat system; `intervals` orders everything else through them.

Every worker has one or more agents. An agent's node also waits for the local prefix of the worker's other agents,
so that barriers between them (and the back-pressure they carry) are kept. Flag words add one join node agent per
distinct set of writers: it waits for them and readers wait for it, which saves a wait per (reader, writer) pair.
Join nodes of one set run in tag order; as every writer's steps do too, that adds no constraint.

Kinds of edges:
    block   everything that can block, hints included: decides liveness. A warp group counts as one blocking unit
            (`pre`).
    wait    the same as an order: what cannot exist before what else is over.
    word    what orders flag words and whatever is read before it is overwritten: fenced counters and flag words.
    fence   what orders all memory: acquire waits on release signals.
    A step that reads flag words comes, in `block`, after the steps that write them. As an order a word says less: lanes
    store and find words one by one. So what comes after the whole step that reads comes after what was over when the
    step that writes began, and nothing is said of what these two steps touch themselves.
Weak signals on a counter that an acquire waits for still count, but come from an agent without a past.

Of the system of `block` every run is one of the flat system too, node by node: a step happens as a whole, after
everything that any part of it comes after, and each of its events after all that the step waits for. An event that
signals does so after the words that its step reads, and words are written after what an event of their step waits for.
As an order it would say too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np

from amk.validator.order.clocks import Clocks, must_clocks
from amk.validator.order.greedy_run import Run, greedy
from amk.validator.program.handoffs import FlagWords, Instances
from amk.validator.program.system import I64, Bools, System, by_event
from amk.validator.program.trace import Trace

Intervals = tuple[I64, I64, I64]
"""lo, hi and pre of an agent."""


class NotComposable(RuntimeError):
    """The schedule is outside what the composed check can decide; the flat check may still do it."""


@dataclass(frozen=True, eq=False)
class LocalOrder:
    """past, need, late [nodes, warps]; leader [nodes] an event of the node. run: one of the worker alone."""

    trace: Trace
    run: Run
    past: I64
    need: I64
    late: I64
    leader: I64

    @property
    def complete(self) -> bool:
        """C3."""
        return self.run.complete

    @property
    def nodes(self) -> int:
        return len(self.leader)

    def wholly(self, before: I64, after: I64) -> Bools:
        """Elementwise: is all of `before` over before any of `after` starts? An event is on one warp only."""
        trace = self.trace
        warp_groups = np.flatnonzero(before >= trace.events)
        event = np.minimum(before, max(trace.events - 1, 0)) if len(warp_groups) else before
        found: Bools = self.past.reshape(-1).take(after * trace.warps + trace.warp_of[event]) > trace.index_of[event]
        if len(warp_groups):
            found[warp_groups] = (
                self.past.take(after[warp_groups], axis=0) >= self.need.take(before[warp_groups], axis=0)
            ).all(axis=1)
        return found


def warp_group(trace: Trace, item: int) -> int:
    """Node of all warps that run the item."""
    return trace.events + item


def starts(trace: Trace, items: I64) -> I64:
    """Nodes of the starts of these items."""
    found: I64 = trace.events + len(trace.items) + items
    return found


def local_order(trace: Trace) -> LocalOrder:
    """Clocks of the events, warp groups and starts of one worker."""
    run = greedy(trace.local_system)
    past = must_clocks(run).matrix().astype(np.int64)
    need = np.zeros((trace.events, trace.warps), np.int64)
    need[np.arange(trace.events), trace.warp_of] = trace.index_of + 1
    member, absent = trace.event_of, (trace.event_of < 0)[:, :, None]
    huge = np.iinfo(np.int64).max
    before, late, leader = (
        np.where(absent, huge, past[member]).min(axis=1), np.where(absent, 0, past[member]).max(axis=1),
        member.max(axis=1),
    )  # fmt: skip
    return LocalOrder(
        trace, run,
        past=np.concatenate((past, before, before)),
        need=np.concatenate((need, np.where(absent, 0, need[member]).max(axis=1), before)),
        late=np.concatenate((past, late, late)),
        leader=np.concatenate((np.arange(trace.events), leader, leader)),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class AgentOrders:
    """agents: node numbers of each agent; slot [nodes] index in its agent or -1, of [nodes] its agent; lo, hi, pre."""

    order: LocalOrder
    agents: tuple[I64, ...]
    slot: I64
    of: I64
    lo: I64
    hi: I64
    pre: I64

    def __len__(self) -> int:
        return len(self.agents)


def warp_orders(order: LocalOrder, events: I64) -> list[I64]:
    """One agent per warp of the given local events."""
    events = _distinct(events, order.trace.events)
    warp = order.trace.warp_of[events]
    return [events[warp == w] for w in np.flatnonzero(np.bincount(warp))]


def _distinct(numbers: I64, limit: int) -> I64:
    """In order, of numbers below the limit."""
    there = np.zeros(limit, bool)
    there[numbers] = True
    return np.flatnonzero(there)


def warp_group_orders(order: LocalOrder, items: I64, begun: I64) -> list[I64]:
    """The warp groups of these items, and the starts of those `begun`, as agents, each wholly before the next: one
    agent unless some overlap."""
    trace = order.trace
    whole, first = (_distinct(some, len(trace.items)) for some in (items, begun))
    nodes = np.concatenate((starts(trace, first), trace.events + whole))
    nodes = nodes[np.argsort(np.concatenate((first, whole)), kind="stable")]
    if bool(_in_turn(order, nodes).all()):
        return [nodes] if len(nodes) else []
    agents: list[list[int]] = []
    for node in nodes.tolist():
        home = next((agent for agent in agents if _wholly(order, agent[-1], node)), None)
        if home is None:
            agents.append(home := [])
        home.append(node)
    return [np.array(agent, np.int64) for agent in agents]


def _in_turn(order: LocalOrder, nodes: I64) -> Bools:
    """Of all nodes but the first: is all of the one before over before any of it starts?"""
    found: Bools = np.all(order.past[nodes[1:]] >= order.need[nodes[:-1]], axis=1)
    return found


def _wholly(order: LocalOrder, before: int, after: int) -> bool:
    return bool((order.past[after] >= order.need[before]).all())


def require_order(order: LocalOrder, items: I64) -> None:
    """`NotComposable` if some warp group of the items, in order, which write one tagged buffer, is not wholly
    before the next."""
    ordered = _in_turn(order, order.trace.events + items)
    if not ordered.all():
        path = order.trace.items[int(items[int(np.flatnonzero(~ordered)[0]) + 1])].site.path
        raise NotComposable(f"step {'/'.join(map(str, path))} overlaps an earlier write of its flag words")


def agent_orders(order: LocalOrder, agents: list[I64]) -> AgentOrders:
    """Intervals of every node with respect to the agents."""
    shape = (order.nodes, len(agents))
    lo, hi, pre = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    slot, of = np.full(order.nodes, -1, np.int64), np.full(order.nodes, -1, np.int64)
    for k, agent in enumerate(agents):
        slot[agent], of[agent] = np.arange(len(agent)), k
        lo[:, k], hi[:, k], pre[:, k] = _intervals(order, agent)
    return AgentOrders(order, tuple(agents), slot, of, lo, hi, pre)


def _intervals(order: LocalOrder, agent: I64) -> Intervals:
    """All nodes of an agent up to one lie in the past of what follows it, so running maxima make columns sorted."""
    need, past = np.maximum.accumulate(order.need[agent]), np.maximum.accumulate(order.past[agent])
    lo = np.full(order.nodes, len(agent), np.int64)
    hi, pre = np.zeros(order.nodes, np.int64), np.zeros(order.nodes, np.int64)
    for w in range(order.trace.warps):
        mine = np.flatnonzero(order.need[:, w])
        hi[mine] = np.maximum(hi[mine], np.searchsorted(past[:, w], order.need[mine, w], "left"))
        if not len(agent) or not need[-1, w]:
            continue  # none of its nodes is on this warp
        lo = np.minimum(lo, np.searchsorted(need[:, w], order.past[:, w], "right"))
        present = np.flatnonzero(order.need[agent, w])
        count = np.searchsorted(order.need[agent[present], w], order.late[:, w], "right")
        pre = np.maximum(pre, np.append(0, present + 1)[count])
    hi[agent] = np.arange(len(agent))
    events, end = order.trace.events, order.trace.events + len(order.trace.items)
    at = np.flatnonzero((agent >= events) & (agent < end))
    members = order.trace.event_of[agent[at] - events]
    which, warp = np.nonzero(members >= 0)
    member = members[which, warp]
    hi[member] = np.minimum(hi[member], at[which])
    warp_groups = np.where(order.trace.event_of >= 0, hi[order.trace.event_of], -1).max(axis=1)
    warp_groups[agent[at] - events] = at
    hi[events:end] = warp_groups
    return lo, hi, pre


NOTHING: Final = np.zeros(0, np.int64)
Columns = tuple[I64, I64, I64]
"""event, counter, threshold or amount."""
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
    counters = 1 + max((int(r[:, 2].max(initial=-1)) for r in (*waits, *(g.signals for g in groups))), default=-1)
    awaited = np.zeros(counters, bool)
    for rows in waits:
        awaited[rows[:, 2]] = True
    signals = [g.signals if awaited.all() else g.signals[awaited[g.signals[:, 2]]] for g in groups]
    return [replace(g, waits=w, signals=s) for g, w, s in zip(groups, waits, signals, strict=True)]


class InterCtaSystem:
    """Builds the system of one kind of edges and runs it."""

    def __init__(self, groups: list[Group], instances: Instances, words: FlagWords, edges: Edges) -> None:
        self.groups, self.instances = projected(groups, edges), instances
        self.whole = edges == "block"
        self.words = words if edges != "fence" else None
        self.strong = edges not in ("block", "wait")
        groups = self.groups
        self.orders = [self._orders(g) for g in groups]
        self.base = np.cumsum([0, *(g.count * len(c) for g, c in zip(groups, self.orders, strict=True))])
        lengths = [np.tile([len(c) for c in o.agents], g.count) for g, o in zip(groups, self.orders, strict=True)]
        self.join_nodes = [len(t) for t in self.words.targets] if self.words else []
        void = sum(int(g.signals[:, 4].sum()) for g in groups) if self.strong else 0
        self.lengths = np.concatenate([*lengths, self.join_nodes, [void]]).astype(np.int64)
        self.agent_first = np.concatenate(([0], np.cumsum(self.lengths)))
        self.init = instances.init()
        self.waits: list[Columns] = [(NOTHING, NOTHING, NOTHING)]
        self.signals: list[Columns] = [(NOTHING, NOTHING, NOTHING)]
        self.system: System = self._build()

    @cached_property
    def run(self) -> Run:
        return greedy(self.system)

    @cached_property
    def clocks(self) -> Clocks:
        return must_clocks(self.run)

    def _orders(self, group: Group) -> AgentOrders:
        signals = group.signals[group.signals[:, 4] == 0] if self.strong else group.signals
        events = np.concatenate((group.waits[:, 1], signals[:, 1]))
        found = warp_orders(group.order, events)
        if self.words is not None:
            writes = _of_group(self.words.writes, group.number)
            for one in written_items(writes):
                require_order(group.order, one)
            needs, written = _of_group(self.words.needs, group.number)[:, 2], writes[:, 2]
            whole, begun = (np.append(needs, written), NOTHING) if self.whole else (needs, written)
            found += warp_group_orders(group.order, whole, begun)
        return agent_orders(group.order, found)

    def events(self, g: int, worker: I64, node: I64) -> I64:
        """Inter-CTA system events of agents' nodes of group `g`; worker counts from the group's first."""
        orders = self.orders[g]
        numbers: I64 = self.agent_first[self.base[g] + worker * len(orders) + orders.of[node]] + orders.slot[node]
        return numbers

    def _build(self) -> System:
        void = int(self.agent_first[-2])
        for g, group in enumerate(self.groups):
            rows = group.waits
            event = self.events(g, rows[:, 0] - group.first, rows[:, 1])
            self.waits.append((event, rows[:, 2], np.maximum(rows[:, 3], 0)))
            rows = group.signals
            weak = rows[:, 4] != 0 if self.strong else np.zeros(len(rows), bool)
            loose, tight = np.flatnonzero(weak), np.flatnonzero(~weak)
            event = np.empty(len(rows), np.int64)
            event[tight] = self.events(g, rows[tight, 0] - group.first, rows[tight, 1])
            event[loose] = void + np.arange(len(loose))
            void += len(loose)
            self.signals.append((event, rows[:, 2], rows[:, 3]))
            self._add_prefixes(g)
        if self.words:
            self._add_words(self.words)
        tables = (
            by_event(int(self.agent_first[-1]), *map(np.concatenate, zip(*t, strict=True)))
            for t in (self.waits, self.signals)
        )
        return _bare(self.agent_first, self.init, *(column for table in tables for column in table))

    def _fresh(self, count: int) -> int:
        first = len(self.init)
        self.init = np.append(self.init, np.zeros(count, np.int64))
        return first

    def _add_prefixes(self, g: int) -> None:
        """One private counter per agent counts its finished nodes; the other agents of the worker wait for them."""
        group, orders = self.groups[g], self.orders[g]
        if len(orders) < 2:
            return
        workers = np.arange(group.count)
        base = self._fresh(group.count * len(orders)) + workers * len(orders)
        prefix = _with_members(orders) if self.whole else orders.lo
        for a, agent in enumerate(orders.agents):
            need = [np.maximum.accumulate(prefix[other, a]) for other in orders.agents]
            need[a] = np.zeros(0, np.int64)
            # only prefixes that somebody waits for are counted
            ends = np.unique(np.concatenate(need))
            ends = ends[ends > 0]
            event = self.events(g, workers[:, None], agent[None, ends - 1]).reshape(-1)
            own = np.repeat(base + a, len(ends))
            self.signals.append((event, own, np.ones_like(own)))
            for b, other in enumerate(orders.agents):
                fresh = np.flatnonzero(np.diff(need[b], prepend=0) > 0)
                if a != b and len(fresh):
                    event = self.events(g, workers[:, None], other[None, fresh]).reshape(-1)
                    rank = np.tile(np.searchsorted(ends, need[b][fresh]) + 1, group.count)
                    self.waits.append((event, np.repeat(base + a, len(fresh)), rank))

    def _add_words(self, words: FlagWords) -> None:
        base = self._fresh(words.counters)
        join_base = self._fresh(len(words.join_nodes))
        for g, group in enumerate(self.groups):
            rows, trace = _of_group(words.writes, g), group.order.trace
            node = trace.events + rows[:, 2] if self.whole else starts(trace, rows[:, 2])
            event = self.events(g, rows[:, 1] - group.first, node)
            self.signals.append((event, base + rows[:, 3], np.ones_like(event)))
            table = _of_group(words.needs, g)[:, 1:]
            event = self.events(g, table[:, 0] - group.first, trace.events + table[:, 1])
            self.waits.append((event, join_base + table[:, 2], table[:, 3] + 1))
            if self.whole:
                which, node = _members(self.orders[g], table[:, 1])
                event = self.events(g, table[which, 0] - group.first, node)
                self.waits.append((event, join_base + table[which, 2], table[which, 3] + 1))
        # the events of join nodes stand one after the other
        ranks = self.lengths[len(self.lengths) - 1 - len(words.join_nodes) : -1]
        join_node, first = np.repeat(np.arange(len(ranks)), ranks), int(self.agent_first[-2]) - int(ranks.sum())
        self.signals.append((first + np.arange(len(join_node)), join_base + join_node, np.ones_like(join_node)))
        event, counter, target = _join_waits(words)
        self.waits.append((first + event, base + counter, target))


def _join_waits(words: FlagWords) -> tuple[I64, I64, I64]:
    """(event among those of all join nodes, writer counter, count) of what join nodes wait for, by event."""
    none = np.zeros(0, np.int64)
    size, ranks = (np.array([t.shape[k] for t in words.targets], np.int64) for k in (1, 0))
    members, count = np.concatenate([none, *words.join_nodes]), np.repeat(size, ranks)
    # of each event all members of its join node
    shift = np.repeat(np.cumsum(size) - size, ranks) - (np.cumsum(count) - count)
    counter = members[np.arange(int(count.sum())) + np.repeat(shift, count)]
    target = np.concatenate([none, *(t.reshape(-1) for t in words.targets)])
    return np.repeat(np.arange(len(count)), count), counter, target


def _of_group(rows: I64, number: int) -> I64:
    """Those of a group, which is the first column."""
    mine = rows[:, 0] == number
    return rows if mine.all() else rows[mine]


def written_items(writes: I64) -> Iterator[I64]:
    """The items, in order, of every counter of `FlagWords.writes`, without repetitions."""
    steps = writes[:, 3] << 32 | writes[:, 2]
    if bool((np.diff(steps) <= 0).any()):
        steps = np.unique(steps)
    first = np.flatnonzero(np.diff(steps >> 32, prepend=-1))
    items, size = steps & 0xFFFFFFFF, np.diff(first, append=len(steps))
    for length in sorted(set(size.tolist())):
        alike = items[first[size == length][:, None] + np.arange(length)]
        fresh = np.append(True, (alike[1:] != alike[:-1]).any(axis=1))
        seen = {row.tobytes(): row for row in alike[fresh]}
        yield from seen.values()


def _members(orders: AgentOrders, items: I64) -> tuple[I64, I64]:
    """(position in items, event) of every event of these items that is a node of an agent by itself."""
    member = orders.order.trace.event_of[items]
    alone = (member >= 0) & (orders.slot[member] >= 0)
    which, warp = np.nonzero(alone)
    return which, member[which, warp]


def _with_members(orders: AgentOrders) -> I64:
    """`pre`, where a warp group comes after those of its own events that are nodes of agents too."""
    prefix = orders.pre.copy()
    items = np.arange(len(orders.order.trace.items))
    which, event = _members(orders, items)
    np.maximum.at(prefix, (orders.order.trace.events + which, orders.of[event]), orders.slot[event] + 1)
    return prefix


def _bare(agent_first: I64, counter_init: I64, *waits_and_signals: I64) -> System:
    events, none = int(agent_first[-1]), np.zeros(0, np.int64)
    wait_first, wait_counter, wait_threshold, signal_first, signal_counter, signal_amount = waits_and_signals
    return System(
        agent_first=agent_first, event_tag=np.full(events, -1), counter_init=counter_init,
        wait_first=wait_first, wait_counter=wait_counter, wait_threshold=wait_threshold,
        signal_first=signal_first, signal_counter=signal_counter, signal_amount=signal_amount,
        access_first=np.zeros(events + 1, np.int64), access_buffer=none, access_lo=none, access_hi=none,
        access_kind=none, access_value=none, access_delta=none,
    )  # fmt: skip
