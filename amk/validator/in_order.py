"""Accesses buffer by buffer, in the order of a run, and what follows from that alone.

Property: reads-from of a buffer, and which of its accesses are neighbours on a byte, depend on nothing but the kinds,
bytes and contents of its accesses in the order of a run; which neighbours chains and workers order, on nothing but the
nodes and the quotient; which ones chains order, on nothing but where the nodes stand among the chains and the clocks.
So each of these is kept under exactly that (`memo`), and a change of a schedule costs what it changes.
Orders that only partial thresholds imply are asked for each time, because there is a limit to how often.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final, Literal, Protocol

import numpy as np

from amk.validator.atoms import OUTSIDE, Touches, blocks
from amk.validator.brackets import BracketOrder, Places, Views, chained, chained_each, views
from amk.validator.dataflow import DataflowReport, find_faults
from amk.validator.memo import Keyed, Memo, given
from amk.validator.order import Clocks
from amk.validator.quotient import Quotient
from amk.validator.races import Race, RaceReport, before_each, record
from amk.validator.sorting import by_keys
from amk.validator.system import I32, I64, READ, WRITE, Bools

LIMIT: Final = 64
COLUMNS: Final = 5
NOTHING: Final = np.zeros(0, np.int64)
EMPTY: Final = np.zeros(0, np.int32)
MANY: Final = 32
"""So many pairs have the second access in common, and so many of these the first ones, where products are worth it."""
BUNCH: Final = 8192
"""So many pairs are worth a look of their own."""
WIDE: Final = 16
"""So many atoms an access has, on average, where it is worth finding out which accesses are alike."""
FAULTY: Final = 1 << 14
"""So many touches of atoms are looked at in a row where something is known to be at fault."""
SOME: Final = 4096
"""Unordered pairs that are looked at in a row, until there are enough."""
Asked = Literal["reads", "writes", "all"]
"""Pairs whose first access is a read, is none, or any."""


@dataclass(frozen=True, eq=False)
class Part:
    """The accesses of one buffer: their nodes [n] and columns [n, 5] (kind, lo, hi, value, delta), as they run. key: of
    the nodes, if they follow from something.
    """

    buffer: int
    node: I64
    columns: Keyed[I64]
    key: bytes = b""

    @cached_property
    def nodes(self) -> Keyed[I64]:
        return Keyed(self.node, self.key) if self.key else given(self.node)


@dataclass(frozen=True, eq=False)
class Product:
    """Pairs of each of some accesses before each of some others. number [second]: that of the pair with the first of
    `first`, those with the rest follow."""

    first: I32
    second: I32
    number: I64


@dataclass(frozen=True, eq=False)
class Pairs:
    """Neighbouring accesses that conflict, first before second, by atom. bounds: bytes where atoms begin. reads: where
    the first reads; products: of these pairs all or none, all where many have the same readers. Without products each
    pair is there once, with the first of its atoms.
    """

    first: I32
    second: I32
    atom: I32
    bounds: I64
    reads: Bools
    products: list[Product]

    def some(self, asked: Asked) -> bool:
        """Are there such pairs?"""
        if asked == "all":
            return len(self.reads) > 0
        return bool((self.reads == (asked == "reads")).any())


@dataclass(frozen=True, eq=False)
class Faults:
    """Of one buffer; incidences: accesses of atoms."""

    incidences: int
    report: DataflowReport


@dataclass(frozen=True, eq=False)
class Question:
    """chains: brackets that say less than the order, and nothing that it does not say."""

    asked: Asked
    order: Precedes
    chains: BracketOrder | None = None


class Precedes(Protocol):
    def precedes(self, before: I64, after: I64) -> Bools: ...

    def precedes_otherwise(self, before: I64, after: I64) -> Bools: ...


def parts_of(rows: I64, placed: I64) -> list[Part]:
    """rows: (node, buffer, kind, lo, hi, value, delta); placed: sort keys of their nodes in a run."""
    by_place = by_keys(rows[:, 2], placed, rows[:, 1])
    buffer, node, columns = (part.take(by_place, axis=0) for part in (rows[:, 1], rows[:, 0], rows[:, 2:]))
    starts = np.flatnonzero(np.diff(buffer, prepend=-1)).tolist()
    ends = [*starts[1:], len(rows)]
    return [Part(int(buffer[a]), node[a:b], given(columns[a:b])) for a, b in zip(starts, ends, strict=True)]


def _written(part: Part) -> Part:
    at = np.flatnonzero(part.columns.value[:, 0] != READ)
    columns = given(("written", part.columns)).key
    node = given(("written", part.columns, part.nodes)).key
    return Part(part.buffer, part.node[at], Keyed(part.columns.value[at], columns), node)


def _touches(columns: I64, initial: I64, final: I64) -> Touches:
    """Events are positions among the columns; initial and final rows are (lo, hi, value, delta)."""
    before = np.insert(initial, 0, WRITE, axis=1)
    after = np.insert(final, 0, READ, axis=1)
    outside = [np.full(len(edge), OUTSIDE) for edge in (before, after)]
    event = np.concatenate((outside[0], np.arange(len(columns)), outside[1]))
    kind, lo, hi, value, delta = np.concatenate((before, columns, after)).T
    key = np.unique(np.concatenate((lo, hi)))
    first, last = np.searchsorted(key, lo), np.searchsorted(key, hi)
    return Touches(event=event, kind=kind, value=value, delta=delta, first=first, last=last, atom_key=key)


def faults_in(columns: I64, initial: I64, final: I64) -> Faults:
    """Where accesses are wide, one of all reads that are alike stands for the others, unless it is at fault."""
    touches = _touches(columns, initial, final)
    if touches.incidences < WIDE * len(touches.kind):
        return Faults(touches.incidences, find_faults(blocks(touches), LIMIT))
    report = find_faults(blocks(_unlike(touches)), LIMIT)
    if not report.correct:
        report = find_faults(blocks(touches, FAULTY), LIMIT)
    return Faults(touches.incidences, report)


def _unlike(touches: Touches) -> Touches:
    """Without all but one of the reads that want the same of the same bytes, with no write between them."""
    reads = np.flatnonzero(touches.kind == READ)
    passed = np.cumsum(touches.kind != READ)
    keys = np.stack((touches.value, touches.delta, touches.first, touches.last, passed))[:, reads]
    order = by_keys(*keys)
    keys = keys[:, order]
    alike = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    kept = np.ones(len(touches.kind), bool)
    kept[reads[order[1:][alike]]] = False
    return Touches(
        event=touches.event[kept], kind=touches.kind[kept], value=touches.value[kept], delta=touches.delta[kept],
        first=touches.first[kept], last=touches.last[kept], atom_key=touches.atom_key,
    )  # fmt: skip


def neighbours(columns: I64) -> Pairs:
    nothing = np.zeros((0, 4), np.int64)
    touches = _touches(columns, nothing, nothing)
    reads = touches.kind == READ
    firsts, seconds, atoms, readings, sizes = [EMPTY], [EMPTY], [EMPTY], [np.zeros(0, bool)], [NOTHING]
    for block in blocks(touches):
        begin, size = before_each(block)
        touch, reading = block.touch.astype(np.int32), reads.take(block.touch.take(begin))
        firsts.append(touch.take(np.repeat(begin - np.cumsum(size) + size, size) + np.arange(size.sum())))
        seconds.append(np.repeat(touch, size))
        atoms.append(np.repeat(block.atom.astype(np.int32), size))
        readings.append(np.repeat(reading, size))
        sizes.append(np.where(reading, size, -size))
    first, second, atom = (np.concatenate(column) for column in (firsts, seconds, atoms))
    reading, products = np.concatenate(readings), _products(np.concatenate(sizes), first, second)
    if not products:
        kept = _distinct(first.astype(np.int64) * len(columns) + second)
        first, second, atom, reading = first[kept], second[kept], atom[kept], reading[kept]
    return Pairs(first, second, atom, touches.atom_key, reading, products)


def _distinct(keys: I64) -> Bools:
    """Which of these are the first of their sort?"""
    order = by_keys(keys)
    again = keys[order[1:]] == keys[order[:-1]]
    found = np.ones(len(keys), bool)
    found[order[1:][again]] = False
    return found


def _products(sizes: I64, first: I32, second: I32) -> list[Product]:
    """Of the pairs whose first access reads, if they are few for so many pairs; sizes: of the runs with one second
    access, negative where the first one does not read.
    """
    ends = np.cumsum(np.abs(sizes))
    runs = np.flatnonzero(sizes > 0)
    some = int(sizes[runs].sum())
    if some < MANY * max(len(runs), 1):
        return []
    alike: dict[bytes, list[int]] = {}
    for low, high in zip((ends - sizes)[runs].tolist(), ends[runs].tolist(), strict=True):
        alike.setdefault(first[low:high].tobytes(), []).append(low)
    if some < MANY * MANY * len(alike):
        return []
    return [Product(np.frombuffer(text, np.int32), second[low], np.array(low)) for text, low in alike.items()]


def _asked(pairs: Pairs, asked: Asked) -> I64:
    if asked == "all":
        return np.arange(len(pairs.first))
    return np.flatnonzero(pairs.reads if asked == "reads" else ~pairs.reads)


def _some(column: I32, numbers: I64) -> I32:
    """column[numbers]; of distinct numbers in order, all or some."""
    return column if len(numbers) == len(column) else column[numbers]


def left_open(
    memo: Memo, asked: Asked, quotient: Quotient, clocks: bytes, parts: list[tuple[Pairs, bytes, I64]]
) -> list[I64]:
    """Numbers of the pairs of each (pairs, their key, nodes) that neither chains nor a worker by itself order; clocks:
    key of the quotient's."""
    order = BracketOrder(quotient)
    if quotient.system.events:
        left = unchained(memo, asked, order, clocks, parts)
    else:
        left = [_asked(pairs, asked) for pairs, *_ in parts]
    found = zip(parts, left, strict=True)
    ends = [np.stack((node[pairs.first[at]], node[pairs.second[at]])) for (pairs, _, node), at in found]
    before, after = np.concatenate(ends, axis=1)
    ordered = before == after
    order.add_local(before, after, ordered)
    return _split(left, ~ordered)


