"""Parts of buffers that are touched alike: one of them is looked at.

A buffer with a row for each token of a step is cut into as many parts of equal size, and shared memory into parts of
the size that most rows there have; how it is cut changes nothing but the cost. A *piece* is what an access
has of several parts that follow each other, the same bytes of each: (buffer, kind, lo, hi, value, delta, first, end,
turn), where lo and hi count from the start of a part, and delta is that of part 0 if the access began there: that of
part p is larger by p * turn.

Property: between two parts at which any access begins or ends, every access has the same bytes of all parts, with the
same values. So these bytes see the same events in the same order, and what is a race, or a read of something else, in
one part is one in each of them: deltas are compared among touches of one value only, and where those of a value have
one turn, equal deltas in one part are equal in all. Where a value has several turns, every part is looked at.

Cost: linear in pieces and in what is left of them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from amk.schedule_ir.schedule import Schedule
from amk.validator.program.system import DONT_CARE, I64

ENDLESS: Final = 1 << 40
PIECE: Final = 9
"""Columns of a piece."""
BUFFER, KIND, LO, HI, VALUE, DELTA, FIRST, END, TURN = range(PIECE)


def part_sizes(schedule: Schedule) -> I64:
    """[buffers] bytes of a part; where there are no parts, more than any buffer has."""
    count = schedule.vectors
    sizes = [b.bytes // count if count > 1 and b.bytes and b.bytes % count == 0 else ENDLESS for b in schedule.buffers]
    return np.array(sizes, np.int64)


def usual_step(rows: I64) -> tuple[int, int]:
    """(bytes of a part, where they begin) of memory where these rows of footprints are: as most that happen several
    times have it."""
    several = rows[rows[:, 6] > 1]
    if not len(several):
        return ENDLESS, 0
    steps, which = np.unique(several[:, 7], return_inverse=True)
    step = int(steps[np.bincount(which.reshape(-1), several[:, 6]).argmax()])
    return max(step, 1), int(several[several[:, 7] == step, 2].min())


def repeated(times: I64) -> tuple[I64, I64]:
    """(k as often as times[k] says, the how-manieth time it is)."""
    of = np.repeat(np.arange(len(times)), times)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(times) - times, times)


def every_time(rows: I64) -> tuple[I64, I64]:
    """Rows of footprints, those with several times once for each; and which row each is of."""
    of, nth = repeated(rows[:, 6])
    found = rows[of]
    found[:, [2, 3]] += (nth * found[:, 7])[:, None]
    found[:, 5] += nth * found[:, 8]
    found[:, [6, 7, 8]] = 1, 0, 0
    return found, of


def pieces(rows: I64, sizes: I64) -> tuple[I64, I64]:
    """What rows of footprints have of the parts, and which row each piece is of."""
    size = sizes[rows[:, 0]]
    low, high = rows[:, 2] // size, (rows[:, 3] - 1) // size
    within = (low == high) & ((rows[:, 6] == 1) | (rows[:, 7] == size))
    at = np.flatnonzero(within)
    found = rows[at]
    found[:, [LO, HI]] -= (low * size)[at, None]
    found[:, FIRST], found[:, END], found[:, TURN] = low[at], low[at] + rows[at, 6], rows[at, 8]
    found[:, DELTA] -= low[at] * rows[at, 8]
    rest = np.flatnonzero(~within)
    if not len(rest):
        return found, at
    single, of = every_time(rows[rest])
    made, part = _across(single, sizes[single[:, 0]])
    return np.concatenate((found, made)), np.concatenate((at, rest[of[part]]))


def _across(rows: I64, size: I64) -> tuple[I64, I64]:
    """Pieces of contiguous rows: the end of a part, whole parts, the beginning of one; and which row each is of."""
    lo, hi = rows[:, 2], rows[:, 3]
    part, whole, after = lo // size, -(-lo // size), hi // size
    alone = part == (hi - 1) // size
    made, of = [], []
    for kept, first, end, low, high in (
        (alone | (part < whole), part, part + 1, lo - part * size, np.where(alone, hi - part * size, size)),
        (~alone & (whole < after), whole, after, np.zeros_like(lo), size),
        (~alone & (after * size < hi), after, after + 1, np.zeros_like(lo), hi - after * size),
    ):
        some = rows[kept]
        some[:, FIRST], some[:, END], some[:, TURN] = first[kept], end[kept], 0
        some[:, LO], some[:, HI] = low[kept], high[kept]
        made.append(some)
        of.append(np.flatnonzero(kept))
    return np.concatenate(made), np.concatenate(of)


class Alike:
    """Which parts stand for which, given all pieces."""

    def __init__(self, found: I64, sizes: I64) -> None:
        self.sizes = sizes
        keys = found[:, [FIRST, END]] + (found[:, BUFFER] << 32)[:, None]
        self.cuts = np.unique(np.concatenate((keys.reshape(-1), self._several(found))))

    def _several(self, found: I64) -> I64:
        """Cuts between all parts of buffers with values that have several turns."""
        many = found[(found[:, END] - found[:, FIRST] > 1) & (found[:, VALUE] != DONT_CARE)]
        turns = np.unique(many[:, [BUFFER, VALUE, TURN]], axis=0)
        again = (turns[1:, :2] == turns[:-1, :2]).all(axis=1)
        cuts = [np.zeros(0, np.int64)]
        for buffer in np.unique(turns[1:][again, 0]).tolist():
            mine = many[many[:, BUFFER] == buffer]
            cuts.append((buffer << 32) + np.arange(mine[:, FIRST].min(), mine[:, END].max()))
        return np.concatenate(cuts)

    def of(self, found: I64) -> tuple[I64, I64]:
        """(buffer, kind, lo, hi, value, delta) of the pieces in the parts that stand for others, in bytes of the
        buffer; and which piece each is of."""
        key = found[:, BUFFER] << 32
        first, end = (np.searchsorted(self.cuts, key + found[:, column]) for column in (FIRST, END))
        of, nth = repeated(end - first)
        part = self.cuts[first[of] + nth] - key[of]
        rows = found[of, :FIRST]
        rows[:, [LO, HI]] += (part * self.sizes[rows[:, BUFFER]])[:, None]
        rows[:, DELTA] += part * found[of, TURN]
        return rows, of
