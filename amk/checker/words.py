"""Tagged words: who waits for whom by reading them.

Every byte of a tagged buffer is written by one worker, whose steps carry growing tags. A warp that has read words with
tag v knows that the step of the owner that writes tag v had started; nothing more is claimed. Reads that happen at some
positions only (and those of `select`, which looks at candidates only when it has to choose) order nothing, except in
`cases`: each position belongs to a split, and what is read at the first and at the last that do is read at it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from amk.checker.footprints import READ, WRITE
from amk.checker.programs import require
from amk.schedule_ir.schedule import Schedule

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
FIRST, LAST = 1, 2


@dataclass(frozen=True, eq=False)
class Reading:
    """One warp of several workers reads words with one tag: whose at every position (mask) and at some (awaited), both
    [sets, workers], with `which` set each of `workers` reads; writer [workers]: the item that writes them, or -1."""

    workers: I64
    which: I64
    mask: Bools
    awaited: Bools
    writer: I64


Readings = dict[tuple[int, int], list[Reading]]
"""By (item, warp)."""


class Words:
    """Rejects words with two owners, tags that do not grow, words that nobody writes. split_rows: the rows of the steps
    at the first and the last position of each split."""

    def __init__(
        self, schedule: Schedule, layers: int, rows: I64, split_rows: Callable[[], list[I64]] | None = None
    ) -> None:
        self.schedule, self.layers, self.split_rows = schedule, layers, split_rows
        self.workers = schedule.launch.workers
        self.readings: Readings = {}
        for number, buffer in enumerate(schedule.buffers):
            require(buffer.tagged == (buffer.tag is not None), "tags: on a buffer without, or none on one with")
            mine = rows[rows[:, 3] == number]
            if buffer.tag is not None and len(mine):
                tag = buffer.tag if isinstance(buffer.tag, dict) else {}
                grows = set(tag) <= {"t", "l", "1"} and 0 <= tag.get("l", 0) * (layers - 1) < tag.get("t", 0)
                require(grows and buffer.space == "global" and buffer.role == "scratch", f"tags: of '{buffer.name}'")
                self._add(mine)

    @cached_property
    def cases(self) -> list[Readings]:
        """What is read at least at the positions of each split."""
        rows = self.split_rows() if self.split_rows else []
        return [Words(self.schedule, self.layers, r).readings for r in rows] or [self.readings]

    def _add(self, rows: I64) -> None:
        written = rows[rows[:, 6] == WRITE]
        steps = np.unique(written[:, [0, 1, 10]], axis=0)
        same = steps[1:, 0] == steps[:-1, 0]
        require((steps[:, 2] > 0).all() and (np.diff(steps[:, 2])[same] > 0).all(), "tags: do not grow")
        bounds = np.unique(rows[:, 4:6])
        owners = [self._owners(written[written[:, 9] & need == need], bounds) for need in (FIRST, LAST, FIRST | LAST)]
        read = rows[rows[:, 6] == READ]
        order = np.lexsort(read[:, [10, 2, 1]].T)
        key = read[order][:, [1, 2, 10]]
        fresh = np.concatenate((np.ones(len(key[:1]), bool), (key[1:] != key[:-1]).any(axis=1)))
        cuts = np.append(np.flatnonzero(fresh), len(key))
        for (item, warp, tag), lo, hi in zip(key[fresh].tolist(), cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            writer = np.full(self.workers, -1, np.int64)
            mine = steps[steps[:, 2] == tag]
            writer[mine[:, 0]] = mine[:, 1]
            reading = self._reading(read[order[lo:hi]], bounds, owners, writer)
            self.readings.setdefault((item, warp), []).append(reading)

    def _owners(self, written: I64, bounds: I64) -> I64:
        """[atoms] the worker that writes each, -1 for none."""
        first, last = np.searchsorted(bounds, written[:, 4]), np.searchsorted(bounds, written[:, 5])
        atom = _spread(first, last)
        worker = np.repeat(written[:, 0], last - first)
        owner = np.full(len(bounds), -1, np.int64)
        owner[atom] = worker
        require((owner[atom] == worker).all(), "tags: two workers write the same words")
        return owner

    def _reading(self, rows: I64, bounds: I64, owners: list[I64], writer: I64) -> Reading:
        workers, place = np.unique(rows[:, 0], return_inverse=True)
        masks = np.zeros((4, len(workers), self.workers), bool)
        awaited = masks[0].copy()
        need = np.where(rows[:, 9] & 3 == 0, 3, rows[:, 9] & 3)
        for kind, owner in zip((FIRST, LAST, FIRST | LAST), owners, strict=True):
            at = np.flatnonzero(need == kind)
            first, last = np.searchsorted(bounds, rows[at, 4]), np.searchsorted(bounds, rows[at, 5])
            who = owner[_spread(first, last)]
            row = np.repeat(at, last - first)
            require((who >= 0).all() and (writer[who] >= 0).all(), "tags: a word is read that nobody writes")
            awaited[place.reshape(-1)[row], who] = True
            for bit in range(4):
                here = (rows[row, 9] >> bit & 1) == 1
                masks[bit, place.reshape(-1)[row[here]], who[here]] = True
        both = np.concatenate((masks.all(axis=0), awaited), axis=1)
        _, first, which = np.unique(np.packbits(both, axis=1), axis=0, return_index=True, return_inverse=True)
        both = both[first]
        return Reading(workers, which.reshape(-1), both[:, : self.workers], both[:, self.workers :], writer)


def _spread(first: I64, last: I64) -> I64:
    """first[0], ..., last[0] - 1, first[1], ..."""
    count = last - first
    return np.repeat(first - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
