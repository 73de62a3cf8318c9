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

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from amk.validator.atoms import OUTSIDE, Block, Touches
from amk.validator.order import Clocks
from amk.validator.system import ACCUMULATE_FLOAT, I64, WRITE, Bools


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
    """``races``: one entry per pair of events, at most the asked number; ``racy`` and ``deterministic`` are exact."""

    racy: bool
    deterministic: bool
    races: tuple[Race, ...]
    unordered_sums: tuple[Race, ...]
    truncated: bool


def _ordered(clocks: Clocks, touches: Touches, before: I64, after: I64) -> Bools:
    """Elementwise on touches; initial and final content are ordered against everything, an event against itself."""
    a, b = touches.event[before], touches.event[after]
    ordered: Bools = (a == b) | (a == OUTSIDE) | (b == OUTSIDE) | clocks.precedes(a, b)
    return ordered


def _group_starts(block: Block) -> I64:
    kind = block.touches.kind[block.touch]
    starts = block.starts
    starts[1:] |= (kind[1:] == WRITE) | (kind[1:] != kind[:-1])
    return np.flatnonzero(starts)


def _neighbour_pairs(block: Block) -> tuple[I64, I64]:
    """Positions (i, j) in the block of all members of neighbouring groups of the same atom."""
    starts = _group_starts(block)
    ends = np.append(starts[1:], len(block.atom))
    size = ends - starts
    linked = np.flatnonzero(block.atom[starts[1:]] == block.atom[starts[:-1]])
    left, right = size[linked], size[linked + 1]
    count = left * right
    pair = np.repeat(np.arange(len(linked)), count)
    offset = np.arange(len(pair)) - np.repeat(np.cumsum(count) - count, count)
    # almost every product has a side of one member, so the division is rare
    before, after = offset.copy(), offset.copy()
    single_left, single_right = left[pair] == 1, right[pair] == 1
    before[single_left], after[single_right] = 0, 0
    both = np.flatnonzero(~single_left & ~single_right)
    before[both], after[both] = np.divmod(offset[both], right[pair[both]])
    return starts[linked][pair] + before, starts[linked + 1][pair] + after


def _racy_atoms(block: Block, clocks: Clocks) -> I64:
    before, after = _neighbour_pairs(block)
    bad = ~_ordered(clocks, block.touches, block.touch[before], block.touch[after])
    return np.unique(block.atom[before[bad]])


def _loose_sum_atoms(block: Block, clocks: Clocks) -> I64:
    """Atoms with neighbouring float accumulations that are unordered."""
    adding = block.touches.kind[block.touch] == ACCUMULATE_FLOAT
    i = np.flatnonzero(adding[1:] & adding[:-1] & (block.atom[1:] == block.atom[:-1]))
    bad = ~_ordered(clocks, block.touches, block.touch[i], block.touch[i + 1])
    return np.unique(block.atom[i[bad]])


def _list_pairs(block: Block, clocks: Clocks, atom: int, sums: bool, found: dict[tuple[int, int], Race]) -> None:
    """Add every unordered conflicting pair (or float sum) on one atom."""
    touches = block.touches
    start, end = np.searchsorted(block.atom, (atom, atom + 1))
    members = block.touch[start:end]
    members = members[touches.event[members] != OUTSIDE]
    buffer, lo, hi = touches.span(atom)
    for n, touch in enumerate(members[1:].tolist(), start=1):
        earlier = members[:n]
        kind, kinds = int(touches.kind[touch]), touches.kind[earlier]
        wanted = (kinds == kind) & (kind == ACCUMULATE_FLOAT) if sums else (kinds != kind) | (kind == WRITE)
        bad = wanted & ~_ordered(clocks, touches, earlier, np.full(n, touch))
        for other in earlier[bad].tolist():
            a, b = int(touches.event[other]), int(touches.event[touch])
            race = Race(a, b, buffer, lo, hi, int(touches.kind[other]), kind)
            if a > b:
                race = Race(b, a, buffer, lo, hi, kind, int(touches.kind[other]))
            found.setdefault((race.first, race.second), race)


def find_races(blocks: Iterable[Block], clocks: Clocks, limit: int | None = 64) -> RaceReport:
    """Decide race freedom and determinism; list up to ``limit`` pairs of each sort (None: all)."""
    races: dict[tuple[int, int], Race] = {}
    sums: dict[tuple[int, int], Race] = {}
    truncated = False
    for block in blocks:
        for atoms, loose, found in (
            (_racy_atoms(block, clocks), False, races),
            (_loose_sum_atoms(block, clocks), True, sums),
        ):
            for atom in atoms.tolist():
                if limit is not None and len(found) >= limit:
                    truncated = True
                    break
                _list_pairs(block, clocks, atom, loose, found)
    return RaceReport(
        bool(races), not sums, tuple(races.values())[:limit], tuple(sums.values())[:limit], truncated
    )  # fmt: skip
