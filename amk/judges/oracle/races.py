"""Races by their definition: of two segments that share a byte which one of them writes, leaving out the one that comes
first in some execution must keep the other from ever starting. By which edges depends on what they do:

    a write, then any access of plain memory, or another write of tagged words     fence
    a read of plain memory, then a write                                           word
    a read of tagged words, then a write of a later tag                            block

Tags of a word only grow: a write with no later tag than another's before it, or a read of an earlier one, is a race
too. The pairs are not listed: for each segment that is left out one bit says where it touches what
(`order.Order.started`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from amk.judges.oracle.flatten import Spelled
from amk.judges.oracle.order import Order
from amk.judges.oracle.stretches import Stretches
from amk.judges.oracle.touched import Touched
from amk.schedule_ir.expr import IntArray


@dataclass(frozen=True, eq=False)
class Orders:
    """Of the three kinds of edges (see `flatten`)."""

    block: Order
    word: Order
    fence: Order


@dataclass(frozen=True, eq=False)
class Side:
    """Accesses of one side of a question. segment, first, stop (stretches): columns; level: an earlier access matters
    to a later one of a higher level only."""

    segment: IntArray
    first: IntArray
    stop: IntArray
    level: IntArray

    @staticmethod
    def of(touched: Touched, cut: Stretches, rows: IntArray, level: IntArray) -> Side:
        keep = cut.first[rows] < cut.stop[rows]
        rows = rows[keep]
        return Side(touched.segment[rows], cut.first[rows], cut.stop[rows], level[keep])

    def by_segment(self) -> dict[int, list[tuple[int, int, int]]]:
        found = defaultdict(list)
        columns = (self.segment, self.first, self.stop, self.level)
        for segment, *row in zip(*(column.tolist() for column in columns), strict=True):
            found[segment].append(tuple(row))
        return found


def race(spelled: Spelled, touched: Touched, cut: Stretches, tagged: set[int], orders: Orders) -> str | None:
    """A conflicting pair that some execution does not separate, or whose write may stay unseen."""
    words, shared = np.isin(touched.space, sorted(tagged)), _shared(touched, spelled.agent_of)
    if (late := _overtaken(spelled, touched, cut, np.flatnonzero(words & shared), orders.block)) is not None:
        return f"segment {late} touches a word that another agent has given a later tag"
    for order, earlier, later in _questions(touched, cut, words, shared, orders):
        if len(earlier.segment) and len(later.segment) and (pair := _unordered(order, earlier, later)) is not None:
            return f"segments {pair[0]} and {pair[1]} touch a common byte unordered"
    return None


def _shared(touched: Touched, agent_of: IntArray) -> np.ndarray:
    """Rows of spaces that are written, and used by more than one agent."""
    spaces = int(touched.space.max(initial=-1)) + 1
    agent = agent_of[touched.segment]
    least, most = np.full(spaces, len(agent_of)), np.full(spaces, -1)
    np.minimum.at(least, touched.space, agent)
    np.maximum.at(most, touched.space, agent)
    written = np.bincount(touched.space[touched.write], minlength=spaces) > 0
    found: np.ndarray = ((least < most) & written)[touched.space]
    return found


def _questions(
    touched: Touched, cut: Stretches, words: np.ndarray, shared: np.ndarray, orders: Orders
) -> Iterator[tuple[Order, Side, Side]]:
    """(edges, what comes earlier, what comes later). Where both are the same order, `fence` and `word` are one."""
    write, level = touched.write & shared, np.zeros(len(shared), np.int64)
    plain = shared & ~words
    # of plain memory a write matters to all (0 < 1), a read to writes (1 < 2); of words a write to writes (1 < 2)
    before, after = np.where(plain & write, 0, 1), np.where(write, 2, 1)
    asked = [(orders.fence, plain | write, write), (orders.word, write & plain, plain & ~write)]
    if orders.word is orders.fence:
        asked = [(orders.fence, plain | write, plain | write)]
    for order, later, earlier in asked:
        rows, others = np.flatnonzero(earlier), np.flatnonzero(later)
        yield order, Side.of(touched, cut, rows, before[rows]), Side.of(touched, cut, others, after[others])
    level = touched.tag
    rows, others = np.flatnonzero(shared & words & ~write), np.flatnonzero(words & write)
    yield orders.block, Side.of(touched, cut, rows, level[rows]), Side.of(touched, cut, others, level[others])


def _unordered(order: Order, earlier: Side, later: Side) -> tuple[int, int] | None:
    """The first pair of which the second can start without the first, though it comes later in the execution."""
    mine, theirs = earlier.by_segment(), later.by_segment()
    for part, started in order.started(np.unique(earlier.segment)):
        users = Users(part, mine)
        for segment, bits in started:
            for row in theirs.get(segment, ()):
                if bad := bits & users.of(*row):
                    return part[(bad & -bad).bit_length() - 1], segment
    return None


class Users:
    """Which of the segments that are left out touch a stretch, as bits."""

    def __init__(self, part: list[int], rows: dict[int, list[tuple[int, int, int]]]) -> None:
        together: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        for i, segment in enumerate(part):
            for row in rows[segment]:
                together[row] |= 1 << i
        self.at: dict[int, defaultdict[int, int]] = {}
        for (first, stop, level), bits in together.items():
            cover = self.at.setdefault(level, defaultdict(int))
            for stretch in range(first, stop):
                cover[stretch] |= bits
        self.known: dict[tuple[int, int, int], int] = {}

    def of(self, first: int, stop: int, level: int) -> int:
        """Of a lower level, any of these stretches."""
        key = first, stop, level
        if key not in self.known:
            found = 0
            for one, cover in self.at.items():
                if one < level:
                    for stretch in range(first, stop):
                        found |= cover.get(stretch, 0)
            self.known[key] = found
        return self.known[key]


def _overtaken(spelled: Spelled, touched: Touched, cut: Stretches, rows: IntArray, order: Order) -> int | None:
    """The first to touch a word that another agent has given a later tag, or that writes its tag again."""
    agent_of = spelled.agent_of.tolist()
    rows = rows[np.argsort(np.array(order.place, np.int64)[touched.segment[rows]], kind="stable")]
    # of each stretch the latest tag, which agent wrote it, and the latest of all other agents
    top, who, other = [0] * cut.count, [-1] * cut.count, [0] * cut.count
    columns = (touched.segment, cut.first, cut.stop, touched.write, touched.tag)
    for segment, first, stop, write, tag in zip(*(c[rows].tolist() for c in columns), strict=True):
        agent, allowed, here = agent_of[segment], tag - write, range(first, stop)
        if max(top[first:stop], default=0) > allowed and any(
            (other if who[s] == agent else top)[s] > allowed for s in here
        ):
            return int(segment)
        for stretch in here if write else ():
            if who[stretch] != agent:
                other[stretch] = top[stretch]
            if tag > top[stretch]:
                top[stretch], who[stretch] = tag, agent
    return None
