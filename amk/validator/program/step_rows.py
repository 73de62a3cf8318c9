"""What one step touches on all warps of its role and on all workers of a program.

Rows are joined where agents touch neighbouring bytes of one content; see `abstraction` for when and why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from amk.schedule_ir.ops import Access
from amk.validator.program.aliases import Clash
from amk.validator.program.evaluation import Change, Rows
from amk.validator.program.private_memory import Caches, Private, Sorted, in_order, private
from amk.validator.program.system import I64, READ, Bools

Kinds = tuple[tuple[int, ...], tuple[int, ...], bool]
"""Buffers that are a worker's own, buffers of flag words, and whether the step waits or signals."""
HERE: Final = np.zeros(2, np.int64)
"""`starts` of rows whose bytes of shared memory are absolute."""
HERE.setflags(write=False)


@dataclass(frozen=True, eq=False)
class Joined:
    """Rows of global memory with their slopes, agents and workers; grouped: those that belong to the step as a
    whole.

    reading: agents that read flag words.
    """

    rows: I64
    slope: I64
    agent: I64
    worker: I64
    grouped: Bools
    reading: frozenset[int]


@dataclass(frozen=True, eq=False)
class StepRows:
    """rows [n, 6] of a step's own layer with their slopes [n, 2], agents and workers (counted from the first).

    Rows of a shared buffer -1 - k count bytes from starts[-1 - k]. regular: False if layers do not follow from each
    other; then there are no rows. beyond: (worker, access) of the first access outside its buffer. moving: agents
    whose rows depend on the position. names: the tables that were read. joins, sorts, privates: what was asked for
    already; the former two are those of all warp groups that differ in where shared buffers lie.
    """

    rows: I64
    slope: I64
    agent: I64
    worker: I64
    regular: bool
    beyond: tuple[int, Access] | None
    clash: Clash | None
    constants: frozenset[str]
    moving: frozenset[int]
    names: tuple[str, ...]
    starts: I64
    joins: dict[Kinds, Joined] = field(default_factory=dict)
    sorts: dict[Caches, Sorted] = field(default_factory=dict)
    privates: dict[Caches, Private] = field(default_factory=dict)

    def joined(self, kinds: Kinds) -> Joined:
        if kinds not in self.joins:
            self.joins[kinds] = _joined(self, *kinds)
        return self.joins[kinds]

    def private(self, workers: int, caches: Caches) -> Private:
        """workers: how many there are."""
        if caches not in self.privates:
            if caches not in self.sorts:
                self.sorts[caches] = in_order(self.rows, self.slope, self.agent, self.worker, workers, caches)
            self.privates[caches] = private(self.sorts[caches], self.starts)
        return self.privates[caches]


@dataclass(frozen=True, eq=False)
class Afloat:
    """A warp group before it is known where shared buffers lie. anywhere: it is the same wherever, but for
    clashes.

    measured: (agent, positions, change) as slopes were; each: the rows of every agent. loops: the loop
    variables that were read. spans: see `_spans`.
    """

    warp_group: StepRows
    anywhere: bool
    measured: list[tuple[int, list[int], Change]]
    each: list[Rows]
    loops: tuple[str, ...]
    spans: dict[int, tuple[I64, I64]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return self.warp_group.names


def _joined(warp_group: StepRows, own: tuple[int, ...], tagged: tuple[int, ...], acts: bool) -> Joined:
    """Joined where buffer and content agree; what stands alone comes first."""
    rows, worker = warp_group.rows, warp_group.worker
    shown = np.flatnonzero((rows[:, 0] >= 0) & ~np.isin(rows[:, 0], own))
    order = shown[np.lexsort((rows[shown, 2], rows[shown, 0], worker[shown]))]
    words = np.isin(rows[order, 0], tagged) & (rows[order, 1] == READ)
    # what waits or signals is in a chain itself; a warp group would forget that its members have waited
    apart = ~words if acts or bool(words.any()) else np.zeros(len(order), bool)
    if _clashing(rows[order], warp_group.agent[order], worker[order]):
        apart = np.ones(len(order), bool)
    alone, rest = order[apart], order[~apart]
    rest = rest[np.lexsort((rows[rest, 2], *rows[rest][:, [5, 4, 1, 0]].T, worker[rest]))]
    content = np.concatenate((worker[rest, None], rows[rest][:, [0, 1, 4, 5]]), axis=1)
    fresh = np.ones(len(rest), bool)
    fresh[1:] = (content[1:] != content[:-1]).any(axis=1)
    reach = _running_end(rows[rest, 3], fresh)
    fresh[1:] |= rows[rest[1:], 2] > reach[:-1]
    starts = np.flatnonzero(fresh)
    at = np.concatenate((alone, rest[starts]))
    made = rows[at]
    if len(starts):
        made[len(alone) :, 3] = np.maximum.reduceat(rows[rest, 3], starts)
    reading = frozenset(np.unique(warp_group.agent[order[words]]).tolist())
    found = Joined(
        made, warp_group.slope[at], warp_group.agent[at], worker[at], np.arange(len(at)) >= len(alone), reading
    )
    for array in (found.rows, found.slope, found.agent, found.worker, found.grouped):
        array.setflags(write=False)
    return found


def _running_end(end: I64, fresh: Bools) -> I64:
    """Running maximum of `end` within segments that begin where `fresh`."""
    segment: I64 = np.cumsum(fresh) - 1
    distinct, rank = np.unique(end, return_inverse=True)
    key = segment * len(distinct) + rank.reshape(-1)
    reach: I64 = distinct[np.maximum.accumulate(key) % max(len(distinct), 1)]
    return reach


def _clashing(rows: I64, agent: I64, worker: I64) -> bool:
    """Do two agents of a worker touch a common byte, and one writes? Rows sorted by (worker, buffer, start)."""
    if not len(rows):
        return False
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (worker[1:] != worker[:-1]) | (rows[1:, 0] != rows[:-1, 0])
    segment, starts = np.cumsum(fresh) - 1, np.flatnonzero(fresh)
    writes = np.bincount(segment, rows[:, 1] != READ) > 0
    several = np.maximum.reduceat(agent, starts) > np.minimum.reduceat(agent, starts)
    overlap = ~fresh[1:] & (rows[1:, 2] < _running_end(rows[:, 3], fresh)[:-1])
    return bool((overlap & (writes & several)[segment[1:]]).any())
