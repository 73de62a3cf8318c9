"""Instructions in which lanes of a warp, or warps of a block, meet."""

from __future__ import annotations

import numpy as np

from amk.emulator.arithmetic.bits import M32, compiled, separate
from amk.emulator.memory.access import combined, effect, sure
from amk.emulator.memory.cells import at, to
from amk.emulator.memory.clocks import arrive, lanes_meet, leave, live_lanes, meet
from amk.emulator.memory.state import (
    AT_BARRIER,
    AT_WARP_BARRIER,
    BAD_BARRIER,
    BAD_MASK,
    BARRIER,
    BARRIERS,
    BLOCK_COUNT,
    CODE,
    LANES,
    MASKS,
    PCS,
    READY,
    RUNS,
    STATUS,
    WARP_COUNT,
    WARPS,
    fault,
    poison_of,
    registers_of,
)
from amk.emulator.memory.undefined import ALL, keep, mark, undefined_of
from amk.emulator.ptx import isa
from amk.emulator.ptx.encode import COLUMNS
from amk.emulator.ptx.isa import SHARED, SIGNED


@compiled
def first_lane(mask: int) -> int:
    lane = 0
    while not mask >> lane & 1:
        lane += 1
    return lane


@separate
def leave_warp_barrier(grid: int, warp: int) -> None:
    """Let lanes go whose whole mask, but for lanes that have ended, waits."""
    live = live_lanes(grid, warp)
    for lane in range(32):
        if at(at(grid, LANES), 32 * warp + lane) != AT_WARP_BARRIER:
            continue
        wanted, there = (at(at(grid, MASKS), 32 * warp + lane), 0)
        for other in range(32):
            if (
                at(at(grid, LANES), 32 * warp + other) == AT_WARP_BARRIER
                and at(at(grid, MASKS), 32 * warp + other) == wanted
            ):
                there |= 1 << other
        if wanted & live & ~there == 0:
            lanes_meet(grid, warp, there)
            for other in range(32):
                if there >> other & 1:
                    to(at(grid, LANES), 32 * warp + other, RUNS)
                    to(at(grid, PCS), 32 * warp + other, at(at(grid, PCS), 32 * warp + other) + 1)


@separate
def warp_barrier(grid: int, warp: int, pc: int, mask: int) -> bool:
    """bar.warp.sync; True where everybody is here already, else these lanes wait."""
    row = at(at(grid, CODE), COLUMNS * pc + 4)
    sure(grid, warp, pc, row, mask, 5)
    wanted = at(registers_of(grid, warp), 32 * row + first_lane(mask)) & M32
    if mask & ~wanted:
        fault(grid, BAD_MASK, warp, pc, first_lane(mask & ~wanted), wanted, mask, 0)
        return True
    if wanted & live_lanes(grid, warp) & ~mask == 0:
        lanes_meet(grid, warp, mask)
        return True
    for lane in range(32):
        if mask >> lane & 1:
            to(at(grid, LANES), 32 * warp + lane, AT_WARP_BARRIER)
            to(at(grid, MASKS), 32 * warp + lane, wanted)
            to(at(grid, PCS), 32 * warp + lane, pc)
    leave_warp_barrier(grid, warp)
    return False


@separate
def block_barrier(grid: int, warp: int, pc: int, mask: int, block: int, waits: bool) -> bool:
    """bar.sync or bar.arrive of one warp; True if the warp has to wait."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    per_block = at(grid, WARP_COUNT) // at(grid, BLOCK_COUNT)
    registers = registers_of(grid, warp)
    lane = first_lane(mask)
    number = at(registers, 32 * at(word, 4) + lane)
    wanted = 32 * per_block if at(word, 5) < 0 else at(registers, 32 * at(word, 5) + lane)
    if number < 0 or number > 15 or wanted % 32 or (wanted <= 0) or (wanted > 32 * per_block):
        fault(grid, BAD_BARRIER, warp, pc, lane, number, wanted, 0)
        return False
    barrier = at(grid, BARRIERS) + 8 * (32 * block + 2 * number)
    if at(barrier, 0) and at(barrier, 1) != wanted:
        fault(grid, BAD_BARRIER, warp, pc, lane, number, wanted, at(barrier, 1))
        return False
    to(barrier, 0, at(barrier, 0) + 32)
    to(barrier, 1, wanted)
    arrive(grid, warp, block, number)
    effect(grid, warp, block, SHARED, False)
    if at(barrier, 0) < wanted:
        if waits:
            to(at(grid, WARPS), 8 * warp + STATUS, AT_BARRIER)
            to(at(grid, WARPS), 8 * warp + BARRIER, number)
        return waits
    to(barrier, 0, 0)
    for other in range(block * per_block, (block + 1) * per_block):
        if at(at(grid, WARPS), 8 * other + STATUS) == AT_BARRIER and at(at(grid, WARPS), 8 * other + BARRIER) == number:
            to(at(grid, WARPS), 8 * other + STATUS, READY)
            leave(grid, other, block, number)
    if waits:
        leave(grid, warp, block, number)
    meet(grid, block, number)
    return False


@separate
def shuffle(grid: int, warp: int, pc: int, mask: int, members: int) -> None:
    """shfl.sync: a lane reads the register of another; of one that does not take part the value is undefined."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    registers = registers_of(grid, warp)
    mode, of = (at(word, 2), at(word, 4))
    sure(grid, warp, pc, at(word, 5), mask, 6)
    sure(grid, warp, pc, at(word, 6), mask, 6)
    found, inside, undefined = (np.empty(32, np.int64), np.empty(32, np.int64), np.zeros(32, np.int64))
    for lane in range(32):
        found[lane] = inside[lane] = 0
        if not mask >> lane & 1:
            continue
        by, control = (at(registers, 32 * at(word, 5) + lane) & 31, at(registers, 32 * at(word, 6) + lane))
        segment, clamp = (control >> 8 & 31, control & 31)
        most = lane & segment | clamp & ~segment & 31
        least = lane & segment
        if mode == isa.SHFL_UP:
            source = lane - by
            inside[lane] = 1 if source >= most else 0
        elif mode == isa.SHFL_DOWN:
            source = lane + by
            inside[lane] = 1 if source <= most else 0
        elif mode == isa.SHFL_BFLY:
            source = lane ^ by
            inside[lane] = 1 if source <= most else 0
        else:
            source = least | by & ~segment & 31
            inside[lane] = 1 if source <= most else 0
        if inside[lane] == 0:
            source = lane
        found[lane] = at(registers, 32 * of + source)
        undefined[lane] = undefined_of(grid, warp, of, source) if (mask & members) >> source & 1 else ALL
    for lane in range(32):
        if mask >> lane & 1:
            to(registers, 32 * at(word, 3) + lane, found[lane])
            to(registers, 32 * at(word, 8) + lane, inside[lane])
            keep(grid, warp, at(word, 3), lane, undefined[lane])
    mark(grid, warp, at(word, 8), mask, 0)


