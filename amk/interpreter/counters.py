"""Increment-only counters and CTA barriers, and who waits on them. Generic in the waiter."""

from __future__ import annotations

from typing import Generic, TypeVar

from amk.interpreter.fault import Fault, OutOfBounds
from amk.schedule_ir.memory import Counter

W = TypeVar("W")


class CounterFamily(Generic[W]):
    """The counters of one declaration; values live as long as the machine."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self.values = [counter.init] * counter.count
        self._waiters: dict[int, list[tuple[int, W]]] = {}

    def place(self, index: tuple[int, ...]) -> int:
        """Flat position of `index`; a fault if it is not one of the family."""
        shape = self._counter.shape
        if len(index) != len(shape) or any(not 0 <= i < n for i, n in zip(index, shape, strict=False)):
            raise OutOfBounds(f"counter {self._counter.name}{list(index)} is outside its shape {list(shape)}")
        flat = 0
        for i, n in zip(index, shape, strict=True):
            flat = flat * n + i
        return flat

    def add(self, flat: int, amount: int) -> list[W]:
        """Increment; returns the waiters whose threshold is now reached."""
        if amount < 0:
            raise Fault(f"counter {self._counter.name} would be decremented by {-amount}")
        self.values[flat] += amount
        waiting = self._waiters.get(flat)
        if not waiting:
            return []
        value = self.values[flat]
        self._waiters[flat] = [(least, who) for least, who in waiting if least > value]
        return [who for least, who in waiting if least <= value]

    def block(self, flat: int, at_least: int, who: W) -> None:
        self._waiters.setdefault(flat, []).append((at_least, who))

    def forget_waiters(self) -> None:
        self._waiters.clear()


class Barrier(Generic[W]):
    """One named barrier of one worker: arrivals count up, round k of anybody ends at agents * (k + 1) of them."""

    def __init__(self) -> None:
        self.arrivals = 0
        self._waiters: list[tuple[int, W]] = []

    def arrive(self) -> list[W]:
        """Returns those who leave because of this arrival."""
        self.arrivals += 1
        waiting, value = self._waiters, self.arrivals
        if not waiting or min(target for target, _ in waiting) > value:
            return []
        self._waiters = [(target, who) for target, who in waiting if target > value]
        return [who for target, who in waiting if target <= value]

    def block(self, target: int, who: W) -> None:
        self._waiters.append((target, who))
