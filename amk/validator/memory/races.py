"""Races: conflicting accesses that no execution orders.

Property: for all events a, b that touch a common byte, one of them not reading, and not both accumulating integers (or
both floats): a must-happen-before b or b must-happen-before a. Then a and b are never enabled together; otherwise some
interleaving enables both.

Assumptions: exact clocks. Two unordered float accumulations are no race, but the sum depends on the interleaving:
they clear `deterministic`.

Algorithm: along one atom, in run order, split the touches into groups: every write is its own group, neighbouring reads
(or integer, or float accumulations) share one. Members of neighbouring groups conflict, so all of them must be ordered;
must-happen-before is transitive, so if they are, every conflicting pair on the atom is. Hence an atom has a race iff
two neighbouring groups have one. Only for such atoms all pairs are listed. b never must-happen-before an earlier a, so
only "a precedes b" needs a look.

Cost: linear in incidences, except reads next to accumulations (product of the two groups).

Witness: a shortest slice of a run after which both events are enabled; see `witness`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from amk.validator.memory.atoms import OUTSIDE, Block, Touches
from amk.validator.program.system import ACCUMULATE_FLOAT, I64, MAX_BYTES, READ, WRITE, Bools

PAIRS: Final = 1 << 20


@dataclass(frozen=True)
class Race:
    """Two events that can be enabled together and conflict on bytes lo..hi-1 of a buffer (first such atom)."""

    first: int
    second: int
    buffer: int
    lo: int
    hi: int
    first_kind: int
    second_kind: int


@dataclass(frozen=True)
class RaceReport:
    """``racy`` and ``deterministic`` are exact. ``races`` has one entry per pair of events.

    With a limit the pairs are those of neighbouring groups, at least one if there are any; ``truncated`` then says that
    there may be more.
    """

    racy: bool
    deterministic: bool
    races: tuple[Race, ...]
    unordered_sums: tuple[Race, ...]
    truncated: bool


class Precedes(Protocol):
    def precedes(self, before: I64, after: I64) -> Bools:
        """Elementwise: does one event finish before the other starts, in every execution?"""
        ...


@dataclass(frozen=True)
class ByFirst:
    """What orders a pair of accesses, by whether the first one reads; None: such pairs are not asked about."""

    reads: Precedes | None
    others: Precedes | None


def _ordered(order: ByFirst, touches: Touches, before: I64, after: I64) -> Bools:
    """Elementwise on touches; initial and final content are ordered against everything, an event against itself."""
    a, b = touches.event[before], touches.event[after]
    ordered: Bools = (a == b) | (a == OUTSIDE) | (b == OUTSIDE)
    left = np.flatnonzero(~ordered)
    reads = touches.kind[before[left]] == READ
    for one, some in ((order.reads, left[reads]), (order.others, left[~reads])):
        if one is None:
            ordered[some] = True
        elif len(some):
            ordered[some] = one.precedes(a[some], b[some])
    return ordered


def _group_starts(block: Block) -> I64:
    kind = block.touches.kind[block.touch]
    starts = block.starts
    starts[1:] |= (kind[1:] == WRITE) | (kind[1:] != kind[:-1])
    return np.flatnonzero(starts)


def _before_each(block: Block) -> tuple[I64, I64]:
    """Per position of the block: where the group before its group begins on the same atom, and its size; 0 if there is
    none.
    """
    starts = _group_starts(block)
    size = np.diff(np.append(starts, len(block.atom)))
    linked = np.concatenate(([False], block.atom[starts[1:]] == block.atom[starts[:-1]]))
    previous = np.where(linked, np.concatenate(([0], size[:-1])), 0)
    return np.repeat(starts - previous, size), np.repeat(previous, size)


def _neighbour_pairs(block: Block) -> Iterator[tuple[I64, I64]]:
    """Positions (i, j) in the block: j, and every member i of the group before j's group on the same atom."""
    begin, count = _before_each(block)
    upto = np.cumsum(count)
    low = 0
    while low < len(count):
        done = int(upto[low] - count[low])
        high = max(low + 1, int(np.searchsorted(upto, done + PAIRS, side="right")))
        part = count[low:high]
        after = np.repeat(np.arange(low, high), part)
        base = begin[low:high] - (upto[low:high] - part - done)
        yield np.repeat(base, part) + np.arange(len(after)), after
        low = high


