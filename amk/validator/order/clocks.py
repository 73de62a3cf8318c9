"""Must-happen-before: order-statistic vector clocks.

Property: ``P(b)[w]`` = number of first events of agent ``w`` that finish before ``b`` starts, in every execution.

    P(b)      = P*(pred b)  v  JOIN over waits (c, t) of b of K(c, t)       P*(p) = P(p) with own component index+1
    K(c,t)[w] = smallest x such that the producers p of c with P*(p)[w] <= x signal at least t - init(c) in all

that is, the (t - init)-th smallest of P*(p)[w], weighted by increment. The clocks are the greatest fixpoint: "event i
of w blocks b if it does not run" is  P(b)[w] > i, and b is blocked through (c, t) iff the producers that are not
blocked signal too little.

Assumptions: those of the system class (increment-only counters, waits ``c >= t``, finite programs).

Algorithm: clocks change only where an agent waits, so one row is kept per waiting event ("segment head"); the other
events of the segment differ in their own component, which is their index. Events that never run get the top row. A
first pass in the order of one run uses for K the producers that came first in that run, an upper bound because all
others count as top. Then K and rows are lowered until nothing changes. Lowering from above with ``min`` keeps every
value >= the greatest fixpoint, and where it stops is a post-fixpoint, hence <= it: the result is exact whether the
may-graph is acyclic or not.

K is evaluated by a shortcut when it is a join. Let S be producers that came first in the run with enough weight, and M
their join. If  weight(S) - min amount(S) < t - init  and every other producer is >= M, then  K = M: below M[w] at
least one member of S is missing. P* grows along an agent, so per agent only its last member of S and its first
non-member need a look. On a counter with one producing agent no K is kept: the producer p that completes the need
decides, and K = P*(p).

Where counters are shared across epochs without separation the lowering can creep; after `PATIENCE` steps per row and K
it gives way to throttled runs (see `throttled`), which are exact too.

Cost: O(R * agents) memory for R waiting events, about one vector operation per wait plus one K per distinct (c, t).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import Final

import numpy as np

from amk.validator.order.greedy_run import Run
from amk.validator.program.system import I64, Bools, Counts, System

MAX_CELLS: Final = 1 << 28
PATIENCE: Final = 2
AT_ONCE: Final = 1 << 20
"""Cells of the clocks that rows which are made together look at."""


class ClocksTooLarge(RuntimeError):
    """The clocks of this system would not fit in memory; the caller must answer UNKNOWN."""


@dataclass(frozen=True, eq=False)
class Clocks:
    """``rows`` [R + 2, agents]: row 0 is all zero, the last row is top; ``row_of`` [events].

    ``threshold_rows`` [n, agents] is K of ``threshold_keys`` [n, 2] = (counter, threshold), for the waits on counters
    with several producing agents.
    """

    run: Run
    rows: Counts
    row_of: I64
    threshold_keys: I64
    threshold_rows: Counts

    @property
    def system(self) -> System:
        return self.run.system

    @cached_property
    def _reached(self) -> Bools:
        return self.row_of < len(self.rows) - 1

    def at(self, event: int) -> Counts:
        """[agents] P(event)."""
        row: Counts = self.rows[self.row_of[event]].copy()
        if self._reached[event]:
            row[self.system.agent_of[event]] = self.system.index_of[event]
        return row

    def matrix(self) -> Counts:
        """[events, agents] P, in full; meant for small systems."""
        matrix: Counts = self.rows[self.row_of]
        reached = np.flatnonzero(self._reached)
        matrix[reached, self.system.agent_of[reached]] = self.system.index_of[reached]
        return matrix

    def precedes(self, before: I64, after: I64) -> Bools:
        """Elementwise: ``before`` finishes before ``after`` starts, in every execution in which ``after`` starts."""
        agent = self.system.agent_of[before]
        index = self.system.index_of[before]
        seen = self.rows.reshape(-1)[self.row_of[after] * self.rows.shape[1] + agent] > index
        same = agent == self.system.agent_of[after]
        ordered: Bools = np.where(same, (before < after) | ~self._reached[after], seen)
        return ordered


@dataclass(frozen=True, eq=False)
class Producers:
    """Signals of reached events sorted by (counter, run position).

    ``first`` [counters + 1] delimits the counters, ``sole`` [counters] = all by one agent, ``weight`` is the running
    sum over the whole column, ``previous`` and ``following`` are the neighbours (positions in this table) on the same
    counter and agent, or out of range.
    """

    first: I64
    sole: Bools
    event: I64
    amount: I64
    weight: I64
    previous: I64
    following: I64


def _producers(system: System, run: Run) -> Producers:
    position = run.position[system.signal_event]
    kept = np.flatnonzero(position < len(run.order))
    kept = kept[np.lexsort((position[kept], system.signal_counter[kept]))]
    event, amount, counter = system.signal_event[kept], system.signal_amount[kept], system.signal_counter[kept]
    first = np.searchsorted(counter, np.arange(system.counters + 1))
    agent = system.agent_of[event]
    handed = (agent[1:] != agent[:-1]) & (counter[1:] == counter[:-1])
    sole = np.bincount(counter[1:][handed], minlength=system.counters) == 0
    grouped = np.lexsort((agent, counter))
    same = (counter[grouped][1:] == counter[grouped][:-1]) & (agent[grouped][1:] == agent[grouped][:-1])
    previous = np.full(len(kept), -1, dtype=np.int64)
    following = np.full(len(kept), len(kept), dtype=np.int64)
    previous[grouped[1:][same]] = grouped[:-1][same]
    following[grouped[:-1][same]] = grouped[1:][same]
    return Producers(first, sole, event, amount, np.cumsum(amount), previous, following)


def _distinct(counter: I64, threshold: I64) -> tuple[I64, I64]:
    """The distinct pairs [n, 2], sorted, and for every input pair which one it is."""
    order = np.lexsort((threshold, counter))
    pairs = np.stack((counter[order], threshold[order]), axis=1)
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    which = np.empty(len(order), dtype=np.int64)
    which[order] = np.cumsum(fresh) - 1
    return pairs[fresh], which


def order_statistic(values: Counts, amounts: I64, need: int) -> Counts:
    """Columnwise the smallest x such that the rows <= x weigh at least ``need``.

    ``values`` [n, agents], ``amounts`` [n]; requires 1 <= need <= sum(amounts).
    """
    if int(amounts.max()) == 1:
        ranked: Counts = np.partition(values, need - 1, axis=0)[need - 1]
        return ranked
    order = np.argsort(values, axis=0, kind="stable")
    enough = (np.cumsum(amounts[order], axis=0) >= need).argmax(axis=0)
    columns = np.arange(values.shape[1])
    result: Counts = values[order[enough, columns], columns]
    return result


def _together(depth: I64, first: I64, most: int) -> Iterator[tuple[int, int]]:
    """Rows low..high - 1 of one depth, in turn; `depth` is by row and rises, `first` [rows + 1] is where its waits
    begin, and there are no more than `most` waits unless one row has them."""
    ends = np.append(np.flatnonzero(depth[1:] > depth[:-1]) + 1, len(depth)).tolist()
    low = 0
    for end in ends if len(depth) else ():
        while low < end:
            high = end
            if first[end] - first[low] > most:
                high = max(low + 1, int(np.searchsorted(first[: end + 1], first[low] + most, side="right")) - 1)
            yield low, high
            low = high


class Fixpoint:
    """Working state: rows per segment head, K per distinct (counter, threshold), and the heap of stale ones."""

    def __init__(self, system: System, run: Run) -> None:
        self.system, self.run = system, run
        self.table = _producers(system, run)
        self.agent, self.index = system.agent_of, system.index_of
        self._number_rows()
        self._number_thresholds()

    def _number_rows(self) -> None:
        system, run = self.system, self.run
        reached = run.position < len(run.order)
        needed = system.wait_threshold > system.counter_init[system.wait_counter]
        self.wait_used = np.flatnonzero(needed & reached[system.wait_event])
        waiting = np.zeros(system.events, bool)
        waiting[system.wait_event[self.wait_used]] = True
        heads = np.flatnonzero(waiting)
        heads = heads[np.argsort(run.position[heads], kind="stable")]
        if (len(heads) + 2) * max(system.agents, 1) > MAX_CELLS:
            raise ClocksTooLarge(f"{len(heads)} waiting events x {system.agents} agents")
        self.heads = heads
        self.rows = np.zeros((len(heads) + 2, system.agents), system.fitting)
        self.rows[-1] = system.agent_size
        latest = np.full(system.events, -1, dtype=np.int64)
        latest[heads] = heads
        latest = np.maximum.accumulate(latest) if system.events else latest
        inside = latest >= system.agent_first[self.agent]
        row_at = np.zeros(system.events, dtype=np.int64)
        row_at[heads] = np.arange(1, len(heads) + 1)
        self.row_of = np.where(inside, row_at[latest], 0)
        self.row_of[~reached] = len(heads) + 1

    def _number_thresholds(self) -> None:
        """Distinct (counter, need); for each, the last producer of the shortest prefix of the run that suffices."""
        system, table = self.system, self.table
        self.keys, which = _distinct(system.wait_counter[self.wait_used], system.wait_threshold[self.wait_used])
        self.need = self.keys[:, 1] - system.counter_init[self.keys[:, 0]]
        start = table.first[self.keys[:, 0]]
        base = np.where(start > 0, table.weight[start - 1], 0) if len(table.weight) else start
        self.upto = np.searchsorted(table.weight, base + self.need)
        self.prefix_weight = table.weight[self.upto] - base if len(self.keys) else base
        self.sole = np.where(table.sole[self.keys[:, 0]], table.event[self.upto], -1) if len(self.keys) else self.upto
        self.shared = np.flatnonzero(self.sole < 0)
        self.slot = np.cumsum(self.sole < 0) - 1
        if len(self.shared) * max(system.agents, 1) > MAX_CELLS:
            raise ClocksTooLarge(f"{len(self.shared)} thresholds x {system.agents} agents")
        self.k_rows = np.empty((len(self.shared), system.agents), self.rows.dtype)
        row = self.row_of[system.wait_event[self.wait_used]]
        by_row, by_which = np.argsort(row, kind="stable"), np.argsort(which, kind="stable")
        self.wait_row, self.wait_key = row[by_row], which[by_row]
        self.waiter = row[by_which]
        self.first_wait = np.searchsorted(self.wait_row, np.arange(1, len(self.heads) + 2))
        self.first_waiter = np.searchsorted(which[by_which], np.arange(len(self.keys) + 1))

    def waiters(self, key: int) -> list[int]:
        """The rows that wait for it; none is without."""
        rows: list[int] = self.waiter[self.first_waiter[key] : self.first_waiter[key + 1]].tolist()
        return rows

    def _task(self, key: int) -> tuple[int, int, int]:
        """To look at a K again."""
        return int(self.waiter[self.first_waiter[key]]), 0, key

    def finished(self, members: I64) -> Counts:
        """[n, agents] P* of the producers at these table positions."""
        return self._finished(self.table.event[members])

    def _finished(self, event: I64) -> Counts:
        values: Counts = self.rows.take(self.row_of[event], axis=0)
        values[np.arange(len(event)), self.agent[event]] = self.index[event] + 1
        return values

    def leading(self, key: int) -> I64:
        """Per agent the last producer inside the sufficient prefix (table positions)."""
        start, stop = int(self.table.first[self.keys[key, 0]]), int(self.upto[key]) + 1
        return start + np.flatnonzero(self.table.following[start:stop] >= stop)

    def threshold_clock(self, key: int) -> Counts:
        """[agents] K of one (counter, threshold) from the current rows."""
        counter, need = self.keys[key, 0], int(self.need[key])
        start, stop, end = int(self.table.first[counter]), int(self.upto[key]) + 1, int(self.table.first[counter + 1])
        leading = self.leading(key)
        join: Counts = self.finished(leading).max(axis=0)
        trailing = stop + np.flatnonzero(self.table.previous[stop:end] < stop)
        tight = int(self.prefix_weight[key]) - int(self.table.amount[leading].min()) < need
        if tight and (len(trailing) == 0 or bool((self.finished(trailing) >= join).all())):
            return join
        members = np.arange(start, end)
        return order_statistic(self.finished(members), self.table.amount[members], need)

    def _evaluated(self, rows: I64, before: I64, waits: I64, first: I64) -> Counts:
        """[n, agents] Rows by those of the events before them and by what they wait for; first [rows + 1]: where the
        waits of each begin."""
        head = self.heads[rows - 1]
        clocks: Counts = self.rows.take(before, axis=0)
        clocks[np.arange(len(head)), self.agent[head]] = self.index[head]
        key = self.wait_key[waits]
        sole = self.sole[key]
        values = self._finished(sole)
        if len(self.shared):
            many = np.flatnonzero(sole < 0)
            values[many] = self.k_rows[self.slot[key[many]]]
        if len(values) > len(clocks):
            values = np.maximum.reduceat(values, first[:-1] - first[0], axis=0)
        return np.maximum(clocks, values, out=clocks)

    def evaluated(self, rows: I64) -> Counts:
        """[n, agents] what these rows are by what is known now."""
        begin, end = self.first_wait[rows - 1], self.first_wait[rows]
        first = np.append(0, np.cumsum(end - begin))
        waits = np.repeat(begin - first[:-1], end - begin) + np.arange(first[-1])
        return self._evaluated(rows, self._before(self.heads[rows - 1]), waits, first)

    def first_pass(self) -> None:
        """Upper bounds in run order: K is the join of the producers that came first. Rows that none of them needs, nor
        a row between, are made together.
        """
        leading = {key: self.leading(key) for key in self.shared.tolist()}
        before, count = self._before(self.heads), np.diff(self.first_wait)
        depth = self._depths(before.tolist(), leading)
        order = np.argsort(depth, kind="stable")
        count, before = count[order], before[order]
        first = np.append(0, np.cumsum(count))
        every = np.repeat(self.first_wait[order] - first[:-1], count) + np.arange(first[-1])
        for low, high in _together(depth[order], first, AT_ONCE // max(self.system.agents, 1)):
            waits = every[first[low] : first[high]]
            fresh = set(self.wait_key[waits].tolist()) & leading.keys() if leading else ()
            for key in fresh:
                self.finished(leading.pop(key)).max(axis=0, out=self.k_rows[self.slot[key]])
            rows = order[low:high] + 1
            self.rows[rows] = self._evaluated(rows, before[low:high], waits, first[low : high + 1])

    def _depths(self, before: list[int], leading: dict[int, I64]) -> I64:
        """[rows] How many rows in a chain each needs, of which one needs the next."""
        needs = {key: self.row_of[self.table.event[members]].tolist() for key, members in leading.items()}
        sole = self.row_of[self.sole].tolist()
        depth, of_key = [0] * (len(before) + 1), dict[int, int]()
        keys, first = self.wait_key.tolist(), self.first_wait.tolist()
        for row, behind in enumerate(before, 1):
            most = depth[behind]
            for key in keys[first[row - 1] : first[row]]:
                if key in needs and key not in of_key:
                    of_key[key] = max(depth[other] for other in needs[key])
                most = max(most, of_key[key] if key in needs else depth[sole[key]])
            depth[row] = most + 1
        return np.array(depth[1:], dtype=np.int64)

    def lower(self) -> None:
        """Lower K and rows until nothing changes; work is taken in run order (a K just before its first waiter)."""
        if not len(self.shared):
            return
        heap = sorted(self._task(key) for key in self.shared.tolist())
        queued = set(heap)
        budget = PATIENCE * (len(self.heads) + len(self.shared)) + 64
        keys_at: dict[int, list[int]] = {}
        for key, counter in enumerate(self.keys[:, 0].tolist()):
            keys_at.setdefault(counter, []).append(key)
        while heap:
            item = heappop(heap)
            rows = [item[0]]
            while item[1] and heap and heap[0][1]:
                rows.append(heappop(heap)[0])
            budget -= len(rows)
            if budget < 0:
                self.throttle()
                return
            queued -= {(row, 1, 0) for row in rows} if item[1] else {item}
            stale = self._relax_rows(rows, keys_at) if item[1] else self._relax_key(item[2])
            for entry in stale:
                if entry not in queued:
                    queued.add(entry)
                    heappush(heap, entry)

    def throttle(self) -> None:
        """Compute all rows by throttled runs instead, then every K once."""
        from amk.validator.order.throttled import needed_of  # few systems creep

        for agent in range(self.system.agents):
            self.rows[1:-1, agent] = needed_of(self.system, agent)[self.heads]
        for key in self.shared.tolist():
            self.k_rows[self.slot[key]] = self.threshold_clock(key)

    def _relax_key(self, key: int) -> list[tuple[int, int, int]]:
        if self.sole[key] < 0:
            known = self.k_rows[self.slot[key]]
            lowered = np.minimum(known, self.threshold_clock(key))
            if bool((lowered == known).all()):
                return []
            known[:] = lowered
        return [(r, 1, 0) for r in self.waiters(key)]

    def _relax_rows(self, numbers: list[int], keys_at: dict[int, list[int]]) -> list[tuple[int, int, int]]:
        """All by what is known before any changes: one that another of them changes is stale again."""
        rows = np.array(numbers)
        known, lowered = self.rows[rows], self.evaluated(rows)
        changed = np.flatnonzero((lowered < known).any(axis=1))
        self.rows[rows[changed]] = np.minimum(lowered[changed], known[changed])
        return [task for row in rows[changed].tolist() for task in self._stale(row, keys_at)]

    def _before(self, heads: I64) -> I64:
        """Rows of the events before these, 0 where there is none."""
        found: I64 = np.where(self.index[heads] > 0, self.row_of[heads - 1], 0)
        return found

    def _stale(self, r: int, keys_at: dict[int, list[int]]) -> list[tuple[int, int, int]]:
        """What a row that has changed is looked at by."""
        system, head = self.system, int(self.heads[r - 1])
        end, limit = head + 1, int(system.agent_first[self.agent[head] + 1])
        while end < limit and self.row_of[end] == r:
            end += 1
        stale = [(int(self.row_of[end]), 1, 0)] if end < limit and self.row_of[end] <= len(self.heads) else []
        counters = system.signal_counter[system.signal_first[head] : system.signal_first[end]].tolist()
        return stale + [self._task(key) for c in set(counters) for key in keys_at.get(c, ())]


def must_clocks(run: Run) -> Clocks:
    """Exact clocks of every event; raises `ClocksTooLarge`."""
    state = Fixpoint(run.system, run)
    state.first_pass()
    state.lower()
    return Clocks(run, state.rows, state.row_of, state.keys[state.shared], state.k_rows)
