"""What one step touches in memory that a worker has to itself, and which workers do it alike.

Where shared buffers lie moves rows and what they are displaced by, but workers with equal rows in equal buffers stay
alike: the sorting is done once (`in_order`), the moving for every place (`private`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from amk.validator.program.slopes import FAMILY_SHIFT, INDEX_BITS, TOKEN_BITS
from amk.validator.program.system import DONT_CARE, I64

ABSENT: Final = np.iinfo(np.int64).min
Caches = tuple[tuple[int, int], ...]
"""Buffers that are a worker's own, and the numbers of their units."""


@dataclass(frozen=True, eq=False)
class Private:
    """Rows of memory that a worker has to itself: -1 is shared memory, others are units of caches.

    label [workers]: equal where workers have equal rows on equal agents, up to one displacement per value family.
    families [n]: those of these rows; delta [workers, n]: displacement of each one's first row, `ABSENT` if there is
    none.
    """

    rows: I64
    slope: I64
    agent: I64
    worker: I64
    label: I64
    families: tuple[int, ...]
    delta: I64


@dataclass(frozen=True, eq=False)
class Sorted:
    """What `Private` is made of wherever shared buffers lie. which: of each row, the index of its start; labels equal
    only if workers have equal rows in equal buffers; lead [workers, n]: `which` of each family's first row.

    examples: of each label a worker's rows with agent, `which`, and `which` of the family's first row.
    """

    private: Private
    which: I64
    lead: I64
    examples: list[I64]


def in_order(all_rows: I64, slopes: I64, agents: I64, of: I64, workers: int, caches: Caches) -> Sorted:
    """Rows of `StepRows` with their slopes, agents and workers."""
    own = [buffer for buffer, _ in caches]
    at = np.flatnonzero((all_rows[:, 0] < 0) | np.isin(all_rows[:, 0], own))
    rows, slope, agent, worker = all_rows[at], slopes[at], agents[at], of[at]
    which = np.minimum(rows[:, 0], 0)
    np.maximum(rows[:, 0], -1, out=rows[:, 0])
    for buffer, unit in caches:
        here = rows[:, 0] == buffer
        rows[here, 2] = rows[here, 4] >> TOKEN_BITS & ((1 << INDEX_BITS) - 1)
        rows[here, 3], rows[here, 5], rows[here, 0] = rows[here, 2] + 1, 0, unit
        slope[here, 0] = slope[here, 1]
    order = np.argsort(worker, kind="stable")
    mine = np.concatenate((rows, agent[:, None], which[:, None], which[:, None]), axis=1)[order]
    family = np.where(mine[:, 4] == DONT_CARE, -1, mine[:, 4] >> FAMILY_SHIFT)
    keys, first, inverse = np.unique((worker[order] << 20) + family + 1, return_index=True, return_inverse=True)
    families = np.unique(family)
    place = keys >> 20, np.searchsorted(families, (keys & (1 << 20) - 1) - 1)
    delta, lead = np.full((workers, len(families)), ABSENT), np.zeros((workers, len(families)), np.int64)
    delta[place], lead[place] = mine[first, 5], mine[first, 7]
    of_row = first[inverse.reshape(-1)]
    mine[:, 5] -= mine[of_row, 5]
    mine[:, 8] = mine[of_row, 7]
    mine.setflags(write=False)
    bounds = np.searchsorted(worker[order], np.arange(workers + 1)).tolist()
    seen: dict[bytes, tuple[int, I64]] = {}
    each = [mine[low:high] for low, high in pairwise(bounds)]
    label = np.array([seen.setdefault(one.tobytes(), (len(seen), one))[0] for one in each], np.int64)
    for array in (rows, slope, agent, worker, label, delta, which, lead):
        array.setflags(write=False)
    private = Private(rows, slope, agent, worker, label, tuple(families.tolist()), delta)
    return Sorted(private, which, lead, [one for _, one in seen.values()])


def private(found: Sorted, starts: I64) -> Private:
    """starts: see `StepRows`."""
    one = found.private
    rows, label, start = one.rows.copy(), one.label, starts[found.which]
    _move(rows, start, start)
    if len(found.examples) > 1:
        # rows of different buffers may fall on the same bytes
        examples = [mine.copy() for mine in found.examples]
        for mine in examples:
            _move(mine, starts[mine[:, 7]], starts[mine[:, 7]] - starts[mine[:, 8]])
        seen: dict[bytes, int] = {}
        label = np.array([seen.setdefault(mine[:, :7].tobytes(), len(seen)) for mine in examples])[label]
    delta = np.where(one.delta == ABSENT, ABSENT, one.delta - starts[found.lead])
    for array in (rows, label, delta):
        array.setflags(write=False)
    return replace(one, rows=rows, label=label, delta=delta)


def _move(rows: I64, start: I64, delta: I64) -> None:
    rows[:, 2:4] += start[:, None]
    rows[:, 5] -= delta
