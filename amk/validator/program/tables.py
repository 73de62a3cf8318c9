"""What an evaluation reads by name: loop variables, worker, position and the schedule's tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import numpy as np

from amk.schedule_ir.expr import IntArray
from amk.schedule_ir.schedule import Schedule


class Tables:
    """The columns of a schedule's tables: as lists, as arrays, and as bytes to compare them by."""

    def __init__(self, schedule: Schedule) -> None:
        self.arrays: dict[str, IntArray] = {n: np.array(c, dtype=np.int64) for n, c in schedule.tables.items()}
        for column in self.arrays.values():
            column.setflags(write=False)
        self.lists = {name: list(column) for name, column in schedule.tables.items()}
        self._bytes: dict[str, bytes] = {}

    def columns(self, names: tuple[str, ...]) -> tuple[bytes, ...]:
        for name in names:
            if name not in self._bytes:
                self._bytes[name] = self.arrays[name].tobytes() if name in self.arrays else b"absent"
        return tuple(self._bytes[name] for name in names)

    def value(self, name: str, loops: dict[str, int], worker: int, pos: int) -> int:
        """What a worker reads under the name."""
        if name in loops:
            return loops[name]
        if name in ("worker", "pos"):
            return worker if name == "worker" else pos
        return self.lists[name][worker]


T = TypeVar("T")


class Read(Protocol):
    """What was made of tables, among other things. names: those tables."""

    @property
    def names(self) -> tuple[str, ...]: ...


R = TypeVar("R", bound=Read)


class ByColumns(Generic[R]):
    """Results by what they were asked for with, and by the columns of the tables that were read for them."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], list[tuple[tuple[bytes, ...], R]]] = {}

    def get(self, key: tuple[object, ...], tables: Tables, make: Callable[[], R]) -> R:
        """The result with this key whose tables all have the same columns in these, made if there is none."""
        found = self.find(key, tables)
        return self.put(key, tables, make()) if found is None else found

    def find(self, key: tuple[object, ...], tables: Tables) -> R | None:
        """The result with this key whose tables all have the same columns in these."""
        for columns, found in self._made.get(key, ()):
            if columns == tables.columns(found.names):
                return found
        return None

    def put(self, key: tuple[object, ...], tables: Tables, found: R) -> R:
        self._made.setdefault(key, []).append((tables.columns(found.names), found))
        return found

    def results(self) -> list[R]:
        return [found for made in self._made.values() for _, found in made]