@separate
def vote(grid: int, warp: int, pc: int, mask: int) -> None:
    word = at(grid, CODE) + 8 * COLUMNS * pc
    registers, poison = (registers_of(grid, warp), poison_of(grid, warp))
    ballot = 0
    for lane in range(32):
        if mask >> lane & 1 and at(registers, 32 * at(word, 4) + lane) & 1 != at(word, 9):
            ballot |= 1 << lane
    if at(word, 2) == isa.V_BALLOT:
        answer = ballot
    elif at(word, 2) == isa.V_ALL:
        answer = 1 if ballot == mask else 0
    elif at(word, 2) == isa.V_ANY:
        answer = 1 if ballot else 0
    else:
        answer = 1 if ballot == mask or ballot == 0 else 0
    bad = mask if at(poison, at(word, 4)) & mask else 0
    same(grid, warp, at(word, 3), mask, answer, bad)


@compiled
def same(grid: int, warp: int, row: int, mask: int, value: int, bad: int) -> None:
    """Every lane of the mask gets the same value."""
    for lane in range(32):
        if mask >> lane & 1:
            to(registers_of(grid, warp), 32 * row + lane, value)
    mark(grid, warp, row, mask, bad)


@separate
def match(grid: int, warp: int, pc: int, mask: int) -> None:
    word = at(grid, CODE) + 8 * COLUMNS * pc
    registers, poison = (registers_of(grid, warp), poison_of(grid, warp))
    bad = mask if at(poison, at(word, 4)) & mask else 0
    found = np.zeros(32, np.int64)
    for lane in range(32):
        for other in range(32):
            if mask >> lane & mask >> other & 1 and at(registers, 32 * at(word, 4) + lane) == at(
                registers, 32 * at(word, 4) + other
            ):
                found[lane] |= 1 << other
    everybody = found[first_lane(mask)] == mask
    for lane in range(32):
        if mask >> lane & 1:
            if at(word, 2) == 1:
                to(registers, 32 * at(word, 3) + lane, mask if everybody else 0)
                to(registers, 32 * at(word, 8) + lane, 1 if everybody else 0)
            else:
                to(registers, 32 * at(word, 3) + lane, found[lane])
    mark(grid, warp, at(word, 3), mask, bad)
    if at(word, 2) == 1:
        mark(grid, warp, at(word, 8), mask, bad)


@separate
def reduce(grid: int, warp: int, pc: int, mask: int) -> None:
    word = at(grid, CODE) + 8 * COLUMNS * pc
    registers = registers_of(grid, warp)
    lane = first_lane(mask)
    total = at(registers, 32 * at(word, 4) + lane)
    for other in range(lane + 1, 32):
        if mask >> other & 1:
            total = combined(
                at(word, 2) & 255, 32, at(word, 2) & SIGNED != 0, total, at(registers, 32 * at(word, 4) + other), 0
            )
    bad = mask if at(poison_of(grid, warp), at(word, 4)) & mask else 0
    same(grid, warp, at(word, 3), mask, total & M32, bad)


@separate
def elect(grid: int, warp: int, pc: int, mask: int, members: int) -> None:
    """PTX leaves open which lane is chosen: here the last of the mask, so that code which expects lane 0 fails."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    chosen = 31
    while not members >> chosen & 1:
        chosen -= 1
    same(grid, warp, at(word, 3), mask, chosen, 0)
    for lane in range(32):
        if mask >> lane & 1:
            to(registers_of(grid, warp), 32 * at(word, 8) + lane, 1 if lane == chosen else 0)
    mark(grid, warp, at(word, 8), mask, 0)