def _unordered(block: Block, clocks: ByFirst) -> tuple[I64, I64]:
    """Members (i, j) of neighbouring groups that nothing orders."""
    left, right = [], []
    for before, after in _neighbour_pairs(block):
        bad = np.flatnonzero(~_ordered(clocks, block.touches, block.touch[before], block.touch[after]))
        left.append(before[bad])
        right.append(after[bad])
    return np.concatenate(left), np.concatenate(right)


def _unordered_sums(block: Block, clocks: ByFirst) -> tuple[I64, I64]:
    """Neighbouring float accumulations (i, j) that nothing orders."""
    adding = block.touches.kind[block.touch] == ACCUMULATE_FLOAT
    i = np.flatnonzero(adding[1:] & adding[:-1] & (block.atom[1:] == block.atom[:-1]))
    bad = i[~_ordered(clocks, block.touches, block.touch[i], block.touch[i + 1])]
    return bad, bad + 1


def _all_pairs(block: Block, clocks: ByFirst, atoms: I64, sums: bool) -> tuple[I64, I64]:
    """Every conflicting pair (or pair of float accumulations) of these atoms that nothing orders."""
    left, right = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for atom in np.unique(atoms).tolist():
        start, end = np.searchsorted(block.atom, (atom, atom + 1)).tolist()
        i, j = np.triu_indices(end - start, k=1)
        i, j = i + start, j + start
        earlier, later = block.touches.kind[block.touch[i]], block.touches.kind[block.touch[j]]
        alike = earlier == later
        wanted = alike & (later == ACCUMULATE_FLOAT) if sums else ~alike | (later == WRITE)
        bad = wanted & ~_ordered(clocks, block.touches, block.touch[i], block.touch[j])
        left.append(i[bad])
        right.append(j[bad])
    return np.concatenate(left), np.concatenate(right)


def _rows(block: Block, i: I64, j: I64) -> I64:
    """[n, 7] (event, event, kind, kind, buffer, lo, hi) of pairs of positions."""
    touches, start = block.touches, block.touches.atom_key[block.atom[i]]
    buffer, lo = np.divmod(start, 2 * MAX_BYTES)
    hi = touches.atom_key[block.atom[i] + 1] - buffer * 2 * MAX_BYTES
    one, two = block.touch[i], block.touch[j]
    columns = touches.event[one], touches.event[two], touches.kind[one], touches.kind[two], buffer, lo, hi
    return np.stack(columns, axis=1)


def _record(rows: I64, found: dict[tuple[int, int], Race], limit: int | None) -> None:
    """Add one entry per pair of events, up to the limit; rows [n, 7] (event, event, kind, kind, buffer, lo, hi).

    Of too many those that are recorded are spread evenly: neighbours mostly show, or do not show, the same.
    """
    keys = np.min(rows[:, :2], axis=1) << 32 | np.max(rows[:, :2], axis=1)
    pairs = np.sort(np.unique(keys, return_index=True)[1])
    room = len(pairs) if limit is None else limit - len(found)
    if room < len(pairs):
        pairs = pairs[np.linspace(0, len(pairs) - 1, room).astype(np.int64)]
    for n in pairs.tolist():
        one, two, kind, other, buffer, lo, hi = rows[n].tolist()
        (first, first_kind), (second, second_kind) = sorted(((one, kind), (two, other)))
        found.setdefault((first, second), Race(first, second, buffer, lo, hi, first_kind, second_kind))


def find_races(blocks: Iterable[Block], order: Precedes | ByFirst, limit: int | None = 64) -> RaceReport:
    """Decide race freedom and determinism; list up to ``limit`` pairs of each sort (None: all there are)."""
    clocks = order if isinstance(order, ByFirst) else ByFirst(order, order)
    races: dict[tuple[int, int], Race] = {}
    sums: dict[tuple[int, int], Race] = {}
    for block in blocks:
        for (i, j), adding, found in (
            (_unordered(block, clocks), False, races),
            (_unordered_sums(block, clocks), True, sums),
        ):
            pairs = _all_pairs(block, clocks, block.atom[i], adding) if limit is None and len(i) else (i, j)
            _record(_rows(block, *pairs), found, limit)
    truncated = limit is not None and bool(races or sums)
    return RaceReport(bool(races), not sums, tuple(races.values()), tuple(sums.values()), truncated)
