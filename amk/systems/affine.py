"""Numbers that depend on the lap of a loop: `slope * k + table[k mod P]`.

Property: closed under sums, products with integers, `% constant` and `// constant`; the value at every lap is the
integer that Python's own operators give. Anything else (products of laps, division by a lap) is a TypeError, and
remainders that repeat only after more than `MAX_PERIOD` laps a ValueError. A lap's number is no condition: comparing it
with an integer, or asking whether it is true, is a TypeError, because one code stands for all laps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from math import lcm
from typing import Final, NoReturn

MAX_PERIOD: Final = 64
"""Laps after which everything but the slope must repeat."""
NO_CONDITION: Final = "a lap's number is no condition: write laps that differ before the loop or behind it"


@dataclass(frozen=True, eq=False)
class Index:
    """slope * k + table[k mod len(table)]."""

    slope: Fraction = Fraction(1)
    table: tuple[Fraction, ...] = (Fraction(0),)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Index):
            raise TypeError(NO_CONDITION)
        return self.slope == other.slope and self.table == other.table

    def __hash__(self) -> int:
        return hash((self.slope, self.table))

    def __bool__(self) -> NoReturn:
        raise TypeError(NO_CONDITION)

    def __lt__(self, other: object) -> NoReturn:
        raise TypeError(NO_CONDITION)

    __le__ = __gt__ = __ge__ = __lt__

    @classmethod
    def of(cls, value: object) -> Index:
        if isinstance(value, Index):
            return value
        if type(value) is not int:
            raise TypeError(f"{str(value)[:40]!r} is neither an integer nor made of a lap's number")
        return cls(Fraction(0), (Fraction(value),))

    @classmethod
    def stepped(cls, step: int, table: Sequence[int]) -> Index:
        """step * (k // P) + table[k % P], for a table of P entries."""
        slope = Fraction(step, len(table))
        return cls(slope, _shortest(tuple(entry - slope * lap for lap, entry in enumerate(table))))

    @property
    def period(self) -> int:
        """Laps after which the value has grown by `step` and all is alike otherwise."""
        return lcm(len(self.table), self.slope.denominator)

    def at(self, lap: int) -> int:
        value = self.slope * lap + self.table[lap % len(self.table)]
        if value.denominator != 1:
            raise ValueError(f"the value at lap {lap} is {value}, which is no integer")
        return int(value)

    def step(self, period: int) -> int:
        """How much more the value is `period` laps later; period: a multiple of `self.period`."""
        return int(self.slope * period)

    def __add__(self, other: object) -> Index:
        right = Index.of(other)
        size = _bounded(lcm(len(self.table), len(right.table)))
        table = (self.table[k % len(self.table)] + right.table[k % len(right.table)] for k in range(size))
        return Index(self.slope + right.slope, _shortest(tuple(table)))

    __radd__ = __add__

    def __mul__(self, by: object) -> Index:
        if type(by) is not int:
            raise TypeError("a lap's number is multiplied by integers alone")
        return Index(self.slope * by, _shortest(tuple(entry * by for entry in self.table)))

    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: object) -> Index:
        return self + -Index.of(other)

    def __rsub__(self, other: object) -> Index:
        return Index.of(other) + -self

    def __mod__(self, size: object) -> Index:
        if type(size) is not int or size < 1:
            raise TypeError("the divisor of a remainder or quotient is a positive integer")
        repeats = (self.period * n for n in count(1))
        period = next(p for p in repeats if _bounded(p) and int(self.slope * p) % size == 0)
        return Index(Fraction(0), _shortest(tuple(Fraction(self.at(k) % size) for k in range(period))))

    def __floordiv__(self, size: object) -> Index:
        whole = self - self % size
        assert type(size) is int
        return Index(whole.slope / size, tuple(entry / size for entry in whole.table))


def _bounded(period: int) -> int:
    if period > MAX_PERIOD:
        raise ValueError(f"remainders that repeat after {period} laps; at most {MAX_PERIOD}")
    return period


def _shortest(table: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    for size in range(1, len(table)):
        if len(table) % size == 0 and table == table[:size] * (len(table) // size):
            return table[:size]
    return table
