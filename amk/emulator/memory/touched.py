"""Which bytes an instruction touches: a log of ranges, one row for neighbours that a warp touches one after the other.

A row: warp << 32 | pc << 8 | kind, first byte, end; bytes are places of `state`. When the log is full, nothing more is
noted, and TOUCHES_LOST says so.
"""

from __future__ import annotations

from amk.emulator.arithmetic.bits import separate
from amk.emulator.memory.cells import at, to
from amk.emulator.memory.state import TOUCH_LOG, TOUCH_ROOM, TOUCHES, TOUCHES_LOST, TOUCHING

READ, WRITE, COPIED_FROM, COPIED_TO = range(4)
"""Kinds; the last two are of asynchronous copies. An atomic reads and writes."""
COLUMNS = 3


@separate
def touch(grid: int, warp: int, pc: int, kind: int, place: int, size: int) -> None:
    if at(grid, TOUCHING) == 0:
        return
    count, key = at(grid, TOUCHES), warp << 32 | pc << 8 | kind
    row = at(grid, TOUCH_LOG) + 24 * (count - 1)
    if count and at(row, 0) == key and at(row, 1) <= place <= at(row, 2):
        to(row, 2, max(at(row, 2), place + size))
        return
    if count == at(grid, TOUCH_ROOM):
        to(grid, TOUCHING, 0)
        to(grid, TOUCHES_LOST, 1)
        return
    row += 24
    to(row, 0, key)
    to(row, 1, place)
    to(row, 2, place + size)
    to(grid, TOUCHES, count + 1)
