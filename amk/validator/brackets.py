"""The order of all nodes of all workers, through the chains of a quotient.

Two nodes of different workers are ordered through chains:  x < y  iff some chain c of x's worker has
    hi[x, c]  finished before  y,   read from   G(y) = JOIN over chains d of y's worker of P*(last lo[y, d] node).
If y is itself in a chain, G(y) is its own clock. For conjunctive waits this is exact; what else partial thresholds
between workers imply is found by `implied_order`.

Where a node stands among the chains (`Places`) and the clocks are all that the first part of this depends on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Protocol

import numpy as np

from amk.validator.abreast import places_abreast
from amk.validator.implied_order import ImpliedOrder
from amk.validator.memo import Keyed
from amk.validator.order import Clocks
from amk.validator.quotient import Group, Quotient
from amk.validator.system import I32, I64, Bools, System


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

    def precedes_otherwise(self, before: I64, after: I64) -> Bools:
        """`precedes` of what chains leave unordered; all there is, where there are no chains."""
        ...

    def precedes_each(self, before: I64, after: I64) -> Bools:
        """`precedes` of every pair, all of `after` for the first of `before` first."""
        ...


@dataclass(frozen=True, eq=False)
class Places:
    """Where nodes stand among the chains of their workers; all [n, most chains of a worker], -1 where there is none.

    agent: that of the chain. hi: see `local_order`. view: what the node's G joins: 2 e for the clock of the quotient
    event e that the node itself is, 2 e + 1 for that of the end of the last chain node e before it.
    """

    agent: I32
    hi: I32
    view: I32


@dataclass(frozen=True, eq=False)
class Views:
    """Places with what their views show: own [n, chains] agent of the view (-1 if there is none), value its own
    component, row which of `rows` [rows, agents] has the others.
    """

    agent: I32
    hi: I32
    own: I32
    value: I32
    row: I64
    rows: I32


def views(clocks: Clocks, places: Places) -> Views:
    system, none = clocks.system, places.view < 0
    if not system.events:
        absent = np.full_like(places.view, -1)
        return Views(places.agent, places.hi, absent, absent, absent.astype(np.int64), np.zeros((0, 0), np.int32))
    event = np.maximum(places.view >> 1, 0)
    own = np.where(none, -1, system.agent_of[event]).astype(np.int32)
    value = (system.index_of[event] + (places.view & 1)).astype(np.int32)
    return Views(places.agent, places.hi, own, value, clocks.row_of[event], clocks.rows)


def chained(before: Views, after: Views, i: I32 | I64, j: I32 | I64) -> Bools:
    """Elementwise: is node i of `before` ordered before node j of `after` through chains?"""
    agents, flat = after.rows.shape[1], after.rows.reshape(-1)
    if not agents:
        return np.zeros(len(i), dtype=bool)
    # a chain that is not there finishes beyond everything, a view that is not there shows nothing: row 0 is that of an
    # event before which nothing has happened
    until = np.where(before.agent < 0, np.iinfo(np.int32).max, before.hi)
    agent_of, row = np.maximum(before.agent, 0), np.where(after.own < 0, 0, after.row) * agents
    left, x, y = np.arange(len(i)), i.astype(np.intp), j.astype(np.intp)
    for a, d in product(range(before.agent.shape[1]), range(after.own.shape[1])):
        if not len(left):
            break
        seen = flat.take(row[:, d].take(y) + agent_of[:, a].take(x))
        found = seen > until[:, a].take(x)
        left, x, y = _without(found, left, x, y)
        # of its own agent a view shows more than the row, which it shares with earlier events
        own = after.own[:, d].take(y) == agent_of[:, a].take(x)
        left, x, y = _without(own & (after.value[:, d].take(y) > until[:, a].take(x)), left, x, y)
    ordered: Bools = np.ones(len(i), dtype=bool)
    ordered[left] = False
    return ordered


def _without(found: Bools, *columns: I64) -> Iterator[I64]:
    rest = np.flatnonzero(~found)
    return (column[rest] for column in columns)


def placed_abreast(groups: list[Group], numbers: I64) -> I64:
    """Sort keys of these nodes in the run of all workers abreast; requires one group."""
    worker, node = divided(numbers - groups[0].node_base, groups[0].nodes)
    return places_abreast(groups[0].order, groups[0].count, worker, node)


def divided(numbers: I64, by: int) -> tuple[I64, I64]:
    """As `divmod`, in a fifth of the time."""
    quotient = numbers // by
    return quotient, numbers - quotient * by


class BracketOrder:
    """Must-happen-before and a compatible total order for all nodes of all workers (the `Clocks` of the composition).

    Nodes are numbered group by group, worker by worker: node_base + (worker - first) * nodes + node.
    """

    def __init__(self, quotient: Quotient, keyed: Keyed[Quotient] | None = None, clocks_key: bytes = b"") -> None:
        """keyed: the quotient, if what follows from it is to be kept; clocks_key: then that of its clocks."""
        self.quotient, self.keyed, self.clocks_key = quotient, keyed, clocks_key
        self.implied = ImpliedOrder(quotient)
        self.system = quotient.groups[0].order.trace.local_system
        self._base = np.array([g.node_base for g in quotient.groups], np.int64)
        self._chains = max(1, *(len(c) for c in quotient.chains))

    def _local(self, numbers: I64) -> tuple[I64, I64, I64]:
        """(group, worker counted from its first, node) of composite numbers."""
        groups = self.quotient.groups
        if len(groups) == 1:
            worker, node = divided(numbers - groups[0].node_base, groups[0].nodes)
            return np.zeros_like(numbers), worker, node
        group = np.searchsorted(self._base, numbers, side="right") - 1
        nodes = np.array([g.nodes for g in groups], np.int64)
        worker, node = np.divmod(numbers - self._base[group], nodes[group])
        return group, worker, node

    def node(self, number: int) -> tuple[Group, int, int]:
        """(group, worker, node) of a composite number."""
        found = next(g for g in reversed(self.quotient.groups) if g.node_base <= number)
        worker, node = divmod(number - found.node_base, found.nodes)
        return found, found.first + worker, node

    def numbers(self, worker: I64, event: I64) -> I64:
        numbers: I64 = self._first[worker] + event
        return numbers

    @cached_property
    def _first(self) -> I64:
        """[workers] number of each one's first node."""
        groups = self.quotient.groups
        base = np.empty(sum(g.count for g in groups), np.int64)
        for g in groups:
            base[g.first : g.first + g.count] = g.node_base + np.arange(g.count) * g.nodes
        return base

    def places(self, numbers: I64) -> Places:
        shape = (len(numbers), self._chains)
        found = Places(np.full(shape, -1, np.int32), np.full(shape, -1, np.int32), np.full(shape, -1, np.int32))
        group, worker, node = self._local(numbers)
        for g in range(len(self.quotient.groups)):
            at = np.flatnonzero(group == g) if len(self.quotient.groups) > 1 else slice(None)
            self._place(found, at, g, worker[at], node[at])
        return found

    def _place(self, found: Places, at: I64 | slice, g: int, worker: I64, node: I64) -> None:
        quotient, chains = self.quotient, self.quotient.chains[g]
        first = quotient.base[g] + worker * len(chains)
        slot, of = chains.slot[node], chains.of[node]
        for a in range(len(chains)):
            lo = chains.lo[node, a]
            end = 2 * (quotient.chain_first[first + a] + lo) - 1
            itself = 2 * (quotient.chain_first[first + of] + slot) if a == 0 else -1
            found.agent[at, a] = first + a
            found.hi[at, a] = chains.hi[node, a]
            found.view[at, a] = np.where(slot >= 0, itself, np.where(lo > 0, end, -1))

    def placed(self, numbers: I64) -> I64:
        """Sort keys of a run of everything: that of all workers abreast, or last chain node before it, then the local
        run."""
        groups = self.quotient.groups
        if self.quotient.abreast is not None:
            return placed_abreast(groups, numbers)
        view = self.places(numbers).view
        ran = np.append(self.quotient.run.position, -1)
        last = np.where(view >= 0, ran[view >> 1], -1).max(axis=1)
        group, _, node = self._local(numbers)
        local = np.empty_like(numbers)
        for g, own in enumerate(groups):
            at = np.flatnonzero(group == g) if len(groups) > 1 else slice(None)
            local[at] = own.order.run.position[np.maximum(own.order.leader[node[at]], 0)]
        keys: I64 = (last + 1) * max(g.nodes for g in groups) + local
        return keys

    def precedes(self, before: I64, after: I64) -> Bools:
        """Elementwise: all of `before` finishes before any of `after` starts, in every execution."""
        every, clocks = np.arange(len(before)), self.quotient.clocks
        ordered = chained(views(clocks, self.places(before)), views(clocks, self.places(after)), every, every)
        return self._beyond_chains(before, after, ordered)

    def precedes_otherwise(self, before: I64, after: I64) -> Bools:
        """`precedes` of what chains leave unordered."""
        return self._beyond_chains(before, after, np.zeros(len(before), dtype=bool))

    def _beyond_chains(self, before: I64, after: I64, ordered: Bools) -> Bools:
        self.add_local(before, after, ordered)
        self._ask(before, after, ordered)
        return ordered

    def precedes_each(self, before: I64, after: I64) -> Bools:
        """`precedes` of every pair, all of `after` for the first of `before` first."""
        clocks = self.quotient.clocks
        i, j = np.repeat(np.arange(len(before)), len(after)), np.tile(np.arange(len(after)), len(before))
        ordered = chained(views(clocks, self.places(before)), views(clocks, self.places(after)), i, j)
        return self._beyond_chains(before[i], after[j], ordered)

    def add_local(self, before: I64, after: I64, ordered: Bools) -> None:
        """What a worker orders by itself."""
        group, worker, node = self._local(before)
        other_group, other, later = self._local(after)
        near = np.flatnonzero(~ordered & (group == other_group) & (worker == other))
        for g in range(len(self.quotient.groups)):
            at = near[group[near] == g] if len(self.quotient.groups) > 1 else near
            order = self.quotient.groups[g].order
            ordered[at] = order.wholly(node[at], later[at])

    def _ask(self, before: I64, after: I64, ordered: Bools) -> None:
        """What brackets leave unordered although partial thresholds order it."""
        open_ = np.flatnonzero(~ordered & (before != after))
        group, _, node = self._local(before[open_])
        several = np.zeros(len(open_), dtype=bool)
        for g in np.unique(group).tolist():
            several[group == g] = self.implied.several(g, node[group == g])
        open_ = open_[several]
        if not len(open_) or not self.implied.needed:
            return
        for number in np.unique(before[open_]).tolist():
            self._imply(number, open_[before[open_] == number], after, ordered)

    def _imply(self, number: int, at: I64, after: I64, ordered: Bools) -> None:
        i, worker, node = (int(v[0]) for v in self._local(np.array([number])))
        group, other, later = self._local(after[at])
        for j in np.unique(group).tolist():
            some = group == j
            ordered[at[some]] = self.implied.precedes(i, (worker, node), j, other[some], later[some])
