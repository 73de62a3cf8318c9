"""Counters and needs of the flag words of one buffer, from the rows of everybody who touches them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from amk.validator.program.system import I64, WRITE, Bools


@dataclass(frozen=True, eq=False)
class RankedFlagWords:
    """Words of one buffer, counters and join nodes numbered from 0, with the ranks of its steps for items.
    troubles: what `_told` explains, as (what, ...). doubled: see `Counted`."""

    writes: I64
    needs: I64
    counters: int
    join_nodes: list[I64]
    targets: list[I64]
    troubles: list[tuple[Any, ...]]
    doubled: bool


def ranked_words(rows: I64, tags: I64) -> RankedFlagWords:
    """rows: (group, worker, rank, kind, lo, hi) of one buffer; tags: by rank."""
    return _Maker(tags).of(rows)


class _Maker:
    def __init__(self, tags: I64) -> None:
        self.tags = tags
        self.join_nodes: list[I64] = []
        self.targets: list[I64] = []
        self.troubles: list[tuple[Any, ...]] = []

    def of(self, rows: I64) -> RankedFlagWords:
        written = rows[rows[:, 3] == WRITE]
        writes, ranks = self._count(written)
        owned = self._spans(written)
        reading = rows[rows[:, 3] != WRITE]
        reading = reading.take(np.argsort(_crews(reading), kind="stable"), axis=0)
        first = np.flatnonzero(np.diff(_crews(reading), prepend=-1))
        print_of, prints = _prints(reading, np.append(first, len(reading)))
        covers = [owned.covering(spans) for spans in prints]
        needs = self._need(ranks, reading[first, :3], print_of, covers)
        doubled = _doubled(written)
        return RankedFlagWords(writes, needs, len(ranks.workers), self.join_nodes, self.targets, self.troubles, doubled)

    def _count(self, written: I64) -> tuple[I64, _Ranks]:
        """One counter per writing worker; its writing steps in program order, with growing tags."""
        steps = np.unique(written[:, :3], axis=0)
        worker, tag = steps[:, 1], self.tags[steps[:, 2]]
        fresh = np.diff(worker, prepend=-1) != 0
        bad = tag <= np.where(fresh, 0, np.concatenate(([0], tag[:-1]))) if len(tag) else fresh
        for at in np.flatnonzero(bad).tolist():
            self.troubles.append(("order", *steps[at].tolist(), int(tag[at]), 0 if fresh[at] else int(tag[at - 1])))
        ranks = _Ranks(worker, tag, fresh)
        return np.concatenate((steps, ranks.counter[:, None]), axis=1), ranks

    def _spans(self, written: I64) -> _Owned:
        spans = np.unique(written[:, [4, 5, 1]], axis=0)
        overlap = np.flatnonzero((spans[1:, 0] < spans[:-1, 1]) & (spans[1:, 2] != spans[:-1, 2]))
        if len(overlap):
            self.troubles.append(("owners", int(spans[overlap[0], 2]), int(spans[overlap[0] + 1, 2])))
        return _Owned(spans[:, 0], np.maximum.accumulate(spans[:, 1]) if len(spans) else spans[:, 1], spans[:, 2])

    def _need(self, ranks: _Ranks, warp_groups: I64, print_of: I64, covers: list[I64 | None]) -> I64:
        """What every reading warp group waits for; warp_groups: (group, worker, rank)."""
        number: dict[bytes, int] = {}
        members = [cover for cover in covers if cover is not None]
        set_of = np.array([-1 if c is None else number.setdefault(c.tobytes(), len(number)) for c in covers], np.int64)
        sets = {number[cover.tobytes()]: cover for cover in members}
        tag = self.tags[warp_groups[:, 2]]
        which = set_of[print_of]
        join_node, rank = np.full(len(warp_groups), -1, np.int64), np.zeros(len(warp_groups), np.int64)
        for one in range(len(sets)):
            at = np.flatnonzero(which == one)
            found, row_of = ranks.targets(sets[one], tag[at])
            join_node[at] = np.where(row_of >= 0, len(self.join_nodes), -1)
            rank[at] = row_of
            if len(found):
                self.join_nodes.append(np.searchsorted(ranks.workers, sets[one]))
                self.targets.append(found)
        for lost in np.flatnonzero(join_node < 0).tolist():
            self.troubles.append(("lost", *warp_groups[lost].tolist(), int(tag[lost])))
        needs = np.concatenate((warp_groups, join_node[:, None], rank[:, None]), axis=1)
        kept: I64 = needs[join_node >= 0]
        return kept


class _Ranks:
    """Which tags the workers write to one buffer, and as their how-manieth step.

    worker, tag: of all writing steps, by worker in program order; fresh: a worker's first.
    """

    def __init__(self, worker: I64, tag: I64, fresh: Bools) -> None:
        self.workers = worker[fresh]
        self.counter = owner = np.cumsum(fresh) - 1
        self.tags = np.unique(tag)
        self.table = np.zeros((len(self.workers), len(self.tags)), np.int64)
        self.table[owner, np.searchsorted(self.tags, tag)] = np.arange(len(tag)) - np.flatnonzero(fresh)[owner] + 1

    def targets(self, workers: I64, tag: I64) -> tuple[I64, I64]:
        """(steps [n, workers] that write each tag wanted, in the order of tags; which of them serves each of `tag`).

        A tag that one of the workers never writes has none: -1.
        """
        column = np.minimum(np.searchsorted(self.tags, tag), len(self.tags) - 1)
        table = self.table[np.searchsorted(self.workers, workers)]
        known = (self.tags[column] == tag) & (table.min(axis=0, initial=1)[column] > 0)
        there = np.bincount(column[known], minlength=len(self.tags)) > 0
        place = np.where(known, (np.cumsum(there) - 1)[column], -1)
        return table[:, there].T, place


def _crews(rows: I64) -> I64:
    """(group, worker, item) of each row as one number."""
    return rows[:, 0] << 50 | rows[:, 1] << 25 | rows[:, 2]


def _doubled(written: I64) -> bool:
    """Do two rows of one step of one worker write a common byte?"""
    place, lo = _crews(written), written[:, 4]
    order = np.lexsort((lo, place))
    place, lo, hi = place[order], lo[order], written[order, 5]
    return bool(((place[1:] == place[:-1]) & (lo[1:] < hi[:-1])).any())


def _prints(rows: I64, bounds: I64) -> tuple[I64, list[I64]]:
    """Rows bounds[k]..bounds[k+1]-1 belong to warp group k: the number of the set of spans it reads, and the sets."""
    size = np.diff(bounds)
    print_of = np.empty(len(size), np.int64)
    sets: list[I64] = []
    for count in np.unique(size).tolist():
        at = np.flatnonzero(size == count)
        spans = rows[bounds[at][:, None] + np.arange(count), 4:6].reshape(len(at), -1)
        texts = [row.tobytes() for row in spans]
        first = {text: n for n, text in reversed([*enumerate(texts)])}
        distinct, which = np.unique(spans[[*first.values()]], axis=0, return_inverse=True)
        rank = dict(zip(first, which.reshape(-1).tolist(), strict=True))
        print_of[at] = len(sets) + np.array([rank[text] for text in texts])
        sets += list(distinct.reshape(len(distinct), count, 2))
    return print_of, sets


class _Owned:
    """Disjoint byte spans in order with the worker that owns each."""

    def __init__(self, start: I64, end: I64, owner: I64) -> None:
        self.start, self.end, self.owner = start, end, owner
        self.gaps = np.concatenate(([0], np.cumsum(start[1:] > end[:-1])))

    def covering(self, spans: I64) -> I64 | None:
        """Workers that own bytes of the spans; None if some byte has no owner."""
        lo, hi = spans[:, 0], spans[:, 1]
        first, last = np.searchsorted(self.end, lo, side="right"), np.searchsorted(self.start, hi, side="left")
        if (first >= last).any() or (self.start[first] > lo).any() or (self.end[last - 1] < hi).any():
            return None
        # no gap between one owned span and the next, where a read reaches over both
        if (self.gaps[last - 1] > self.gaps[first]).any():
            return None
        size = len(self.owner) + 1
        inside = np.cumsum(np.bincount(first, minlength=size) - np.bincount(last, minlength=size))
        found: I64 = np.unique(self.owner[inside[:-1] > 0])
        return found
