"""One stream of a system with a loop: its calls are those of `Agent`, with numbers that depend on the lap."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import lcm
from typing import Any, Final, Literal, Protocol, Self, get_args

from amk.systems.affine import Index
from amk.systems.names import caller, refuse

Part = Literal["before", "lap", "behind"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
Number = int | Index


@dataclass(frozen=True)
class Named:
    """A counter or buffer by its name; of an array, by name and number."""

    name: str
    number: Index | None = None

    def at(self, lap: int) -> str:
        return self.name if self.number is None else f"{self.name}[{self.number.at(lap)}]"


@dataclass(frozen=True)
class Array:
    """`size` counters, chosen by a number: `full[k % 3]`."""

    name: str
    size: int

    def __getitem__(self, number: Number) -> Named:
        try:
            return Named(self.name, Index.of(number))
        except TypeError as error:
            raise refuse("AMK005", str(error)) from error


Box = tuple[Named, Number, Number]


@dataclass(frozen=True)
class Operation:
    """A call of `Agent`: its counter or buffer and numbers, and the caller's line.

    barrier: where a load's bytes come to; other: the box at the other end of a copy, lo and hi; flag: `arrives` of
    `expect`, `read` of `wait_group`.
    """

    verb: str
    of: Named
    numbers: tuple[Index, ...]
    order: str | None
    value: Any
    source: tuple[str, int]
    barrier: Named | None = None
    other: tuple[Named, Index, Index] | None = None
    flag: bool = False
    proxy: str = "generic"

    @property
    def period(self) -> int:
        named = [self.of.number, None if self.barrier is None else self.barrier.number]
        ends = () if self.other is None else self.other[1:]
        mine = [*self.numbers, *(number for number in named if number is not None), *ends]
        mine += [part for part in parts_of(self.value) if isinstance(part, Index)]
        return lcm(*(index.period for index in mine))


NOTHING: Final = Named("")
"""What an operation is of that has neither a counter nor a buffer."""


def parts_of(value: Any) -> tuple[Any, ...]:
    """A value that is no tuple is the only part."""
    return value if isinstance(value, tuple) else (value,)


class Placing(Protocol):
    """What an agent takes of its system."""

    place: tuple[str, int] | None


class LoopAgent:
    """One stream of operations in program order, with at most one loop."""

    def __init__(self, system: Placing, name: str, place: dict[str, int]) -> None:
        self.system, self.name, self.place = system, name, place
        self.code: dict[Part, list[Operation]] = {part: [] for part in PARTS}
        self.part: Part = "before"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @contextmanager
    def loop(self) -> Iterator[Index]:
        """Laps 0 to N - 1; what it gives is the number of the lap."""
        if self.part != "before":
            raise refuse("AMK205", f"{self.name} has a second loop; one loop with an open number of laps is decided")
        self.part = "lap"
        yield Index()
        self.part = "behind"

    def wait(self, counter: Named, at_least: Number, order: Literal["acquire", "relaxed"] = "acquire") -> None:
        self._add("wait", counter, (at_least,), order)

    def signal(self, counter: Named, amount: Number = 1, order: Literal["release", "relaxed"] = "release") -> None:
        self._add("signal", counter, (amount,), order)

    def read(self, buffer: Named, lo: Number, hi: Number, value: object = None, proxy: str = "generic") -> None:
        self._add("read", buffer, (lo, hi), None, value, proxy=proxy)

    def write(self, buffer: Named, lo: Number, hi: Number, value: object = None, proxy: str = "generic") -> None:
        self._add("write", buffer, (lo, hi), None, value, proxy=proxy)

    def add(self, buffer: Named, lo: Number, hi: Number, value: object = None, proxy: str = "generic") -> None:
        self._add("add", buffer, (lo, hi), None, value, proxy=proxy)

    def arrive(self, barrier: Named, count: Number = 1, order: Literal["release", "relaxed"] = "release") -> None:
        self._add("arrive", barrier, (count,), order)

    def expect(self, barrier: Named, size: Number, arrives: bool = True) -> None:
        self._add("expect", barrier, (size,), flag=arrives)

    def wait_parity(self, barrier: Named, parity: Number, order: Literal["acquire", "relaxed"] = "acquire") -> None:
        self._add("wait_parity", barrier, (parity,), order)

    def wait_others(self, barrier: Named) -> None:
        self._add("wait_others", barrier, ())

    def sync(self, barrier: Named) -> None:
        self.arrive(barrier)
        self.wait_others(barrier)

    def fence_async(self) -> None:
        self._add("fence_async", NOTHING, ())

    def load(self, origin: Box | None, target: Box, barrier: Named, value: object = None) -> None:
        self._add("load", target[0], target[1:], None, value, barrier=barrier, other=self._box(origin))

    def store(self, source: Box, target: Box | None, value: object = None) -> None:
        self._add("store", source[0], source[1:], None, value, other=self._box(target))

    def commit(self) -> None:
        self._add("commit", NOTHING, ())

    def wait_group(self, most: int = 0, read: bool = False) -> None:
        if type(most) is not int:
            raise refuse("AMK005", "the number of groups is an integer")
        self._add("wait_group", NOTHING, (most,), flag=read)

    def _box(self, box: Box | None) -> tuple[Named, Index, Index] | None:
        if box is None:
            return None
        lo, hi = self._numbers(box[1:])
        return box[0], lo, hi

    def _numbers(self, numbers: tuple[Number, ...]) -> tuple[Index, ...]:
        try:
            indices = tuple(Index.of(number) for number in numbers)
        except TypeError as error:
            raise refuse("AMK005", str(error)) from error
        if self.part == "before" and any(index.slope or index.period > 1 for index in indices):
            message = "a lap's number is for the loop, and the number of laps for behind it: `with agent.loop(): pass`"
            raise refuse("AMK005", message)
        return indices

    def _add(
        self, verb: str, of: object, numbers: tuple[Number, ...], order: str | None = None, value: object = None,
        **more: Any,
    ) -> None:  # fmt: skip
        if not isinstance(of, Named):
            raise refuse("AMK009", f"{str(of)[:40]!r} is no counter or buffer of this system")
        indices, place = self._numbers(numbers), self.system.place or caller()
        self.code[self.part].append(Operation(verb, of, indices, order, value, place, **more))

    def events(self, laps: int) -> Iterator[tuple[Operation, int]]:
        """Its operations for this number of laps, each with the number that stands for `k` in it."""
        yield from ((operation, 0) for operation in self.code["before"])
        for lap in range(laps):
            yield from ((operation, lap) for operation in self.code["lap"])
        yield from ((operation, laps) for operation in self.code["behind"])
