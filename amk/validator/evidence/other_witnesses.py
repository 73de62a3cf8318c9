"""Steps of other workers that are like two steps found to race, and more likely to.

The composed check lists accesses of whole steps, and of all workers that come next to each other on a byte the first
few. Where one warp has waited for what the others of its step have not waited for, the steps are unordered, and the
bytes listed may yet be those of the one warp. So the same two steps are looked at on all workers, those of other
programs that run the same op in the same iteration included, warp by warp: pairs that touch a common byte, one writing,
and that the composed order leaves unordered.

This only proposes; `confirm` decides. Cost: pairs of rows of the two steps that lie near each other, at one position.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np

from amk.validator.evidence.confirm import Confirmer, Place, order_of, positions
from amk.validator.memory.composition import Composition
from amk.validator.order.intervals import Ordering
from amk.validator.program.footprint import flat_rows
from amk.validator.program.system import I64, MAX_BYTES, WRITE

PAIRS: Final = 1 << 22
"""Pairs of rows that are compared at once."""
ASKED: Final = 1 << 15
"""Pairs of events whose order is asked for."""


def rivals(confirmer: Confirmer, a: Place, b: Place) -> Iterator[tuple[Place, Place]]:
    """Places of the same two steps, pairs of different warps first."""
    result = confirmer.result
    order = order_of(result, confirmer.edges)
    if order is None or result.at is not None:
        return
    seen = {(a[1], b[1])}
    alike = [_alike(result, place) for place in (a, b)]
    for pos in positions(result):
        for worker, other in _unordered(order, *(_rows(confirmer, places, pos) for places in alike)):
            if (worker, other) not in seen:
                seen.add((worker, other))
                yield _of(alike[0], worker), _of(alike[1], other)


def _alike(result: Composition, place: Place) -> list[Place]:
    """The step in each program that runs it, on the first worker."""
    trace, _, number = place
    found = [place]
    for other in (g.order.trace for g in result.groups if g.first != trace.program.first):
        item = trace.items[number]
        same = (i for i, it in enumerate(other.items) if it.loops == item.loops and it.step.op == item.step.op)
        found += [(other, other.program.first, i) for i in itertools.islice(same, 1)]
    return found


def _of(places: list[Place], worker: int) -> Place:
    """The step on this worker."""
    programs = ((trace, trace.program, item) for trace, _, item in places)
    return next((t, worker, item) for t, p, item in programs if p.first <= worker < p.first + p.count)


def _rows(confirmer: Confirmer, places: list[Place], pos: int) -> I64:
    """[n, 7] (worker, warp, event, buffer, lo, hi, kind) of the step on all workers."""
    found = [np.zeros((0, 7), np.int64)]
    for trace, _, item in places:
        workers, step = np.arange(trace.program.first, trace.program.first + trace.program.count), trace.items[item]
        here = pos + confirmer.result.schedule.rows * max(step.token, 0)
        made = confirmer.footprints.of([step], workers, np.full((1, len(workers)), here))
        warp = trace.roles[step.step.op.role].start + made.agent
        rows = flat_rows(confirmer.footprints, [step], made)
        found.append(np.column_stack((made.worker, warp, trace.event_of[item, warp], rows[:, :4])))
    return np.concatenate(found)


def _unordered(order: Ordering, one: I64, two: I64) -> list[tuple[int, int]]:
    """(worker, worker) of events that touch a common byte in no order; every pair of warps in turn."""
    i, j = _meeting(one, two)
    if not len(i):
        return []
    # in the order of (worker, warp, worker, warp)
    _, first = np.unique(_ranks(one)[i] * len(two) + _ranks(two)[j], return_index=True)
    some = first[:: -(-len(first) // ASKED)]
    x, y = (order.numbers(rows[at[some], 0], rows[at[some], 2]) for rows, at in ((one, i), (two, j)))
    free = some[~(order.precedes(x, y) | order.precedes(y, x))]
    pairs = np.column_stack((one[i[free], :2], two[j[free], :2]))
    turn: dict[tuple[int, int], int] = {}
    ranked = []
    for worker, warp, other, far in pairs.tolist():
        turn[warp, far] = turn.get((warp, far), 0) + 1
        ranked.append((turn[warp, far], warp, far, worker, other))
    return [(worker, other) for *_, worker, other in sorted(ranked)]


def _ranks(rows: I64) -> I64:
    """Of each row's (worker, warp) among all there are."""
    ranks: I64 = np.unique(rows[:, 0] << 32 | rows[:, 1], return_inverse=True)[1].reshape(-1)
    return ranks


def _meeting(one: I64, two: I64) -> tuple[I64, I64]:
    """Rows of different agents with a common byte, one of them writing."""
    found: list[tuple[I64, I64]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for i, j in _near(one, two):
        x, y = one[i], two[j]
        meet = (x[:, 3] == y[:, 3]) & (x[:, 4] < y[:, 5]) & (y[:, 4] < x[:, 5])
        meet &= (x[:, :2] != y[:, :2]).any(axis=1) & ((x[:, 6] == WRITE) | (y[:, 6] == WRITE))
        at = np.flatnonzero(meet)
        at = at[np.lexsort((j[at], i[at]))]
        found.append((i[at], j[at]))
    left, right = (np.concatenate(side) for side in zip(*found, strict=True))
    return left, right


def _near(one: I64, two: I64) -> Iterator[tuple[I64, I64]]:
    """Pairs of rows that may have a common byte, row by row of the first: of those that begin before it ends all from
    the first on that ends behind its start."""
    lo, hi = _bytes(one)
    start, end = _bytes(two)
    by_start = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(end[by_start])
    first = np.searchsorted(reach, lo, side="right")
    count = np.maximum(np.searchsorted(start[by_start], hi, side="left") - first, 0)
    upto = np.cumsum(count)
    low = 0
    while low < len(one):
        done = int(upto[low] - count[low])
        high = max(low + 1, int(np.searchsorted(upto, done + PAIRS, side="right")))
        i = np.repeat(np.arange(low, high), count[low:high])
        yield i, by_start[first[i] + np.arange(len(i)) - (upto - count - done)[i]]
        low = high


def _bytes(rows: I64) -> tuple[I64, I64]:
    """(start, end) of each row, buffers one behind the other."""
    base = rows[:, 3] * (2 * MAX_BYTES)
    return base + rows[:, 4], base + rows[:, 5]
