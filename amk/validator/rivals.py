"""Steps of other workers that are like two steps found to race, and more likely to.

The composed check lists accesses of whole steps, and of all workers that come next to each other on a byte the first
few. Where one warp has waited for what the others of its step have not waited for, the steps are unordered, and the
bytes listed may yet be those of the one warp. So the same two steps are looked at on all workers, those of other
programs that run the same op in the same iteration included, warp by warp: pairs that touch a common byte, one writing,
and that the composed order leaves unordered.

This only proposes; `confirm` decides. Cost: rows of the first step times rows of the second, at one position.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np

from amk.validator.brackets import Ordering
from amk.validator.compose import Composition
from amk.validator.confirm import Confirmer, Place, order_of, positions
from amk.validator.step_accesses import item_accesses
from amk.validator.system import I64, WRITE

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
        workers = range(trace.program.first, trace.program.first + trace.program.count)
        for warp in trace.roles[trace.items[item].step.op.role]:
            worker, rows = item_accesses(confirmer.footprints, trace, item, warp, workers, pos)
            event = np.full(len(rows), int(trace.event_of[item, warp]))
            found.append(np.column_stack((worker, np.full(len(rows), warp), event, rows[:, :4])))
    return np.concatenate(found)


def _unordered(order: Ordering, one: I64, two: I64) -> list[tuple[int, int]]:
    """(worker, worker) of events that touch a common byte in no order; every pair of warps in turn."""
    i, j = _meeting(one, two)
    key, first = np.unique(np.column_stack((one[i, :2], two[j, :2])), axis=0, return_index=True)
    if not len(key):
        return []
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


def _meeting(one: I64, two: I64) -> tuple[I64, I64]:
    """Rows of different agents with a common byte, one of them writing."""
    found: list[tuple[I64, I64]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    step = max(1, PAIRS // max(len(two), 1))
    for start in range(0, len(one), step):
        part = one[start : start + step, :, None]
        meet = (part[:, 3] == two[:, 3]) & (part[:, 4] < two[:, 5]) & (two[:, 4] < part[:, 5])
        meet &= ((part[:, 0] != two[:, 0]) | (part[:, 1] != two[:, 1])) & ((part[:, 6] == WRITE) | (two[:, 6] == WRITE))
        i, j = np.nonzero(meet)
        found.append((i + start, j))
    left, right = (np.concatenate(side) for side in zip(*found, strict=True))
    return left, right
