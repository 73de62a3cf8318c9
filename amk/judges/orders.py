"""Interleavings that look for missing order: every agent has a priority, and now and then the running one loses it.

Source: Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs", ASPLOS 2010. With d
changes at random places a run finds a race that takes d + 1 ordering decisions with probability at least
1 / (agents * events^d); taking any ready event at random finds deep ones far more rarely.
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from typing import Any

from amk.interpreter.order import Order, named_order

CHANGES, WITHIN = 3, 3_000
"""Changes of priority, and the number of events that they are spread over."""


class TooLong(Exception):
    """More events than a run was given."""


class Priorities:
    """The ready event of the highest priority goes next; equal seeds give equal runs."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._rank: dict[tuple[int, int, int], float] = {}
        self._heap: list[tuple[float, int, Any]] = []
        self._changes = {self._random.randrange(WITHIN) for _ in range(CHANGES)}
        self._pushed = self._popped = 0

    def push(self, event: Any) -> None:
        key = _key(event)
        if key not in self._rank:
            self._rank[key] = self._random.random()
        self._pushed += 1
        heappush(self._heap, (self._rank[key], self._pushed, event))

    def pop(self) -> Any:
        event = heappop(self._heap)[2]
        self._popped += 1
        if self._popped in self._changes:
            self._rank[_key(event)] = 1.0 + self._popped
        return event

    def __len__(self) -> int:
        return len(self._heap)


def _key(event: Any) -> tuple[int, int, int]:
    return (1, event.worker, event.ring.agent) if event.is_copy else (0, event.worker, event.warp)


class Bounded:
    """An order that ends the run with TooLong after so many events."""

    def __init__(self, order: Order[Any], events: int) -> None:
        self._order, self._left = order, events
        self.push = order.push

    def pop(self) -> Any:
        self._left -= 1
        if self._left < 0:
            raise TooLong
        return self._order.pop()

    def __len__(self) -> int:
        return len(self._order)


def order_of(name: str) -> Order[Any]:
    """`priorities:SEED`, or what the machine calls an order. ValueError for anything else."""
    kind, _, number = name.partition(":")
    if kind == "priorities" and number.isdecimal():
        return Priorities(int(number))
    return named_order(name)
