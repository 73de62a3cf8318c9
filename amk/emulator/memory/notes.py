"""What a launch did to synchronise, in order: a log of what `synchronisation` compares with the schedule.

A row: warp << 32 | pc << 8 | kind, lane, and three numbers by kind. Lanes that do the same in one instruction have one
row. When the log is full, nothing more is noted, and NOTES_LOST says so.
"""

from __future__ import annotations

from amk.emulator.arithmetic.bits import compiled, separate
from amk.emulator.memory.cells import at, to
from amk.emulator.memory.state import NOTE_LOG, NOTE_ROOM, NOTES, NOTES_LOST, NOTING, registers_of

ADDED, LOADED, STORED, COMPARED, EXPECTED, COPIED, AWAITED, COPIED_SMALL, COMMITTED, GROUPS_AWAITED = range(10)
"""Kinds, with their numbers. ADDED: place, operand, operation of an atomic. LOADED, STORED: place and content of a
strong access to global memory. COMPARED: both operands. EXPECTED: place of an mbarrier, bytes. COPIED: place of the
mbarrier, bytes, place of the destination. AWAITED: place of the mbarrier, parity, whether that phase is over.
COPIED_SMALL: place of the destination, bytes. GROUPS_AWAITED: groups that may be under way behind the wait."""
NOTE_COLUMNS = 5


@separate
def note(grid: int, warp: int, pc: int, kind: int, lane: int, a: int, b: int, c: int) -> None:
    if at(grid, NOTING) == 0:
        return
    count, key = at(grid, NOTES), warp << 32 | pc << 8 | kind
    row = at(grid, NOTE_LOG) + 40 * (count - 1)
    if count and at(row, 0) == key and at(row, 2) == a and at(row, 3) == b and at(row, 4) == c and at(row, 1) < lane:
        to(row, 1, lane)
        return
    if count == at(grid, NOTE_ROOM):
        to(grid, NOTING, 0)
        to(grid, NOTES_LOST, 1)
        return
    row += 40
    to(row, 0, key)
    to(row, 1, lane)
    to(row, 2, a)
    to(row, 3, b)
    to(row, 4, c)
    to(grid, NOTES, count + 1)


@compiled
def note_operands(grid: int, warp: int, pc: int, mask: int, word: int) -> None:
    """Of the comparison whose numbers are at `word`."""
    registers = registers_of(grid, warp)
    for lane in range(32):
        if mask >> lane & 1:
            first, second = at(registers, 32 * at(word, 4) + lane), at(registers, 32 * at(word, 5) + lane)
            note(grid, warp, pc, COMPARED, lane, first, second, 0)
