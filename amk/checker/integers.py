"""Integers of several environments, with which an op computes its accesses once for all that it treats alike.

An `Integers` holds a number for each environment, and arithmetic is done for each of them. Where Python has to know
one number (a comparison, a range, a key), all environments must give the same answer; otherwise `Diverged` says which
go together, and the caller evaluates the op again for each of these sets. A set of one computes with plain integers.
So every environment gets what the op gives it alone. Results that might leave 62 bits part the environments too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
LIMIT: Final = 1 << 62


class Diverged(Exception):
    """labels [n]: environments with equal labels go on together; at least two labels differ."""

    def __init__(self, labels: npt.NDArray[Any]) -> None:
        super().__init__()
        self.labels = labels


class Integers:
    """values [n], n at least 2, none larger than `bound` in absolute value."""

    __slots__ = ("bound", "values")

    def __init__(self, values: I64, bound: int) -> None:
        self.values, self.bound = values, bound

    def __add__(self, other: Any) -> Integers:
        return self._combine(np.add, other, self.bound + _bound(other))

    def __sub__(self, other: Any) -> Integers:
        return self._combine(np.subtract, other, self.bound + _bound(other))

    def __mul__(self, other: Any) -> Integers:
        return self._combine(np.multiply, other, self.bound * _bound(other))

    def __neg__(self) -> Integers:
        return Integers(-self.values, self.bound)

    def __rsub__(self, other: int) -> Integers:
        return -self + other

    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, Integers) or other <= 0:
            return int(self) // int(other)
        return self._combine(np.floor_divide, other, self.bound + 1)

    def __mod__(self, other: Any) -> Any:
        if isinstance(other, Integers) or other <= 0:
            return int(self) % int(other)
        return self._combine(np.remainder, other, other)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rfloordiv__(self, other: int) -> int:
        return other // int(self)

    def __rmod__(self, other: int) -> int:
        return other % int(self)

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        return divmod(other, int(self))

    def __lt__(self, other: Any) -> bool:
        return self._decided(operator.lt, other)

    def __le__(self, other: Any) -> bool:
        return self._decided(operator.le, other)

    def __gt__(self, other: Any) -> bool:
        return self._decided(operator.gt, other)

    def __ge__(self, other: Any) -> bool:
        return self._decided(operator.ge, other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Integers | int) and self._decided(operator.eq, other)

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        """Also `int`, and what a range asks for."""
        if (self.values != self.values[0]).any():
            raise Diverged(self.values)
        return int(self.values[0])

    def __hash__(self) -> int:
        return hash(int(self))

    __radd__, __rmul__ = __add__, __mul__

    def _combine(self, function: Callable[..., I64], other: Any, bound: int) -> Integers:
        if max(bound, _bound(other)) > LIMIT:
            raise Diverged(np.arange(len(self.values)))
        return Integers(function(self.values, _values(other)), bound)

    def _decided(self, compare: Callable[[Any, Any], Any], other: Any) -> bool:
        truth = compare(self.values, _values(other))
        if truth.any() and not truth.all():
            raise Diverged(truth)
        return bool(truth[0])


def _bound(number: Any) -> int:
    return number.bound if isinstance(number, Integers) else abs(number)


def _values(number: Any) -> Any:
    return number.values if isinstance(number, Integers) else number


def together(values: I64) -> Any:
    """What stands for these numbers of several environments: a plain one if they are equal."""
    low, high = int(values.min()), int(values.max())
    return low if low == high else Integers(values, max(abs(low), abs(high)))


def columns(rows: list[tuple[Any, ...]], count: int) -> I64:
    """[count, len(rows), columns] what rows of numbers say in each of `count` environments."""
    plain = [[0 if isinstance(number, Integers) else number for number in row] for row in rows]
    found = np.repeat(np.array(plain, np.int64)[None], count, axis=0)
    for n, row in enumerate(rows):
        for column, number in enumerate(row):
            if isinstance(number, Integers):
                found[:, n, column] = number.values
    return found
