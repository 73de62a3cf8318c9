"""Neighbouring accesses of buffers that conflict.

Property: `neighbours` has each pair of accesses that conflict in neighbouring groups of an atom (see `races`), with the
first of its atoms.

Algorithm: reads of the same bytes with no write between them have the same neighbours, so where they are many, one
stands for all of them, and their pairs are products of two sets of accesses. What an access has before it on one atom
it mostly has before it on the next, so that is left out as it is found.

Cost: linear in accesses of atoms, products as large as both their sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeVar

import numpy as np

from amk.validator.atoms import BLOCK, OUTSIDE, Block, Touches, blocks
from amk.validator.memo import Memo
from amk.validator.races import before_each
from amk.validator.sorting import by_key, by_keys
from amk.validator.system import I32, I64, MAX_BYTES, READ, WRITE, Bools

T = TypeVar("T")
NOTHING: Final = np.zeros(0, np.int64)
EMPTY: Final = np.zeros(0, np.int32)
SPAN: Final = 2 * MAX_BYTES
"""From one buffer to the next, where the accesses of several are looked at together."""
FEW: Final = 8
"""So many accesses before one are compared with those of the atom before."""
MANY: Final = 32
"""So many reads that are alike are looked at as one."""
BUNCH: Final = 4096
"""So many pairs or accesses are worth a look of their own."""
Columns = tuple[I32, I32, I32]
"""(first, second, atom) of pairs."""
Asked = Literal["reads", "writes", "all"]
"""Pairs whose first access is a read, is none, or any."""


@dataclass(frozen=True, eq=False)
class Product:
    """Pairs of each of some accesses before each of some others; of either the first ones or the second ones all are
    reads that are alike. atom: of each of the others. reads: it is the first ones.
    """

    first: I32
    second: I32
    atom: I32
    reads: bool


@dataclass(frozen=True, eq=False)
class Pairs:
    """Neighbouring accesses that conflict, first before second, by atom; those of products are only there. Each is
    there with the first of its atoms; with others too only where they are no more than accesses of atoms. bounds: bytes
    where atoms begin. reads: where the first reads.
    """

    first: I32
    second: I32
    atom: I32
    bounds: I64
    reads: Bools
    products: list[Product]

    def asked(self, asked: Asked) -> I64:
        """Numbers of the single pairs that are asked for."""
        if asked == "all":
            return np.arange(len(self.first))
        return np.flatnonzero(self.reads if asked == "reads" else ~self.reads)

    def products_asked(self, asked: Asked) -> list[int]:
        return [n for n, one in enumerate(self.products) if asked == "all" or one.reads == (asked == "reads")]

    def some(self, asked: Asked) -> bool:
        """Are there such pairs?"""
        if self.products_asked(asked) or asked == "all":
            return len(self.first) > 0 or len(self.products) > 0
        return bool((self.reads == (asked == "reads")).any())


def touches_in(columns: I64, initial: I64, final: I64) -> Touches:
    """Events are positions among the columns; initial and final rows are (lo, hi, value, delta)."""
    before = np.insert(initial, 0, WRITE, axis=1)
    after = np.insert(final, 0, READ, axis=1)
    outside = [np.full(len(edge), OUTSIDE) for edge in (before, after)]
    event = np.concatenate((outside[0], np.arange(len(columns)), outside[1]))
    kind, lo, hi, value, delta = np.concatenate((before, columns, after)).T
    key = np.unique(np.concatenate((lo, hi)))
    first, last = np.searchsorted(key, lo), np.searchsorted(key, hi)
    return Touches(event=event, kind=kind, value=value, delta=delta, first=first, last=last, atom_key=key)


def some_of(touches: Touches, kept: Bools) -> Touches:
    """Without the other touches; atoms stay as they are."""
    return Touches(
        event=touches.event[kept], kind=touches.kind[kept], value=touches.value[kept], delta=touches.delta[kept],
        first=touches.first[kept], last=touches.last[kept], atom_key=touches.atom_key,
    )  # fmt: skip


def alike(touches: Touches, least: int, *more: I64) -> list[I64]:
    """Sets of so many or more reads of the same bytes, and with the same in `more`, with no write between them."""
    reads = np.flatnonzero(touches.kind == READ)
    passed = np.cumsum(touches.kind != READ)
    keys = np.stack((*more, touches.first, touches.last, passed))[:, reads]
    order = by_keys(*keys)
    keys = keys[:, order]
    starts = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(reads)])
    ends = np.append(starts[1:], len(reads))
    some = np.flatnonzero(ends - starts >= least)
    return [reads[order[low:high]] for low, high in zip(starts[some].tolist(), ends[some].tolist(), strict=True)]


def bunches(several: Sequence[T], sizes: list[int], most: int) -> Iterator[list[T]]:
    """Small ones together, because each look costs something; all in one would not fit into the processor's caches."""
    bunch: list[T] = []
    filled = 0
    for one, size in zip(several, sizes, strict=True):
        bunch.append(one)
        filled += size
        if filled >= most:
            yield bunch
            bunch, filled = [], 0
    if bunch:
        yield bunch


def joined(parts: Sequence[I64], lo: int = 1) -> I64:
    """Rows of several buffers one behind the other, as of one; lo: the column where bytes begin."""
    rows = np.concatenate(parts)
    rows[:, lo : lo + 2] += np.repeat(np.arange(len(parts)) * SPAN, [len(part) for part in parts])[:, None]
    return rows


