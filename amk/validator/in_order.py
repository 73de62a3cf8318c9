"""Accesses buffer by buffer, in the order of a run, and what follows from that alone.

Property: reads-from of a buffer, and which of its accesses are neighbours on a byte, depend on nothing but the kinds,
bytes and contents of its accesses in the order of a run; which neighbours chains and workers order, on nothing but the
nodes and the quotient; which ones chains order, on nothing but where the nodes stand among the chains and the clocks;
which ones a worker orders, on nothing but the nodes and what it does alone.
So each of these is kept under exactly that (`memo`), and a change of a schedule costs what it changes. Buffers that
only one worker touches are put to what it does alone first, which leaves nothing open there as a rule.
Orders that only partial thresholds imply are asked for each time, because there is a limit to how often.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final, Protocol

import numpy as np

from amk.validator.atoms import OUTSIDE, blocks
from amk.validator.brackets import BracketOrder
from amk.validator.dataflow import DataflowReport, Fault, find_faults, find_faults_each
from amk.validator.memo import Keyed, Memo, given
from amk.validator.neighbours import (
    BUNCH,
    NOTHING,
    SPAN,
    Asked,
    Pairs,
    alike,
    bunches,
    joined,
    neighbours,
    some_of,
    touches_in,
)
from amk.validator.quotient import Group, Quotient
from amk.validator.races import Race, RaceReport, record
from amk.validator.sorting import by_keys
from amk.validator.system import I32, I64, READ, Bools
from amk.validator.unordered import Open, by_atoms, closed, split, unordered_places

LIMIT: Final = 64
COLUMNS: Final = 5
WIDE: Final = 16
"""So many atoms an access has, on average, where it is worth finding out which accesses are alike."""
FAULTY: Final = 1 << 14
"""So many touches of atoms are looked at in a row where something is known to be at fault."""


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

    def undecided(self, before: I64) -> bool:
        """May `precedes_otherwise` say yes of one of these nodes?"""
        ...


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


def faults_in(columns: I64, initial: I64, final: I64) -> Faults:
    """Where accesses are wide, one of all reads that are alike stands for the others, unless it is at fault."""
    touches = touches_in(columns, initial, final)
    if touches.incidences < WIDE * len(touches.kind):
        return Faults(touches.incidences, find_faults(blocks(touches), LIMIT))
    kept = np.ones(len(touches.kind), bool)
    for one in alike(touches, 2, touches.value, touches.delta):
        kept[one[1:]] = False
    report = find_faults(blocks(some_of(touches, kept)), LIMIT)
    if not report.correct:
        report = find_faults(blocks(touches, FAULTY), LIMIT)
    return Faults(touches.incidences, report)


def faults_of(memo: Memo, parts: list[tuple[I64, I64, I64]]) -> list[Faults]:
    """`faults_in` of each of several buffers, in one look where they are small."""
    sizes = [len(columns) for columns, *_ in parts]
    return [faults for bunch in bunches(parts, sizes, BUNCH) for faults in _faults_of(bunch)]


def _faults_of(parts: list[tuple[I64, I64, I64]]) -> list[Faults]:
    """All as one buffer, unless they are wide."""
    if len(parts) == 1:
        return [faults_in(*parts[0])]
    columns, *edges = zip(*parts, strict=True)
    touches = touches_in(joined(columns), *(joined(edge, 0) for edge in edges))
    if touches.incidences >= WIDE * len(touches.kind):
        return [faults_in(*part) for part in parts]
    incidences = np.zeros(len(parts), np.int64)
    np.add.at(incidences, touches.atom_key[touches.first] // SPAN, touches.last - touches.first)
    first = np.searchsorted(touches.atom_key, np.arange(len(parts)) * SPAN)
    base, found = 0, []
    for part, many, report in zip(columns, incidences, find_faults_each(blocks(touches), first, LIMIT), strict=True):
        faults = tuple(_moved(fault, -base) for fault in report.faults)
        found.append(Faults(int(many), replace(report, faults=faults)))
        base += len(part)
    return found


def _moved(fault: Fault, by: int) -> Fault:
    """Of events whose numbers differ by so much, in the first buffer."""
    event = fault.event if fault.event == OUTSIDE else fault.event + by
    writer = fault.writer if fault.writer is None or fault.writer == OUTSIDE else fault.writer + by
    return Fault(fault.kind, event, 0, fault.lo, fault.hi, fault.expected, fault.found, writer)


def open_alone(memo: Memo, groups: list[Group], parts: list[tuple[Pairs, I64]]) -> list[I64]:
    """Numbers of the single pairs of each (pairs, nodes), all nodes of one worker, that it does not order by itself."""
    base = np.array([group.node_base for group in groups])
    found = [NOTHING] * len(parts)
    of = np.searchsorted(base, [node[0] for _, node in parts], side="right") - 1
    for g, group in enumerate(groups):
        mine = np.flatnonzero(of == g).tolist()
        local = [(parts[n][1] - group.node_base) % group.nodes for n in mine]
        sides = [(node[parts[n][0].first], node[parts[n][0].second]) for n, node in zip(mine, local, strict=True)]
        before, after = np.concatenate([np.zeros((2, 0), np.int64), *map(np.stack, sides)], axis=1)
        left = (before != after) & ~group.order.wholly(before, after)
        numbers = [np.arange(len(parts[n][0].first)) for n in mine]
        for n, at in zip(mine, split(numbers, left), strict=True):
            found[n] = at
    return found


Looked = tuple[Pairs, bytes, I64, bytes]
"""Pairs with their key, nodes with theirs."""


def left_open(
    memo: Memo, asked: Asked, quotient: Quotient, clocks: bytes, alone: bytes, parts: list[Looked]
) -> list[Open]:
    """The pairs of each part that neither chains nor a worker by itself order; clocks: key of the quotient's; alone:
    key of what its workers do alone."""
    order = BracketOrder(quotient)
    inside = _of_one_worker(order, parts)
    own = [part for part, by_itself in zip(parts, inside, strict=True) if by_itself]
    others = [part for part, by_itself in zip(parts, inside, strict=True) if not by_itself]
    found = iter(_open_inside(memo, asked, order, alone, own))
    more = iter(_open_among(memo, asked, order, clocks, others))
    return [next(found) if by_itself else next(more) for by_itself in inside]


def _of_one_worker(order: BracketOrder, parts: list[Looked]) -> list[bool]:
    """Is there one worker that has all nodes? Not asked where there are products, which are of many."""
    some = [len(node) > 0 and not pairs.products for pairs, _, node, _ in parts]
    ends = [
        (int(node.min()), int(node.max())) if one else (0, 0) for one, (*_, node, _) in zip(some, parts, strict=True)
    ]
    first, last = order.workers(np.array(ends, np.int64).reshape(-1, 2).T)
    same: list[bool] = ((first == last) & some).tolist()
    return same


def _open_inside(memo: Memo, asked: Asked, order: BracketOrder, alone: bytes, parts: list[Looked]) -> list[Open]:
    """Of buffers that one worker has: what it leaves open, put to the chains."""
    if not parts:
        return []
    own = [(Keyed(pairs, key), Keyed(node, node_key)) for pairs, key, node, node_key in parts]
    every = memo.each(open_alone, (Keyed(order.quotient.groups, alone),), own)
    left = [Open(_wanted(one.value, pairs, asked)) for one, (pairs, *_) in zip(every, parts, strict=True)]
    return closed([(pairs, node) for pairs, _, node, _ in parts], left, order.chained)


def _wanted(numbers: I64, pairs: Pairs, asked: Asked) -> I64:
    return numbers if asked == "all" else numbers[pairs.reads[numbers] == (asked == "reads")]


def _open_among(memo: Memo, asked: Asked, order: BracketOrder, clocks: bytes, parts: list[Looked]) -> list[Open]:
    """Of buffers that several workers have: what chains leave open, put to the workers."""

    def near(first: I64, second: I64) -> Bools:
        same: Bools = order.workers(second)[:, None] == order.workers(first)
        return same

    left = unchained(memo, asked, order, clocks, parts)
    return closed([(pairs, node) for pairs, _, node, _ in parts], left, order.precedes_alone, near)


def unchained(memo: Memo, asked: Asked, order: BracketOrder, clocks: bytes, parts: list[Looked]) -> list[Open]:
    """The pairs of each part that chains leave unordered."""
    if not order.quotient.system.events:
        return [Open.all(pairs, asked) for pairs, *_ in parts]
    found = [Open(NOTHING)] * len(parts)
    some = [n for n, (pairs, *_) in enumerate(parts) if pairs.some(asked)]
    if not some:
        return found
    every = order.places(np.concatenate([parts[n][2] for n in some]))
    places = np.stack((every.agent, every.hi, every.view))
    ends = pairwise(np.cumsum([0, *(len(parts[n][2]) for n in some)]).tolist())
    own = [(Keyed(*parts[n][:2]), places[:, a:b]) for n, (a, b) in zip(some, ends, strict=True)]
    left = memo.each(unordered_places, (asked, Keyed(order.quotient.clocks, clocks)), own)
    for n, one in zip(some, left, strict=True):
        found[n] = one.value
    return found


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
        edges = [{int(b): rows[rows[:, 0] == b, 1:] for b in set(rows[:, 0].tolist())} for rows in (initial, final)]
        nothing, none = given(np.zeros((0, COLUMNS), np.int64)), given(np.zeros((0, COLUMNS - 1), np.int64))
        others = {number for rows in edges for number in rows} - {part.buffer for part in self.parts}
        parts = [*self.parts, *(Part(number, NOTHING, nothing) for number in others)]
        parts.sort(key=lambda part: part.buffer)
        asked = [(part.columns, *(rows.get(part.buffer, none) for rows in edges)) for part in parts]
        every = [one.value for one in self.memo.each(faults_of, (), asked)]
        faults: list[Fault] = []
        for part, found in zip(parts, every, strict=True):
            some = found.report.faults[: LIMIT - len(faults)]
            node = [*part.node.tolist(), OUTSIDE] if some else []
            for f in some:
                writer = None if f.writer is None else node[f.writer]
                faults.append(replace(f, event=node[f.event], buffer=part.buffer, writer=writer))
        more = sum(len(found.report.faults) for found in every) > LIMIT or any(one.report.truncated for one in every)
        return Faults(sum(one.incidences for one in every), DataflowReport(not faults, tuple(faults), more))

    def races(self, *questions: Question) -> RaceReport:
        """Neighbours that the orders leave unordered."""
        found: dict[tuple[int, int], Race] = {}
        keyed = self.memo.each(neighbours, (), [(part.columns,) for part in self.parts])
        bad = [self._unordered(keyed, question) for question in questions]
        for part, pairs, *opens in zip(self.parts, keyed, *bad, strict=True):
            some = by_atoms(pairs.value, [one for one in opens if one])
            while len(found) < LIMIT and (ends := next(some, None)) is not None:
                record(_rows(part, pairs.value, *ends), found, LIMIT)
        return RaceReport(bool(found), True, tuple(found.values()), (), bool(found))

    def _unordered(self, keyed: list[Keyed[Pairs]], question: Question) -> list[Open]:
        """The pairs of each part."""
        chains, order = question.chains, question.order
        looked = [(pairs.value, part.node) for pairs, part in zip(keyed, self.parts, strict=True)]
        if chains is None or chains.keyed is None:
            return closed(looked, [Open.all(pairs, question.asked) for pairs, _ in looked], order.precedes)
        both = zip(keyed, self.parts, strict=True)
        own = [(pairs, pairs.key, part.nodes, part.nodes.key) for pairs, part in both]
        common = question.asked, chains.keyed, chains.clocks_key, chains.alone_key
        left = [one.value for one in self.memo.each(left_open, common, own)]
        return closed(looked, left, order.precedes_otherwise, lambda first, _: np.array(order.undecided(first)))


def _rows(part: Part, pairs: Pairs, first: I32, second: I32, atom: I32) -> I64:
    """As `record` wants them."""
    kind, buffer = part.columns.value[:, 0], np.full(len(first), part.buffer)
    columns = (
        part.node[first], part.node[second], kind[first], kind[second], buffer, pairs.bounds[atom],
        pairs.bounds[atom + 1],
    )  # fmt: skip
    return np.stack(columns, axis=1)
