"""Which warp runs next, and when copies land; compiled."""

from __future__ import annotations

from amk.emulator.arithmetic.bits import compiled, shifted_right
from amk.emulator.machine.warp import run
from amk.emulator.memory.cells import at, to
from amk.emulator.memory.copies import land, oldest
from amk.emulator.memory.state import (
    ASLEEP,
    BLOCK_COUNT,
    BLOCKS,
    COPIES,
    COPY_QUEUE,
    DONE,
    EFFECTS,
    EXECUTED,
    GLOBAL_VERSION,
    LATE_COPY,
    PATIENT,
    RACES,
    RANDOM,
    READY,
    SHARED_AT,
    SHARED_BYTES,
    STATUS,
    STOPPED,
    TURN,
    WARP_COUNT,
    WARPS,
    fault,
)
from amk.emulator.memory.weak import looks_changed, spread, spread_all

FINISHED, STALLED, OUT_OF_BUDGET, FAULTED = range(4)


@compiled
def drawn(grid: int, below: int) -> int:
    """A number below `below` of the run's own sequence (xorshift)."""
    word = at(grid, RANDOM)
    word ^= word << 13
    word ^= shifted_right(word, 7)
    word ^= word << 17
    to(grid, RANDOM, word)
    return shifted_right(word, 11) % below


@compiled
def ready(grid: int, warp: int) -> bool:
    """A sleeping warp wakes when something that polls look at has changed."""
    row = at(grid, WARPS) + 8 * (8 * warp)
    if at(row, STATUS) == ASLEEP:
        block = warp // (at(grid, WARP_COUNT) // at(grid, BLOCK_COUNT))
        if at(row, 2) != at(grid, GLOBAL_VERSION) or at(row, 3) != at(at(grid, BLOCKS), 2 * block + 0):
            to(row, STATUS, READY)
    return at(row, STATUS) == READY


@compiled
def all_done(grid: int) -> bool:
    for warp in range(at(grid, WARP_COUNT)):  # noqa: SIM110
        if at(at(grid, WARPS), 8 * warp + STATUS) != DONE:
            return False
    return True


@compiled
def finish(grid: int, number: int) -> None:
    """The copy in this slot of the queue lands. Its block must not have ended: then its shared memory is another's."""
    row = at(grid, COPY_QUEUE) + 8 * (8 * number)
    warps = at(grid, WARP_COUNT) // at(grid, BLOCK_COUNT)
    block = at(row, 5) // warps
    over = True
    for warp in range(block * warps, (block + 1) * warps):
        over = over and at(at(grid, WARPS), 8 * warp + STATUS) == DONE
    if over:
        address = at(row, 1) - at(grid, SHARED_AT) - block * at(grid, SHARED_BYTES)
        fault(grid, LATE_COPY, at(row, 5), at(row, 6), 0, address, at(row, 3), 0)
    land(grid, number)


@compiled
def run_held(grid: int, holds: int, slice_: int) -> bool:
    """A slice of one of those that are held; False if none of them can run."""
    for warp in range(at(grid, WARP_COUNT)):
        if at(holds, warp) and ready(grid, warp) and run(grid, warp, slice_):
            return True
    return False


@compiled
def advance(  # noqa: C901
    grid: int, listed: int, listed_count: int, holds: int, seeded: bool, slice_: int, budget: int
) -> int:
    """Run until all warps have ended, none can run, `budget` instructions are spent, or something is wrong.

    listed: address of the numbers of warps that run first, in this order, each until it waits or its slice is over.
    holds: address of a number for each warp, not 0 for those that run only where nothing else can happen.
    seeded: warps, lengths of slices and copies that land are drawn; else warps take turns, and a copy lands when no
    warp can run without it.
    """
    count = at(grid, WARP_COUNT)
    for n in range(listed_count):
        if ready(grid, at(listed, n)):
            run(grid, at(listed, n), slice_)
    end = at(grid, EXECUTED) + budget
    while at(grid, STOPPED) == 0 and at(grid, EXECUTED) < end:
        spent = 0
        for turn in range(count):
            warp = drawn(grid, count) if seeded else turn
            if at(holds, warp) == 0 and ready(grid, warp):
                spent += run(grid, warp, 1 + drawn(grid, slice_) if seeded else slice_)
                if seeded and at(grid, COPIES) and (drawn(grid, 4) == 0):
                    finish(grid, drawn(grid, at(grid, COPIES)))
                if seeded and at(grid, RACES) and drawn(grid, 8) == 0:
                    spread(grid, drawn(grid, count))
                    looks_changed(grid)
        if spent == 0 and seeded:
            for warp in range(count):
                if at(holds, warp) == 0 and ready(grid, warp):
                    spent += run(grid, warp, slice_)
        if spent == 0 and not spread_all(grid):
            if at(grid, COPIES):
                finish(grid, drawn(grid, at(grid, COPIES)) if seeded else oldest(grid))
            elif not run_held(grid, holds, slice_):
                return FINISHED if all_done(grid) else STALLED
    return FAULTED if at(grid, STOPPED) else OUT_OF_BUDGET


@compiled
def look_again(grid: int, instructions: int) -> bool:
    """Nobody can run: let every warp that polls go on polling, each group of its lanes in turn; True if one changed
    something."""
    to(grid, PATIENT, 0)
    changed = False
    for warp in range(at(grid, WARP_COUNT)):
        row = at(grid, WARPS) + 8 * (8 * warp)
        before = at(row, EFFECTS)
        for turn in range(4):
            if at(row, STATUS) == ASLEEP:
                to(row, STATUS, READY)
            if at(row, STATUS) != READY:
                break
            to(row, TURN, turn)
            run(grid, warp, instructions // 4)
        if at(row, EFFECTS) != before:
            changed = True
            break
        if at(row, STATUS) == READY:
            to(row, STATUS, ASLEEP)
            to(row, 2, at(grid, GLOBAL_VERSION))
            to(row, 3, at(at(grid, BLOCKS), 2 * (warp // (at(grid, WARP_COUNT) // at(grid, BLOCK_COUNT))) + 0))
    to(grid, PATIENT, 1)
    return changed
