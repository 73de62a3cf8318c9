"""Asynchronous copies: cp.async.bulk and cp.async."""

from __future__ import annotations

from amk.emulator.arithmetic.bits import compiled, separate
from amk.emulator.memory.access import effect, located, sure, writable
from amk.emulator.memory.cells import at, byte_at, byte_to, to
from amk.emulator.memory.happens_before import bulk_started, committed, copied, copy_over, groups_over
from amk.emulator.memory.mbarriers import changed
from amk.emulator.memory.notes import COMMITTED, COPIED, COPIED_SMALL, GROUPS_AWAITED, note
from amk.emulator.memory.state import (
    AGENTS,
    AN_MBARRIER,
    BAD_MBARRIER,
    BLOCK_COUNT,
    BLOCKS,
    CODE,
    COPIES,
    COPY_QUEUE,
    COPY_ROOM,
    EAGER,
    GROUPS,
    LANDED,
    MBARRIERS,
    MEMORY,
    MISALIGNED,
    OUT_OF_BOUNDS,
    RACES,
    SEQUENCE,
    SHARED_AT,
    SHARED_BYTES,
    SMALL_COUNT,
    SMALL_QUEUE,
    SMALL_ROOM,
    UNDEFINED_BYTES,
    WARP_COUNT,
    fault,
    place_of,
    registers_of,
)
from amk.emulator.memory.touched import COPIED_FROM, COPIED_TO, touch
from amk.emulator.memory.weak import behind_fence
from amk.emulator.ptx.encode import COLUMNS
from amk.emulator.ptx.isa import GLOBAL, SHARED


@separate
def moved(grid: int, destination: int, source: int, size: int) -> None:
    for byte in range(size):
        byte_to(at(grid, MEMORY), destination + byte, byte_at(at(grid, MEMORY), source + byte))
        byte_to(at(grid, UNDEFINED_BYTES), destination + byte, byte_at(at(grid, UNDEFINED_BYTES), source + byte))


@separate
def land(grid: int, number: int) -> None:
    """The copy in this slot of the queue happens now; the last of the queue takes its slot."""
    copies = at(grid, COPY_QUEUE)
    row = copies + 8 * (8 * number)
    clock, destination, source, size, barrier, warp, pc = (
        at(row, 0),
        at(row, 1),
        at(row, 2),
        at(row, 3),
        at(row, 4),
        at(row, 5),
        at(row, 6),
    )
    moved(grid, destination, source, size)
    shared = at(grid, SHARED_AT)
    block = warp // (at(grid, WARP_COUNT) // at(grid, BLOCK_COUNT))
    if at(grid, RACES):
        copy_over(grid, warp, clock, barrier)
    address = barrier - shared - block * at(grid, SHARED_BYTES)
    if byte_at(at(grid, MBARRIERS), barrier - shared >> 3) != AN_MBARRIER or not changed(grid, barrier, 0, 0, size):
        fault(grid, BAD_MBARRIER, warp, pc, 0, address, 5, size)
    last = at(grid, COPIES) - 1
    for column in range(8):
        to(copies, 8 * number + column, at(copies, 8 * last + column))
    to(grid, COPIES, last)
    to(grid, LANDED, at(grid, LANDED) + 1)
    to(at(grid, BLOCKS), 2 * block + 0, at(at(grid, BLOCKS), 2 * block + 0) + 1)


