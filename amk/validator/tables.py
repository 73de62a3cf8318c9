"""What an evaluation reads by name: loop variables, worker, position and the schedule's tables."""

from __future__ import annotations

from collections.abc import Sequence

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

    def column(self, name: str, loops: dict[str, int], workers: range, pos: Sequence[int]) -> Sequence[int]:
        """What these workers read under the name."""
        if name in loops:
            return [loops[name]] * len(workers)
        if name in ("worker", "pos"):
            return workers if name == "worker" else pos
        return self.lists[name][workers.start : workers.stop]