def _split(numbers: list[I64], some: Bools) -> list[I64]:
    """Some of the numbers; `some` is about all of them in turn."""
    ends = np.cumsum([0, *map(len, numbers)]).tolist()
    return [at[some[low:high]] for at, (low, high) in zip(numbers, pairwise(ends), strict=True)]


def unchained(
    memo: Memo, asked: Asked, order: BracketOrder, clocks: bytes, parts: list[tuple[Pairs, bytes, I64]]
) -> list[I64]:
    """Numbers of the pairs of each part that chains leave unordered."""
    every = order.places(np.concatenate([node for *_, node in parts]))
    places = np.stack((every.agent, every.hi, every.view))
    ends = np.cumsum([0, *(len(node) for *_, node in parts)]).tolist()
    own = [
        (Keyed(pairs, key), places[:, low:high])
        for (pairs, key, _), low, high in zip(parts, ends, ends[1:], strict=False)
        if pairs.some(asked)
    ]
    found = iter(memo.each(unordered_places, (asked, Keyed(order.quotient.clocks, clocks)), own))
    return [next(found).value if pairs.some(asked) else NOTHING for pairs, *_ in parts]


def unordered_places(memo: Memo, asked: Asked, clocks: Clocks, parts: list[tuple[Pairs, I32]]) -> list[I64]:
    """Numbers of the pairs of each (pairs, places) that chains leave unordered; places: the fields of `Places`."""
    shown = views(clocks, Places(*np.concatenate([places for _, places in parts], axis=1)))
    base = np.cumsum([0, *(places.shape[1] for _, places in parts)]).tolist()
    found, single = [NOTHING] * len(parts), []
    for n, (pairs, _) in enumerate(parts):
        if asked == "reads" and pairs.products:
            found[n] = _unordered_each(pairs.products, shown, base[n])
        else:
            single.append((n, pairs, _asked(pairs, asked)))
    for some in _bunches(single):
        before = np.concatenate([_some(pairs.first, at) + base[n] for n, pairs, at in some])
        after = np.concatenate([_some(pairs.second, at) + base[n] for n, pairs, at in some])
        left = _split([at for *_, at in some], ~chained(shown, shown, before, after))
        for (n, *_), numbers in zip(some, left, strict=True):
            found[n] = numbers
    return found


