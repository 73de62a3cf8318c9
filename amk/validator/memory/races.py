"""What accesses to the same bytes see of each other: who races, and who reads from whom.

Atoms. Every byte access is cut at the interval ends of its buffer, in run order.

Property: two accesses overlap iff they share an atom; an atom lies inside or outside every interval.

Algorithm: the distinct interval ends of a buffer are its breakpoints; an access covers a contiguous range of atoms. A
*touch* is an access, an initial content (before everything) or a final content (after everything). Blocks of bounded
size hold the (touch, atom) incidences sorted by (atom, run position, kind), so that along one atom the touches appear
in the order of the run, an event's reads before its writes.

Cost: O(n log n) for n accesses plus O(incidences), a radix sort on the atom number.

Races. Conflicting accesses that no execution orders.

Property: for all events a, b that touch a common byte, one of them not reading, and not both accumulating integers (or
both floats): a must-happen-before b or b must-happen-before a. Then a and b are never enabled together; otherwise some
interleaving enables both.

Assumptions: exact clocks. Two unordered float accumulations are no race, but the sum depends on the interleaving:
they clear `deterministic`.

Algorithm: along one atom, in run order, split the touches into groups: every write is its own group, neighbouring reads
(or integer, or float accumulations) share one. Members of neighbouring groups conflict, so all of them must be ordered;
must-happen-before is transitive, so if they are, every conflicting pair on the atom is. Hence an atom has a race iff
two neighbouring groups have one. Only for such atoms all pairs are listed. b never must-happen-before an earlier a, so
only "a precedes b" needs a look. Two orders (`ByFirst`) are not transitive together: what a write precedes by one, and
what that precedes by the other, is no order of the two; so writes are then asked about by themselves, too.

Cost: linear in incidences, except reads next to accumulations (product of the two groups).

Witness: a shortest slice of a run after which both events are enabled; see `witness`.

Reads-from. Every byte read holds the value the model's dataflow intends.

Property: for every read (and accumulation) with value v and displacement d, the last write of each of its bytes that
must happen before it has value v and displacement d; a value that is accumulated is complete when it is read; every
final byte was last written as required. Displacement = logical element offset minus buffer offset, in bytes, so equal
(v, d) at one byte means the same element of the same tensor.

Assumptions: `find_races` found nothing. Then the writes of an atom are totally ordered and each read is ordered against
all of them, so "the last write before it in one run" is the last in every run. In a racy system a fault found here is
still real: it happens in the run itself.

Algorithm: along each atom in run order, the last non-read touch before each read. An accumulation expects its value to
be there already (zeroed or partly summed) and keeps it. A read whose next non-read touch adds to the value it read is
partial. Value `DONT_CARE` exempts a read; written, it is content that satisfies no reader; an accumulation of it may
only meet nothing or `DONT_CARE`, so that the verdict does not depend on the order of commuting accumulations.

Cost: linear in incidences.

Witness: the run up to the faulty read, with the byte; see `witness`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np

from amk.validator.order.greedy_run import Run
from amk.validator.program.system import ACCUMULATE_FLOAT, DONT_CARE, I32, I64, MAX_BYTES, READ, WRITE, Bools

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


def _record(rows: I64, races: dict[tuple[int, int], Race], limit: int | None) -> None:
    """Add one entry per pair of events, up to the limit; rows [n, 7] (event, event, kind, kind, buffer, lo, hi).

    Of too many those that are recorded are spread evenly: neighbours mostly show, or do not show, the same.
    """
    keys = np.min(rows[:, :2], axis=1) << 32 | np.max(rows[:, :2], axis=1)
    pairs = np.sort(np.unique(keys, return_index=True)[1])
    room = len(pairs) if limit is None else limit - len(races)
    if room < len(pairs):
        pairs = pairs[np.linspace(0, len(pairs) - 1, room).astype(np.int64)]
    for n in pairs.tolist():
        one, two, kind, other, buffer, lo, hi = rows[n].tolist()
        (first, first_kind), (second, second_kind) = sorted(((one, kind), (two, other)))
        races.setdefault((first, second), Race(first, second, buffer, lo, hi, first_kind, second_kind))


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


FaultKind = Literal["uninitialised", "stale", "partial"]
KINDS: Final[tuple[FaultKind, ...]] = ("uninitialised", "stale", "partial")


@dataclass(frozen=True)
class Fault:
    """``event`` reads bytes lo..hi-1 and finds content left by ``writer`` (-1: initial content, None: nothing).

    ``event`` is -1 for the required final content. For kind "partial" ``writer`` is the event that adds too late.
    """

    kind: FaultKind
    event: int
    buffer: int
    lo: int
    hi: int
    expected: tuple[int, int]
    actual: tuple[int, int] | None
    writer: int | None


@dataclass(frozen=True)
class DataflowReport:
    correct: bool
    faults: tuple[Fault, ...]
    truncated: bool


def _around(atom: I64, defines: Bools, places: I64) -> tuple[I64, I64]:
    """Per position that is looked at the last defining one before it and the first after it, -1 where its atom has
    none."""
    definers, upto = np.append(np.flatnonzero(defines), -1), np.cumsum(defines)
    behind = upto.take(places)
    before, after = definers.take(behind - defines.take(places) - 1), definers.take(behind)
    own = atom.take(places)
    return (
        np.where((before >= 0) & (atom.take(before) == own), before, -1),
        np.where((after >= 0) & (atom.take(after) == own), after, -1),
    )


def _faults_in(block: Block) -> tuple[I64, I64, I64]:
    """(incidence, kind as index into KINDS, position of the guilty definition or -1)."""
    touches, touch = block.touches, block.touch
    kind = touches.kind.take(touch)
    looked = np.flatnonzero(kind != WRITE)
    before, after = _around(block.atom, kind != READ, looked)
    own, left, later = touch.take(looked), touch.take(before), touch.take(after)
    value, delta, reads = touches.value.take(own), touches.delta.take(own), kind.take(looked) == READ
    cares = value != DONT_CARE
    absent = before < 0
    wrong = (touches.value.take(left) != value) | ((touches.delta.take(left) != delta) & cares)
    added = reads & (after >= 0) & (touches.kind.take(later) != WRITE)
    added &= (touches.value.take(later) == value) & (touches.delta.take(later) == delta)
    exempt = ~cares & (reads | absent)
    bad = np.flatnonzero(~exempt & (absent | wrong | added))
    code = np.where(absent[bad], 0, np.where(wrong[bad], 1, 2))
    return looked[bad], code, np.where(code == 2, after[bad], before[bad])


def _describe(block: Block, incidence: int, code: int, guilty: int) -> Fault:
    touches: Touches = block.touches
    touch = int(block.touch[incidence])
    buffer, lo, hi = touches.span(int(block.atom[incidence]))
    expected = (int(touches.value[touch]), int(touches.delta[touch]))
    if guilty < 0:
        return Fault(KINDS[code], int(touches.event[touch]), buffer, lo, hi, expected, None, None)
    other = int(block.touch[guilty])
    found = (int(touches.value[other]), int(touches.delta[other]))
    return Fault(KINDS[code], int(touches.event[touch]), buffer, lo, hi, expected, found, int(touches.event[other]))


def find_faults(blocks: Iterable[Block], limit: int | None = 64) -> DataflowReport:
    """Decide reads-from; list up to ``limit`` faults (None: all), one per (read, atom)."""
    faults: list[Fault] = []
    total = 0
    for block in blocks:
        bad, code, guilty = _faults_in(block)
        total += len(bad)
        room = len(bad) if limit is None else max(0, limit - len(faults))
        for row in zip(bad[:room].tolist(), code[:room].tolist(), guilty[:room].tolist(), strict=True):
            faults.append(_describe(block, *row))
        if limit is not None and total > limit:
            break
    return DataflowReport(total == 0, tuple(faults), total > len(faults))