def neighbours(memo: Memo, parts: list[tuple[I64]]) -> list[Pairs]:
    """Of each of several buffers, and of each the same as alone: its pairs are told by their numbers.

    parts: columns as in `in_order.Part`.
    """
    columns = [part for (part,) in parts]
    return [pairs for bunch in bunches(columns, [*map(len, columns)], BUNCH) for pairs in _of_several(bunch)]


def _of_several(parts: list[I64]) -> Iterator[Pairs]:
    nothing = np.zeros((0, 4), np.int64)
    touches = touches_in(joined(parts), nothing, nothing)
    if len(parts) > 1 and touches.incidences > BLOCK:
        # where blocks end, pairs are there once more: that must not depend on the other buffers
        for part in parts:
            yield from _of_several([part])
        return
    sets = [one.astype(np.int32) for one in alike(touches, MANY)]
    kept = np.ones(len(touches.kind), bool)
    for one in sets:
        kept[one[1:]] = False
    first, second, atom = _neighbours(some_of(touches, kept) if sets else touches)
    standing = np.flatnonzero(kept).astype(np.int32)
    first, second = standing.take(first), standing.take(second)
    incidences = np.append(0, np.cumsum(touches.last - touches.first))
    rows = np.cumsum([0, *map(len, parts)]).astype(np.int32).tolist()
    edges = np.searchsorted(touches.atom_key, np.arange(len(parts) + 1) * SPAN).tolist()
    ends = np.searchsorted(atom, edges).tolist()
    for n, ((row, end), (low, high)) in enumerate(zip(pairwise(rows), pairwise(edges), strict=True)):
        mine = slice(ends[n], ends[n + 1])
        pairs = first[mine] - row, second[mine] - row, atom[mine] - low
        if len(pairs[0]) > incidences[end] - incidences[row]:
            pairs = _distinct(pairs, end - row)
        products, pairs = _products([one - row for one in sets if row <= one[0] < end], end - row, pairs)
        reads = parts[n][:, 0].take(pairs[0]) == READ
        yield Pairs(*pairs, touches.atom_key[low:high] - n * SPAN, reads, products)


def _neighbours(touches: Touches) -> Columns:
    """By atom, then second, then first; most pairs once."""
    firsts, seconds, atoms = [EMPTY], [EMPTY], [EMPTY]
    for block in blocks(touches, BLOCK):
        begin, size = before_each(block)
        touch = block.touch.astype(np.int32)
        fresh = np.flatnonzero(~_repeated(block, touch, begin, size) & (size > 0))
        begin, size = begin[fresh], size[fresh]
        upto = np.cumsum(size)
        firsts.append(touch.take(np.repeat(begin - upto + size, size) + np.arange(upto[-1] if len(upto) else 0)))
        seconds.append(np.repeat(touch.take(fresh), size))
        atoms.append(np.repeat(block.atom.take(fresh).astype(np.int32), size))
    first, second, atom = (np.concatenate(column) for column in (firsts, seconds, atoms))
    return first, second, atom


def _repeated(block: Block, touch: I32, begin: I64, size: I64) -> Bools:
    """Has the touch the same few before it on the atom before this one, which it touches too?"""
    by_touch = np.empty(len(touch), np.int64)
    by_touch[block.place] = np.arange(len(touch))
    sizes, touched = size.take(by_touch), touch.take(by_touch)
    same = (sizes[1:] == sizes[:-1]) & (touched[1:] == touched[:-1]) & (sizes[1:] > 0) & (sizes[1:] <= FEW)
    at = np.flatnonzero(same)
    sizes, here, there = sizes.take(at + 1), begin.take(by_touch.take(at + 1)), begin.take(by_touch.take(at))
    left = np.arange(len(at))
    for n in range(int(sizes.max(initial=0))):
        left = left[sizes.take(left) > n]
        unlike = left[touch.take(here.take(left) + n) != touch.take(there.take(left) + n)]
        sizes[unlike] = 0
    found = np.zeros(len(touch), bool)
    found[by_touch[at[sizes > 0] + 1]] = True
    return found


def _distinct(pairs: Columns, accesses: int) -> Columns:
    """The first of each sort of pairs."""
    first, second, atom = pairs
    keys = first.astype(np.int64) * accesses + second
    order = by_keys(keys)
    again = keys[order[1:]] == keys[order[:-1]]
    found = np.ones(len(keys), bool)
    found[order[1:][again]] = False
    return first[found], second[found], atom[found]


def _products(sets: list[I32], accesses: int, pairs: Columns) -> tuple[list[Product], Columns]:
    """Products, and the pairs that are none, of pairs of accesses that stand for those of their sets."""
    if not sets:
        return [], pairs
    first, second, atom = pairs
    of = np.full(accesses, -1, np.int64)
    of[[one[0] for one in sets]] = np.arange(len(sets))
    before, after = of.take(first), of.take(second)
    found = [Product(s, second[at], atom[at], True) for s, at in zip(sets, _by_set(before, len(sets)), strict=True)]
    found += [Product(first[at], s, atom[at], False) for s, at in zip(sets, _by_set(after, len(sets)), strict=True)]
    single = (before < 0) & (after < 0)
    return [one for one in found if len(one.atom)], (first[single], second[single], atom[single])


def _by_set(of: I64, count: int) -> list[I64]:
    """Places of each set among these."""
    at = np.flatnonzero(of >= 0)
    at = at[by_key(of[at])]
    ends = np.searchsorted(of[at], np.arange(count + 1)).tolist()
    return [at[low:high] for low, high in pairwise(ends)]
