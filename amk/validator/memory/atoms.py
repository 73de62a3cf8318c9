"""Byte atoms: every byte access cut at the interval ends of its buffer, in run order.

Property: two accesses overlap iff they share an atom; an atom lies inside or outside every interval.

Algorithm: the distinct interval ends of a buffer are its breakpoints; an access covers a contiguous range of atoms. A
*touch* is an access, an initial content (before everything) or a final content (after everything). Blocks of bounded
size hold the (touch, atom) incidences sorted by (atom, run position, kind), so that along one atom the touches appear
in the order of the run, an event's reads before its writes.

Cost: O(n log n) for n accesses plus O(incidences), a radix sort on the atom number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from amk.validator.order.greedy_run import Run
from amk.validator.program.system import I32, I64, MAX_BYTES, READ, WRITE, Bools

# small enough that the temporaries of a block stay in cache: four times faster than blocks of 2**22
BLOCK: Final = 1 << 17
OUTSIDE: Final = -1


@dataclass(frozen=True, eq=False)
class Touches:
    """Columns over touches in run order (``event`` = `OUTSIDE` for initial and final content) and the atom bounds.

    ``first``/``last`` [touches]: the half-open range of atoms covered; ``atom_key`` [breakpoints] =
    2 * MAX_BYTES * buffer + byte, atom ``i`` spans breakpoints i and i+1.
    """

    event: I64
    kind: I64
    value: I64
    delta: I64
    first: I64
    last: I64
    atom_key: I64

    @property
    def incidences(self) -> int:
        return int((self.last - self.first).sum())

    def span(self, atom: int) -> tuple[int, int, int]:
        """(buffer, lo, hi) of an atom."""
        buffer, lo = divmod(int(self.atom_key[atom]), 2 * MAX_BYTES)
        return buffer, lo, int(self.atom_key[atom + 1]) - buffer * 2 * MAX_BYTES


@dataclass(frozen=True, eq=False)
class Block:
    """Incidences sorted by (atom, run position, kind): ``atom`` and ``touch`` [n], whole atoms only. ``place`` [n]: of
    each among them by (touch, atom)."""

    touches: Touches
    atom: I64
    touch: I64
    place: I64

    @property
    def starts(self) -> Bools:
        """[n] first incidence of its atom."""
        starts: Bools = np.ones(len(self.atom), dtype=bool)
        np.not_equal(self.atom[1:], self.atom[:-1], out=starts[1:])
        return starts


def touches_of(run: Run) -> Touches:
    """Accesses of executed events, initial content, and, if the run is complete, final content."""
    system = run.system
    position = run.position[system.access_event]
    kept = np.flatnonzero(position < len(run.order))
    kept = kept[np.lexsort((system.access_kind[kept], position[kept]))]

    def columns(what: str, *names: str) -> list[I64]:
        return [np.asarray(getattr(system, f"{what}_{name}"), np.int64) for name in names]

    edge = ("buffer", "lo", "hi", "value", "delta")
    rows = np.stack(columns("access", "event", "buffer", "kind", *edge[1:]), axis=1)
    initial, final = (np.stack(columns(what, *edge), axis=1) for what in ("initial", "final"))
    return touches_in(rows[kept], initial, final if run.complete else final[:0])


def touches_in(rows: I64, initial: I64, final: I64) -> Touches:
    """rows [n, 7]: (event, buffer, kind, lo, hi, value, delta) in run order, an event's reads first; initial and final
    content [n, 5]: (buffer, lo, hi, value, delta)."""
    before, after = (
        np.insert(edge, (0, 1), (OUTSIDE, kind), axis=1) for edge, kind in ((initial, WRITE), (final, READ))
    )
    event, buffer, kind, lo, hi, value, delta = np.concatenate((before, rows, after)).T
    low, high = buffer * (2 * MAX_BYTES) + lo, buffer * (2 * MAX_BYTES) + hi
    key = np.unique(np.concatenate((low, high)))
    first, last = np.searchsorted(key, low), np.searchsorted(key, high)
    return Touches(event=event, kind=kind, value=value, delta=delta, first=first, last=last, atom_key=key)


def _radix_order(values: I32) -> I64:
    """Stable argsort of non-negative integers, sixteen bits at a time (numpy sorts uint16 by radix)."""
    order = np.argsort((values & 0xFFFF).astype(np.uint16), kind="stable")
    if len(values) and int(values.max()) > 0xFFFF:
        order = order[np.argsort((values[order] >> 16).astype(np.uint16), kind="stable")]
    return order


def blocks(touches: Touches, size: int = BLOCK) -> Iterator[Block]:
    """All incidences, cut between atoms into blocks of about ``size``."""
    atoms = len(touches.atom_key)
    delta = np.bincount(touches.first, minlength=atoms + 1) - np.bincount(touches.last, minlength=atoms + 1)
    upto = np.cumsum(np.cumsum(delta))
    begin = 0
    while begin < atoms:
        done = int(upto[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(upto, done + size, side="right")))
        end = min(end, atoms)
        first, last = np.clip(touches.first, begin, end), np.clip(touches.last, begin, end)
        count = last - first
        touch = np.repeat(np.arange(len(count)), count)
        if len(touch):
            starts = np.cumsum(count) - count
            shift = (starts - first + begin).astype(np.int32)  # of sums beyond 2^32 the remainder is enough
            place = _radix_order(np.arange(len(touch), dtype=np.int32) - np.repeat(shift, count))
            each = np.diff(upto[begin:end], prepend=done)
            yield Block(touches, np.repeat(np.arange(begin, end), each), touch.take(place), place)
        begin = end
