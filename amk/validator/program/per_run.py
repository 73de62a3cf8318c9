"""Integers of several runs of a step at once: what an op computes with when it is evaluated for all of them.

A *run* of a step is one of its warps, on one worker, in one iteration. A `PerRun` holds an integer for each run and
stands where the op expects one. Arithmetic is done for each of them. Where the op decides by one (a comparison, a
range, a key), all of them must decide alike; otherwise `Differ` says who does what, and the caller evaluates the op
again for each of these groups. Integers that all runs share, hence those of a single run, are plain ones. So what is
found for a run is what the op says of it alone, whatever the op computes: nothing is assumed about how bytes follow
from workers, warps or layers. Python's integers have no end: a result that might leave 62 bits parts the runs too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import numpy as np

from amk.validator.program.system import I64, Bools

LIMIT: Final = 1 << 62


class Differ(Exception):
    """labels [n]: equal for those runs that go the same way; at least two are different."""

    def __init__(self, labels: I64 | Bools) -> None:
        super().__init__()
        self.labels = labels


class PerRun:
    """values [n], n at least 2, all of them in low..high."""

    __slots__ = ("high", "low", "values")

    def __init__(self, values: I64, low: int, high: int) -> None:
        self.values, self.low, self.high = values, low, high

    def __add__(self, other: PerRun | int) -> PerRun:
        low, high = _ends(other)
        return self._made(np.add, other, self.low + low, self.high + high)

    __radd__ = __add__

    def __neg__(self) -> PerRun:
        return PerRun(-self.values, -self.high, -self.low)

    def __sub__(self, other: PerRun | int) -> PerRun:
        return self + -other

    def __rsub__(self, other: int) -> PerRun:
        return -self + other

    def __mul__(self, other: PerRun | int) -> PerRun:
        low, high = _ends(other)
        ends = self.low * low, self.low * high, self.high * low, self.high * high
        return self._made(np.multiply, other, min(ends), max(ends))

    __rmul__ = __mul__

    def __floordiv__(self, other: PerRun | int) -> PerRun | int:
        if isinstance(other, PerRun) or other <= 0:
            return int(self) // int(other)
        return self._made(np.floor_divide, other, self.low // other, self.high // other)

    def __mod__(self, other: PerRun | int) -> PerRun | int:
        if isinstance(other, PerRun) or other <= 0:
            return int(self) % int(other)
        return self._made(np.remainder, other, 0, other - 1)

    def __divmod__(self, other: PerRun | int) -> tuple[PerRun | int, PerRun | int]:
        return self // other, self % other

    def __rfloordiv__(self, other: int) -> int:
        return other // int(self)

    def __rmod__(self, other: int) -> int:
        return other % int(self)

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        return divmod(other, int(self))

    def __lt__(self, other: PerRun | int) -> bool:
        return self._decided(operator.lt, other)

    def __le__(self, other: PerRun | int) -> bool:
        return self._decided(operator.le, other)

    def __gt__(self, other: PerRun | int) -> bool:
        return self._decided(operator.gt, other)

    def __ge__(self, other: PerRun | int) -> bool:
        return self._decided(operator.ge, other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerRun | int) and self._decided(operator.eq, other)

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        """Also `int`, and what ranges and `gcd` ask for."""
        first = int(self.values[0])
        if (self.values != first).any():
            raise Differ(self.values)
        return first

    def __hash__(self) -> int:
        return hash(int(self))

    def _made(self, function: Callable[..., I64], other: PerRun | int, low: int, high: int) -> PerRun:
        if min(low, _ends(other)[0]) < -LIMIT or max(high, _ends(other)[1]) > LIMIT:
            raise Differ(np.arange(len(self.values)))
        return PerRun(function(self.values, other.values if isinstance(other, PerRun) else other), low, high)

    def _decided(self, compare: Callable[[Any, Any], Any], other: PerRun | int) -> bool:
        truth = compare(self.values, other.values if isinstance(other, PerRun) else other)
        if truth.all():
            return True
        if truth.any():
            raise Differ(truth)
        return False


def _ends(number: PerRun | int) -> tuple[int, int]:
    return (number.low, number.high) if isinstance(number, PerRun) else (number, number)


def per_run(values: I64) -> int:
    """What stands for these integers of several runs: a plain one if they are equal."""
    low, high = int(values.min()), int(values.max())
    return low if low == high else cast(int, PerRun(values, low, high))


def unfolded(numbers: Sequence[Sequence[int]], count: int) -> I64:
    """[count, n, columns] the integers of all runs that the [n][columns] `numbers` stand for."""
    cells: list[list[object]] = [list(row) for row in numbers]
    plain = [[0 if isinstance(cell, PerRun) else cell for cell in row] for row in cells]
    out = np.repeat(np.array([plain], np.int64), count, axis=0)
    for n, row in enumerate(cells):
        for column, cell in enumerate(row):
            if isinstance(cell, PerRun):
                out[:, n, column] = cell.values
    return out


def at(number: int, run: int) -> int:
    """The integer of one run."""
    values: object = number
    return int(values.values[run]) if isinstance(values, PerRun) else number