@separate
def bulk_copy(grid: int, warp: int, pc: int, mask: int, block: int) -> None:
    """cp.async.bulk: the bytes of the destination are undefined until it lands."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    registers = registers_of(grid, warp)
    for row in (at(word, 10), at(word, 12), at(word, 14), at(word, 4)):
        sure(grid, warp, pc, row, mask, 0)
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        size = at(registers, 32 * at(word, 4) + lane)
        into, of = (
            at(registers, 32 * at(word, 10) + lane) + at(word, 11),
            at(registers, 32 * at(word, 12) + lane) + at(word, 13),
        )
        spot = at(registers, 32 * at(word, 14) + lane) + at(word, 15)
        if size % 16 or into % 16 or of % 16 or (size <= 0):
            fault(grid, MISALIGNED, warp, pc, lane, into if into % 16 else of, SHARED if into % 16 else GLOBAL, size)
            return
        destination = place_of(grid, SHARED, into, size, block)
        source = place_of(grid, GLOBAL, of, size, block)
        barrier = located(grid, warp, pc, lane, SHARED, spot, 8)
        if destination < 0 or source < 0:
            fault(
                grid,
                OUT_OF_BOUNDS,
                warp,
                pc,
                lane,
                into if destination < 0 else of,
                SHARED if destination < 0 else GLOBAL,
                size,
            )
            return
        if barrier < 0 or not writable(grid, warp, pc, lane, SHARED, destination, into, size):
            return
        for byte in range(destination, destination + size):
            byte_to(at(grid, UNDEFINED_BYTES), byte, 1)
        touch(grid, warp, pc, COPIED_FROM, source, size)
        touch(grid, warp, pc, COPIED_TO, destination, size)
        note(grid, warp, pc, COPIED, lane, barrier, size, destination)
        behind_fence(grid, warp, pc, lane, source, size, False)
        behind_fence(grid, warp, pc, lane, destination, size, True)
        bulk_started(grid, warp, pc, lane, source, destination, size)
        count = at(grid, COPIES)
        if count == at(grid, COPY_ROOM):
            land(grid, 0)
            count -= 1
        row = at(grid, COPY_QUEUE) + 8 * (8 * count)
        to(row, 0, at(at(grid, AGENTS), warp) if at(grid, RACES) else 0)
        to(row, 1, destination)
        to(row, 2, source)
        to(row, 3, size)
        to(row, 4, barrier)
        to(row, 5, warp)
        to(row, 6, pc)
        to(row, 7, at(grid, SEQUENCE))
        to(grid, SEQUENCE, at(grid, SEQUENCE) + 1)
        to(grid, COPIES, count + 1)
        if at(grid, EAGER):
            land(grid, count)
    effect(grid, warp, block, SHARED, False)


@compiled
def oldest(grid: int) -> int:
    """The slot of the copy that was issued first."""
    best = 0
    for number in range(1, at(grid, COPIES)):
        if at(at(grid, COPY_QUEUE), 8 * number + 7) < at(at(grid, COPY_QUEUE), 8 * best + 7):
            best = number
    return best


@separate
def land_small(grid: int, block: int, warp: int, mask: int, before: int) -> None:
    """Land what these lanes of the warp issued in groups that are `before` or more commits old; warp -1: everything."""
    queue, kept = (at(grid, SMALL_QUEUE) + 8 * (6 * at(grid, SMALL_ROOM) * block), 0)
    for number in range(at(at(grid, SMALL_COUNT), block)):
        row = queue + 8 * (6 * number)
        mine = at(row, 0) == warp and mask >> at(row, 1) & 1 == 1
        if warp < 0 or (mine and at(row, 2) < at(at(grid, GROUPS), 32 * warp + at(row, 1)) - before):
            moved(grid, at(row, 3), at(row, 4), at(row, 5))
            continue
        for column in range(6):
            to(queue, 6 * kept + column, at(row, column))
        kept += 1
    to(at(grid, SMALL_COUNT), block, kept)


@separate
def small_copy(grid: int, warp: int, pc: int, mask: int, block: int) -> None:
    """cp.async: 4, 8 or 16 bytes a lane, landing when a wait of that lane asks for its group, at the latest."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    registers = registers_of(grid, warp)
    for row in (at(word, 10), at(word, 12), at(word, 4)):
        sure(grid, warp, pc, row, mask, 0)
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        size = at(registers, 32 * at(word, 4) + lane)
        into, of = (
            at(registers, 32 * at(word, 10) + lane) + at(word, 11),
            at(registers, 32 * at(word, 12) + lane) + at(word, 13),
        )
        destination = located(grid, warp, pc, lane, SHARED, into, size)
        source = located(grid, warp, pc, lane, GLOBAL, of, size)
        if destination < 0 or source < 0 or (not writable(grid, warp, pc, lane, SHARED, destination, into, size)):
            return
        touch(grid, warp, pc, COPIED_FROM, source, size)
        touch(grid, warp, pc, COPIED_TO, destination, size)
        note(grid, warp, pc, COPIED_SMALL, lane, destination, size, 0)
        if at(grid, RACES):
            copied(grid, warp, pc, lane, source, destination, size, at(at(grid, AGENTS), warp) + 1, lane)
        if at(grid, EAGER):
            moved(grid, destination, source, size)
            continue
        count = at(at(grid, SMALL_COUNT), block)
        if count == at(grid, SMALL_ROOM):
            land_small(grid, block, -1, 0, 0)
            count = at(at(grid, SMALL_COUNT), block)
        for byte in range(destination, destination + size):
            byte_to(at(grid, UNDEFINED_BYTES), byte, 1)
        row = at(grid, SMALL_QUEUE) + 8 * (6 * at(grid, SMALL_ROOM) * block + 6 * count)
        to(row, 0, warp)
        to(row, 1, lane)
        to(row, 2, at(at(grid, GROUPS), 32 * warp + lane))
        to(row, 3, destination)
        to(row, 4, source)
        to(row, 5, size)
        to(at(grid, SMALL_COUNT), block, count + 1)
    effect(grid, warp, block, SHARED, False)


@compiled
def wait_small(grid: int, warp: int, pc: int, mask: int, block: int) -> None:
    word = at(grid, CODE) + 8 * COLUMNS * pc
    if at(word, 2) == 1:
        land_small(grid, block, warp, mask, -1)
        pending = -1
    else:
        pending = 0
        for lane in range(32):
            if mask >> lane & 1:
                pending = at(registers_of(grid, warp), 32 * at(word, 4) + lane)
        land_small(grid, block, warp, mask, pending)
    note(grid, warp, pc, GROUPS_AWAITED, 0, max(pending, 0), 0, 0)
    if at(grid, RACES):
        groups_over(grid, warp, pending, mask)


@separate
def commit_small(grid: int, warp: int, pc: int, mask: int) -> None:
    note(grid, warp, pc, COMMITTED, 0, 0, 0, 0)
    for lane in range(32):
        if mask >> lane & 1:
            to(at(grid, GROUPS), 32 * warp + lane, at(at(grid, GROUPS), 32 * warp + lane) + 1)
    if at(grid, RACES):
        committed(grid, warp)
