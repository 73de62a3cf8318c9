"""Which neighbouring accesses chains do not order, as pairs and products of pairs (see `neighbours`).

All of a product is ordered if what all second accesses see, the least of their clocks, shows each of the first ones;
a first one that it does not show is put to each clock.

Cost: of products that are ordered, the clocks of the second accesses; of those left open, their pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from amk.validator.brackets import Places, Views, chained, views
from amk.validator.memo import Memo
from amk.validator.neighbours import BUNCH, NOTHING, Asked, Columns, Pairs, Product, bunches
from amk.validator.order import Clocks
from amk.validator.sorting import by_keys
from amk.validator.system import I32, I64, Bools

CELLS: Final = 1 << 16
"""Entries of clocks that are looked at together."""
SOME: Final = 4096
"""Open pairs that are put into order at once."""
Precedes = Callable[[I64, I64], Bools]
"""Of nodes before others: elementwise, or of every pair."""


@dataclass(frozen=True, eq=False)
class Open:
    """Pairs that are not ordered. at: numbers of single ones; products: numbers of products, with which of their pairs
    [seconds, firsts], some of each.
    """

    at: I64
    products: tuple[tuple[int, Bools], ...] = ()

    @staticmethod
    def all(pairs: Pairs, asked: Asked) -> Open:
        whole = ((n, pairs.products[n]) for n in pairs.products_asked(asked))
        return Open(pairs.asked(asked), tuple((n, np.ones((len(p.second), len(p.first)), bool)) for n, p in whole))

    def __bool__(self) -> bool:
        return len(self.at) > 0 or len(self.products) > 0


def split(numbers: list[I64], some: Bools) -> list[I64]:
    """Some of the numbers; `some` is about all of them in turn."""
    ends = np.cumsum([0, *map(len, numbers)]).tolist()
    return [at[some[low:high]] for at, (low, high) in zip(numbers, pairwise(ends), strict=True)]


def unordered_places(memo: Memo, asked: Asked, clocks: Clocks, parts: list[tuple[Pairs, I32]]) -> list[Open]:
    """The pairs of each (pairs, places) that chains leave unordered; places: the fields of `Places`."""
    shown = views(clocks, Places(*np.concatenate([places for _, places in parts], axis=1)))
    base = np.cumsum([0, *(places.shape[1] for _, places in parts)]).astype(np.int32).tolist()
    numbers = [pairs.asked(asked) for pairs, _ in parts]
    single: list[I64] = []
    every = [(pairs, at, low) for (pairs, _), at, low in zip(parts, numbers, base, strict=False)]
    for bunch in bunches(every, [len(at) for at in numbers], BUNCH):
        before, after = (
            np.concatenate([_some(side, at) + low for side, at, low in sides])
            for sides in (
                [(pairs.first, at, low) for pairs, at, low in bunch],
                [(pairs.second, at, low) for pairs, at, low in bunch],
            )
        )
        single += split([at for _, at, _ in bunch], ~chained(shown, shown, before, after))
    places = [(n, k, base[n]) for n, (pairs, _) in enumerate(parts) for k in pairs.products_asked(asked)]
    products = [parts[n][0].products[k] for n, k, _ in places]
    ends = [(one.first + low, one.second + low) for one, (*_, low) in zip(products, places, strict=True)]
    found: list[list[tuple[int, Bools]]] = [[] for _ in parts]
    for (n, k, _), left in zip(places, open_products(shown, ends), strict=True):
        if left is not None:
            found[n].append((k, left))
    return [Open(at, tuple(left)) for at, left in zip(single, found, strict=True)]


def _some(column: I32, numbers: I64) -> I32:
    """column[numbers]; of distinct numbers in order, all or some."""
    return column if len(numbers) == len(column) else column[numbers]


def open_products(shown: Views, products: list[tuple[I32, I32]]) -> Iterator[Bools | None]:
    """[seconds, firsts] which of the pairs of nodes (firsts, seconds) chains leave open, None if there are none."""
    agents = max(shown.rows.shape[1], 1)
    for bunch in bunches(products, [len(second) * agents for _, second in products], CELLS):
        if not shown.rows.shape[1]:
            yield from (np.ones((len(second), len(first)), bool) for first, second in bunch)
            continue
        clocks = _clocks(shown, np.concatenate([second for _, second in bunch]))
        ends = np.cumsum([0, *(len(second) for _, second in bunch)])
        least = np.minimum.reduceat(clocks, ends[:-1], axis=0)
        which = np.repeat(np.arange(len(bunch)), [len(first) for first, _ in bunch])
        first = np.concatenate([first for first, _ in bunch])
        seen = np.zeros(len(first), bool)
        for agent, until in _chains(shown, first):
            seen |= least[which, agent] > until
        upto = np.cumsum([0, *(len(one) for one, _ in bunch)])
        for n in range(len(bunch)):
            left = np.flatnonzero(~seen[upto[n] : upto[n + 1]])
            yield _each(shown, bunch[n][0], left, clocks[ends[n] : ends[n + 1]]) if len(left) else None


def _each(shown: Views, first: I32, left: I64, clocks: I32) -> Bools | None:
    """Of the firsts these are put to every clock, all others are ordered."""
    seen = np.zeros((len(clocks), len(left)), bool)
    for agent, until in _chains(shown, first[left]):
        seen |= clocks.take(agent, axis=1) > until
    if seen.all():
        return None
    found = np.zeros((len(clocks), len(first)), bool)
    found[:, left] = ~seen
    return found


def _chains(shown: Views, nodes: I32) -> Iterator[tuple[I32, I32]]:
    """(agent, hi) of the nodes, chain by chain."""
    return ((shown.agent[nodes, a], shown.hi[nodes, a]) for a in range(shown.agent.shape[1]))


def _clocks(shown: Views, nodes: I32) -> I32:
    """[nodes, agents] all that is seen from each."""
    found: I32 = shown.rows.take(shown.row[nodes, 0], axis=0)
    for d in range(shown.own.shape[1]):
        own = shown.own[nodes, d]
        there = np.flatnonzero(own >= 0)
        if d and len(there):
            found[there] = np.maximum(found[there], shown.rows.take(shown.row[nodes[there], d], axis=0))
        cell = there, own[there]
        found[cell] = np.maximum(found[cell], shown.value[nodes[there], d])
    return found


def by_atoms(pairs: Pairs, opens: list[Open]) -> Iterator[Columns]:
    """(first, second, atom) of all open pairs, some at a time, by atom, then second, then first."""
    at = np.sort(np.concatenate([NOTHING, *(one.at for one in opens)]))
    products = [(pairs.products[n], left) for one in opens for n, left in one.products]
    if not products:
        for start in range(0, len(at), SOME):
            some = at[start : start + SOME]
            yield pairs.first[some], pairs.second[some], pairs.atom[some]
        return
    sizes = [(p.atom, left.sum(axis=1 if p.reads else 0)) for p, left in products]
    sizes.append((pairs.atom[at], np.ones(len(at), np.int64)))
    count = np.zeros(len(pairs.bounds), np.int64)
    for atom, size in sizes:
        np.add.at(count, atom, size)
    for atoms in bunches(list(enumerate(count.tolist())), count.tolist(), SOME):
        low, high = atoms[0][0], atoms[-1][0] + 1
        some = at[slice(*np.searchsorted(pairs.atom[at], (low, high)))]
        found = [(pairs.first[some], pairs.second[some], pairs.atom[some])]
        found += [_within(product, left, low, high) for product, left in products]
        first, second, atom = (np.concatenate(column) for column in zip(*found, strict=True))
        order = by_keys(*(column.astype(np.int64) for column in (first, second, atom)))
        yield first[order], second[order], atom[order]


def _within(product: Product, left: Bools, low: int, high: int) -> Columns:
    """(first, second, atom) of what is left of a product on these atoms."""
    here = (product.atom >= low) & (product.atom < high)
    s, f = np.nonzero(left & (here[:, None] if product.reads else here))
    return product.first[f], product.second[s], product.atom[s if product.reads else f]


def closed(
    parts: list[tuple[Pairs, I64]], opens: list[Open], precedes: Precedes, among: Precedes | None = None
) -> list[Open]:
    """What is still open of each (pairs, nodes) when an order has been asked once, about all of it; of products only
    about the pairs that `among` (firsts, seconds) says, [seconds, firsts]."""
    some = [n for n, one in enumerate(opens) if one]
    if not some:
        return opens
    sides, cells = [], []
    for n in some:
        pairs, node = parts[n]
        sides.append(np.stack((node[pairs.first[opens[n].at]], node[pairs.second[opens[n].at]])))
        for k, left in opens[n].products:
            first, second = node[pairs.products[k].first], node[pairs.products[k].second]
            s, f = np.nonzero(left if among is None else left & among(first, second))
            sides.append(np.stack((first[f], second[s])))
            cells.append((s, f))
    before, after = np.concatenate(sides, axis=1)
    ordered = (before == after) | precedes(before, after)
    found = list(opens)
    if ordered.any():
        done = iter(np.split(ordered, np.cumsum([side.shape[1] for side in sides[:-1]])))
        cell = iter(cells)
        for n in some:
            found[n] = Open(opens[n].at[~next(done)], _without(opens[n].products, done, cell))
    return found


def _without(
    products: tuple[tuple[int, Bools], ...], done: Iterator[Bools], cells: Iterator[tuple[I64, I64]]
) -> tuple[tuple[int, Bools], ...]:
    """What is left of products without the next cells that are done."""
    found = []
    for k, before in products:
        (s, f), over, left = next(cells), next(done), before.copy()
        left[s[over], f[over]] = False
        if left.any():
            found.append((k, left))
    return tuple(found)
