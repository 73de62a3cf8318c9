"""What one worker guarantees by itself: clocks over its warps with every global wait taken as granted.

Property (section 11 of the theory): with C1 (a barrier belongs to one worker), C2 (every local wait is conjunctive:
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

A *chain* is a list of nodes, each wholly before the next, that synchronise with other workers. For a chain c:
    lo[x, c]    number of its nodes that are wholly before x
    hi[x, c]    index of its first node whose past contains x (their number if there is none; a node contains itself)
    pre[x, c]   number of its nodes some part of which precedes some part of x: what x as a whole may be blocked by

Cost: one clock pass over a single worker; all workers of a program share it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amk.validator.order.clocks import must_clocks
from amk.validator.order.greedy_run import Run, greedy
from amk.validator.program.system import I64, Bools
from amk.validator.program.trace import Trace

Intervals = tuple[I64, I64, I64]
"""lo, hi and pre of a chain."""


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
class Chains:
    """chains: node numbers of each chain; slot [nodes] index in its chain or -1, of [nodes] its chain; lo, hi, pre."""

    order: LocalOrder
    chains: tuple[I64, ...]
    slot: I64
    of: I64
    lo: I64
    hi: I64
    pre: I64

    def __len__(self) -> int:
        return len(self.chains)


def warp_chains(order: LocalOrder, events: I64) -> list[I64]:
    """One chain per warp of the given local events."""
    events = _distinct(events, order.trace.events)
    warp = order.trace.warp_of[events]
    return [events[warp == w] for w in np.flatnonzero(np.bincount(warp))]


def _distinct(numbers: I64, limit: int) -> I64:
    """In order, of numbers below the limit."""
    there = np.zeros(limit, bool)
    there[numbers] = True
    return np.flatnonzero(there)


def group_chains(order: LocalOrder, items: I64, begun: I64) -> list[I64]:
    """The warp groups of these items, and the starts of those `begun`, in chains, each wholly before the next: one
    chain unless some overlap."""
    trace = order.trace
    whole, first = (_distinct(some, len(trace.items)) for some in (items, begun))
    nodes = np.concatenate((starts(trace, first), trace.events + whole))
    nodes = nodes[np.argsort(np.concatenate((first, whole)), kind="stable")]
    if bool(_in_turn(order, nodes).all()):
        return [nodes] if len(nodes) else []
    chains: list[list[int]] = []
    for node in nodes.tolist():
        home = next((chain for chain in chains if _wholly(order, chain[-1], node)), None)
        if home is None:
            chains.append(home := [])
        home.append(node)
    return [np.array(chain, np.int64) for chain in chains]


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


def chains_of(order: LocalOrder, chains: list[I64]) -> Chains:
    """Intervals of every node with respect to the chains."""
    shape = (order.nodes, len(chains))
    lo, hi, pre = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    slot, of = np.full(order.nodes, -1, np.int64), np.full(order.nodes, -1, np.int64)
    for k, chain in enumerate(chains):
        slot[chain], of[chain] = np.arange(len(chain)), k
        lo[:, k], hi[:, k], pre[:, k] = _intervals(order, chain)
    return Chains(order, tuple(chains), slot, of, lo, hi, pre)


def _intervals(order: LocalOrder, chain: I64) -> Intervals:
    """All nodes of a chain up to one lie in the past of what follows it, so running maxima make columns sorted."""
    need, past = np.maximum.accumulate(order.need[chain]), np.maximum.accumulate(order.past[chain])
    lo = np.full(order.nodes, len(chain), np.int64)
    hi, pre = np.zeros(order.nodes, np.int64), np.zeros(order.nodes, np.int64)
    for w in range(order.trace.warps):
        mine = np.flatnonzero(order.need[:, w])
        hi[mine] = np.maximum(hi[mine], np.searchsorted(past[:, w], order.need[mine, w], "left"))
        if not len(chain) or not need[-1, w]:
            continue  # none of its nodes is on this warp
        lo = np.minimum(lo, np.searchsorted(need[:, w], order.past[:, w], "right"))
        present = np.flatnonzero(order.need[chain, w])
        count = np.searchsorted(order.need[chain[present], w], order.late[:, w], "right")
        pre = np.maximum(pre, np.append(0, present + 1)[count])
    hi[chain] = np.arange(len(chain))
    events, end = order.trace.events, order.trace.events + len(order.trace.items)
    at = np.flatnonzero((chain >= events) & (chain < end))
    members = order.trace.event_of[chain[at] - events]
    which, warp = np.nonzero(members >= 0)
    member = members[which, warp]
    hi[member] = np.minimum(hi[member], at[which])
    warp_groups = np.where(order.trace.event_of >= 0, hi[order.trace.event_of], -1).max(axis=1)
    warp_groups[chain[at] - events] = at
    hi[events:end] = warp_groups
    return lo, hi, pre