def _bunches(several: list[tuple[int, Pairs, I64]]) -> Iterator[list[tuple[int, Pairs, I64]]]:
    """Small ones together, because each look costs something; all in one would not fit into the processor's caches."""
    bunch: list[tuple[int, Pairs, I64]] = []
    for one in several:
        bunch.append(one)
        if sum(len(at) for *_, at in bunch) >= BUNCH:
            yield bunch
            bunch = []
    if bunch:
        yield bunch


def _unordered_each(products: list[Product], shown: Views, base: int) -> I64:
    """base: number of the first access among what is shown."""
    found = []
    for one in products:
        after, before = np.nonzero(~chained_each(shown, shown, one.first + base, one.second + base))
        found.append(one.number[after] + before)
    return np.sort(np.concatenate(found))


class InOrder:
    """What is asked about the parts."""

    def __init__(self, parts: list[Part], memo: Memo) -> None:
        self.parts, self.memo = parts, memo

    def of(self, buffers: Collection[int], inside: bool = True) -> InOrder:
        """The parts of these buffers, or of all others."""
        return InOrder([part for part in self.parts if (part.buffer in buffers) == inside], self.memo)

    def written(self, buffers: Collection[int]) -> InOrder:
        """All parts, without the reads of these buffers."""
        return InOrder([_written(p) if p.buffer in buffers else p for p in self.parts], self.memo)

    def faults(self, initial: I64, final: I64) -> Faults:
        """initial, final: rows (buffer, lo, hi, value, delta)."""
        by_number = {part.buffer: part for part in self.parts}
        faults, total, more = [], 0, False
        for number in sorted({*by_number, *initial[:, 0].tolist(), *final[:, 0].tolist()}):
            part = by_number.get(number) or Part(number, NOTHING, given(np.zeros((0, COLUMNS), np.int64)))
            edges = (rows[rows[:, 0] == number, 1:] for rows in (initial, final))
            found = self.memo(faults_in, part.columns, *edges).value
            total, more = total + found.incidences, more or found.report.truncated
            node = [*part.node.tolist(), OUTSIDE]
            for f in found.report.faults:
                writer = None if f.writer is None else node[f.writer]
                faults.append(replace(f, event=node[f.event], buffer=number, writer=writer))
        report = DataflowReport(not faults, tuple(faults[:LIMIT]), more or len(faults) > LIMIT)
        return Faults(total, report)

    def races(self, *questions: Question) -> RaceReport:
        """Neighbours that the orders leave unordered."""
        found: dict[tuple[int, int], Race] = {}
        keyed = [self.memo(neighbours, part.columns) for part in self.parts]
        bad = [self._unordered(keyed, question) for question in questions]
        for part, pairs, *numbers in zip(self.parts, keyed, *bad, strict=True):
            every = np.sort(np.concatenate(numbers))
            for start in range(0, len(every), SOME):
                if len(found) < LIMIT:
                    record(_rows(part, pairs.value, every[start : start + SOME]), found, LIMIT)
        return RaceReport(bool(found), True, tuple(found.values()), (), bool(found))

    def _unordered(self, keyed: list[Keyed[Pairs]], question: Question) -> list[I64]:
        """Numbers of the pairs of each part."""
        chains, asked = question.chains, question.asked
        known = None if chains is None else chains.keyed
        if chains is not None and known is not None:
            own = [(pairs, pairs.key, part.nodes) for part, pairs in zip(self.parts, keyed, strict=True)]
            left = [one.value for one in self.memo.each(left_open, (asked, known, chains.clocks_key), own)]
        else:
            left = [_asked(pairs.value, asked) for pairs in keyed]
        both = zip(self.parts, keyed, left, strict=True)
        ends = [np.stack((p.node[k.value.first[at]], p.node[k.value.second[at]])) for p, k, at in both]
        before, after = np.concatenate([np.zeros((2, 0), np.int64), *ends], axis=1)
        precedes = question.order.precedes if known is None else question.order.precedes_otherwise
        return _split(left, ~((before == after) | precedes(before, after)))


def _rows(part: Part, pairs: Pairs, at: I64) -> I64:
    """As `record` wants them."""
    first, second, atom = pairs.first[at], pairs.second[at], pairs.atom[at]
    kind, buffer = part.columns.value[:, 0], np.full(len(at), part.buffer)
    columns = (
        part.node[first], part.node[second], kind[first], kind[second], buffer, pairs.bounds[atom],
        pairs.bounds[atom + 1],
    )  # fmt: skip
    return np.stack(columns, axis=1)
