"""Which of the ready events happens next: the interleaving.

Every order only ever chooses among events that are enabled, so each of them is a legal interleaving; together they
reach the usual extremes (fair, greedy, one worker as early or as late as possible, copies as late as possible).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Generic, Protocol, TypeVar


class Event(Protocol):
    """Something that is ready to happen; copies are told from agents."""

    worker: int
    is_copy: bool


E = TypeVar("E", bound=Event)


class Order(Protocol[E]):
    """A bag of ready events. `pop` is only called when it is not empty."""

    def push(self, event: E) -> None: ...
    def pop(self) -> E: ...
    def __len__(self) -> int: ...


class RoundRobin(Generic[E]):
    """First ready, first served."""

    def __init__(self) -> None:
        self._queue: deque[E] = deque()
        self.push = self._queue.append
        self.pop = self._queue.popleft

    def __len__(self) -> int:
        return len(self._queue)


class DepthFirst(Generic[E]):
    """One agent runs until it blocks; the last one that became ready goes first."""

    def __init__(self) -> None:
        self._stack: list[E] = []
        self.push = self._stack.append
        self.pop = self._stack.pop

    def __len__(self) -> int:
        return len(self._stack)


class Shuffled(Generic[E]):
    """Any ready event, all equally likely; the seed makes it repeatable."""

    def __init__(self, seed: int) -> None:
        self._bag: list[E] = []
        self._random = Random(seed).random
        self.push = self._bag.append

    def pop(self) -> E:
        bag = self._bag
        at = int(self._random() * len(bag))
        bag[at], bag[-1] = bag[-1], bag[at]
        return bag.pop()

    def __len__(self) -> int:
        return len(self._bag)


class Tiers(Generic[E]):
    """Events of a lower rank always go first; within a rank the order is random."""

    def __init__(self, rank: Callable[[E], int], ranks: int, seed: int) -> None:
        self._rank = rank
        self._bags: list[Shuffled[E]] = [Shuffled(seed + i) for i in range(ranks)]

    def push(self, event: E) -> None:
        self._bags[self._rank(event)].push(event)

    def pop(self) -> E:
        return next(bag for bag in self._bags if len(bag)).pop()

    def __len__(self) -> int:
        return sum(len(bag) for bag in self._bags)


def favour(worker: int, seed: int = 0) -> Order[E]:
    """`worker` goes whenever it can."""
    return Tiers(lambda event: int(event.worker != worker), 2, seed)


def delay(worker: int, seed: int = 0) -> Order[E]:
    """`worker` goes only when no other can."""
    return Tiers(lambda event: int(event.worker == worker), 2, seed)


def late_copies(seed: int = 0) -> Order[E]:
    """A copy completes only when nothing else can happen."""
    return Tiers(lambda event: int(event.is_copy), 2, seed)


def early_copies(seed: int = 0) -> Order[E]:
    """Every copy completes before anything else happens."""
    return Tiers(lambda event: int(not event.is_copy), 2, seed)


def named_order(name: str) -> Order[E]:
    """The order called `name`: round-robin, depth-first, random:SEED, favour:WORKER, delay:WORKER, late-copies or
    early-copies. ValueError for anything else."""
    kind, _, number = name.partition(":")
    plain: dict[str, Callable[[], Order[E]]] = {
        "round-robin": RoundRobin,
        "depth-first": DepthFirst,
        "late-copies": late_copies,
        "early-copies": early_copies,
    }
    numbered: dict[str, Callable[[int], Order[E]]] = {"random": Shuffled, "favour": favour, "delay": delay}
    if kind in plain and not number:
        return plain[kind]()
    if kind in numbered and number.isdecimal():
        return numbered[kind](int(number))
    raise ValueError(f"{name!r} names no interleaving")
