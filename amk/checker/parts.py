"""Bytes that all accesses have alike are looked at once.

Memory is cut into *parts* of equal size: a global buffer into the rows of the tokens of a step, private memory, where
arrays may overlap, into parts as most accesses there that happen several times have them; an access that happens
several times in each part counts as several. Where no access begins or ends between two parts, each access has the
same bytes of both, and what it means there is displaced by the same amount, if all accesses with that value are
displaced alike from part to part. A byte of the one then has the accesses of that byte of the other: races
and values are those of either. So the first part stands for all up to the next where an access begins or ends; where
accesses with one value are displaced differently, every part is kept. How memory is cut decides about work only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from amk.schedule_ir.schedule import Schedule

I64 = npt.NDArray[np.int64]
BUFFER, LO, HI, VALUE, MOVED, ARRAY, TIMES, STEP, TURN = 3, 4, 5, 7, 8, 11, 12, 13, 14
"""Columns of `footprints` that this is about: an access happens `times` times, each `step` bytes on and displaced by
`turn` more."""
WHOLE: Final = 1 << 40
FEW: Final = 12
"""Columns of an access that happens once."""


class Parts:
    """origin, size [buffers]: where the first part begins that the array is cut into, and bytes of a part. memories:
    the arrays of private memory in sets that have no byte in common."""

    def __init__(self, schedule: Schedule) -> None:
        count = schedule.vectors
        equal = [
            b.bytes // count if count > 1 and b.bytes % count == 0 and b.bytes else WHOLE for b in schedule.buffers
        ]
        self.origin, self.size = np.zeros(len(equal), np.int64), np.array(equal, np.int64)
        self.memories: list[list[int]] = []
        end = 0
        spans = {n: (b.offset or 0, b.bytes) for n, b in enumerate(schedule.buffers) if b.space == "shared"}
        for n in sorted(spans, key=lambda n: spans[n]):
            if not self.memories or spans[n][0] >= end:
                self.memories.append([])
            self.memories[-1].append(n)
            end = max(end, sum(spans[n]))

    def fit(self, rows: I64) -> None:
        """Cut private memory so that most of what happens several times is in whole parts."""
        for together in self.memories:
            mine = rows[np.isin(rows[:, ARRAY], together) & (rows[:, TIMES] > 1)]
            steps, often = np.unique(mine[:, STEP], return_counts=True)
            step = int(steps[often.argmax()]) if len(mine) else WHOLE
            self.size[together] = max(step, 1)
            self.origin[together] = mine[mine[:, STEP] == step, LO].min(initial=WHOLE) if len(mine) else 0

    def different(self, rows: I64) -> I64:
        """Accesses of the parts that are kept, each of them once. rows: all of some memories; in private memory a byte
        counts from its beginning."""
        return np.concatenate((np.zeros((0, FEW), np.int64), *self.by_parts(rows)))

    def by_parts(self, rows: I64, most: int = 1 << 19) -> Iterator[I64]:
        """The same some parts at a time, which have `most` accesses together or are one part."""
        rows = self._pieces(self._interleaved(rows))
        first, end, key = rows[:, TIMES], rows[:, STEP], rows[:, BUFFER] << 32
        cuts = np.unique(np.concatenate((key + first, key + end, *self._every(rows))))
        of, at = spread(np.searchsorted(cuts, key + first), np.searchsorted(cuts, key + end))
        order = np.argsort(at, kind="stable")
        of, at = of[order], at[order]
        ends = np.append(np.flatnonzero(np.diff(at)) + 1, len(at))
        begin = 0
        while begin < len(at):
            least, fits = np.searchsorted(ends, [begin, begin + most], "right")
            stop = int(ends[max(fits - 1, least)])
            mine, part = of[begin:stop], cuts[at[begin:stop]] - key[of[begin:stop]]
            pieces: I64 = rows[mine, :FEW]
            start = self.origin[pieces[:, ARRAY]] + part * self.size[pieces[:, ARRAY]]
            pieces[:, [LO, HI]] += start[:, None]
            pieces[:, MOVED] += part * rows[mine, TURN]
            yield pieces
            begin = stop

    def _every(self, rows: I64) -> list[I64]:
        """All parts of buffers where values are displaced in different ways."""
        several = rows[rows[:, STEP] - rows[:, TIMES] > 1][:, [BUFFER, VALUE, TURN]]
        ways = np.unique(several, axis=0)
        torn = np.unique(ways[1:][(ways[1:, :2] == ways[:-1, :2]).all(axis=1), 0])
        mine = {b: rows[rows[:, BUFFER] == b] for b in torn.tolist()}
        return [(b << 32) + np.arange(r[:, TIMES].min(), r[:, STEP].max()) for b, r in mine.items()]

    def _interleaved(self, rows: I64) -> I64:
        """With an access that happens n times in each part as n that happen once in it."""
        size, step = self.size[rows[:, ARRAY]], np.maximum(rows[:, STEP], 1)
        several = (rows[:, TIMES] > 1) & (step < size) & (size < WHOLE) & (size % step == 0)
        each = np.where(several, size // step, 1)
        count = np.minimum(each, np.maximum(rows[:, TIMES], 1))
        of, nth = spread(np.zeros_like(size), count)
        copies: I64 = rows[of]
        copies[:, [LO, HI]] += (nth * rows[of, STEP])[:, None]
        copies[:, MOVED] += nth * rows[of, TURN]
        again = several[of]
        copies[again, TIMES] = -((nth - rows[of, TIMES]) // each[of])[again]
        copies[again, TURN] *= each[of][again]
        copies[again, STEP] = size[of][again]
        return copies

    def _pieces(self, rows: I64) -> I64:
        """Bytes lo..hi of the parts from column `TIMES` up to column `STEP`, displaced as if the first were part 0."""
        size = self.size[rows[:, ARRAY]]
        start = rows[:, LO] - self.origin[rows[:, ARRAY]]
        fits = (start % size + rows[:, HI] - rows[:, LO] <= size) & ((rows[:, TIMES] == 1) | (rows[:, STEP] == size))
        of, nth = spread(np.zeros_like(size), np.where(fits, 1, rows[:, TIMES]))
        rows, fits, size = rows[of], fits[of], size[of]
        rows[:, [LO, HI]] += (nth * rows[:, STEP])[:, None] - self.origin[rows[:, ARRAY]][:, None]
        rows[:, MOVED] += nth * rows[:, TURN]
        part = rows[:, LO] // size
        rows[:, STEP], rows[:, TIMES] = part + np.where(fits, rows[:, TIMES], 1), part
        rows[~fits, TURN] = 0
        rows[:, MOVED] -= part * rows[:, TURN]
        rows[:, [LO, HI]] -= (part * size)[:, None]
        across = rows[:, HI] > size
        return np.concatenate((rows[~across], _cut(rows[across], size[across])))


def _cut(rows: I64, size: I64) -> I64:
    """Of rows that go beyond the part that they begin in: what is in it, in whole parts behind it, in the last one."""
    head, middle, tail = rows.copy(), rows.copy(), rows.copy()
    after, left = rows[:, TIMES] + rows[:, HI] // size, rows[:, HI] % size
    head[:, HI] = size
    middle[:, LO], middle[:, HI] = 0, size
    middle[:, TIMES], middle[:, STEP] = rows[:, TIMES] + 1, after
    tail[:, LO], tail[:, HI], tail[:, TIMES], tail[:, STEP] = 0, left, after, after + 1
    return np.concatenate((head, middle[after > rows[:, TIMES] + 1], tail[left > 0]))


def spread(first: I64, last: I64) -> tuple[I64, I64]:
    """(k repeated for every number in first[k] .. last[k] - 1, these numbers)."""
    count = last - first
    of = np.repeat(np.arange(len(count)), count)
    return of, np.arange(len(of)) + np.repeat(first - np.cumsum(count) + count, count)
