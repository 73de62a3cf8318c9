"""mbarriers of shared memory: phases, arrivals, expected bytes."""

from __future__ import annotations

from amk.emulator.arithmetic.bits import separate
from amk.emulator.memory.access import alike, effect, located, poll, sure
from amk.emulator.memory.cells import at, byte_at, byte_to, to
from amk.emulator.memory.happens_before import acquired, arrived_at, ended_phase, watch
from amk.emulator.memory.notes import AWAITED, EXPECTED, note
from amk.emulator.memory.state import (
    AN_MBARRIER,
    BAD_MBARRIER,
    CODE,
    MBARRIERS,
    MEMORY,
    RACES,
    SHARED_AT,
    UNDEFINED_BYTES,
    fault,
    poison_of,
    registers_of,
)
from amk.emulator.ptx import isa
from amk.emulator.ptx.encode import COLUMNS
from amk.emulator.ptx.isa import SHARED


@separate
def changed(grid: int, place: int, arrivals: int, expected: int, arrived: int) -> bool:
    """Bytes are expected, then threads and bytes arrive; the phase ends when none of either is left. False: not
    allowed."""
    word = at(at(grid, MEMORY), place >> 3)
    phase, pending, every, bytes_left = (word & 1, word >> 1 & 1048575, word >> 21 & 1048575, word >> 41)
    pending -= arrivals
    bytes_left += expected - arrived
    if pending < 0 or abs(bytes_left) >= 1 << 20:
        return False
    if pending == 0 and bytes_left == 0:
        phase, pending = (1 - phase, every)
        if at(grid, RACES):
            ended_phase(grid, place)
    to(at(grid, MEMORY), place >> 3, phase | pending << 1 | every << 21 | bytes_left << 41)
    return True


@separate
def mbarrier(grid: int, warp: int, pc: int, mask: int, block: int, operation: int) -> bool:  # noqa: C901
    """init, inval, arrive, expect_tx, try_wait; True for a wait that has to look again."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    registers = registers_of(grid, warp)
    base, offset = (at(word, 10), at(word, 11))
    sure(grid, warp, pc, base, mask, 0)
    sure(grid, warp, pc, at(word, 4), mask, 4)
    waits, digest, first = (False, 0, -1)
    together = at(grid, RACES) != 0 and alike(grid, warp, base, mask)
    done = 0
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        address, value = (at(registers, 32 * base + lane) + offset, at(registers, 32 * at(word, 4) + lane))
        place = located(grid, warp, pc, lane, SHARED, address, 8)
        if place < 0:
            return False
        flag = place - at(grid, SHARED_AT) >> 3
        if at(grid, RACES):
            watch(grid, warp, pc, lane, place, 8, operation in (isa.MBAR_INIT, isa.MBAR_INVAL))
        if operation == isa.MBAR_INIT:
            if value < 1 or value >= 1 << 20:
                fault(grid, BAD_MBARRIER, warp, pc, lane, address, 2, value)
                return False
            byte_to(at(grid, MBARRIERS), flag, AN_MBARRIER)
            to(at(grid, MEMORY), place >> 3, value << 1 | value << 21)
            for byte in range(place, place + 8):
                byte_to(at(grid, UNDEFINED_BYTES), byte, 0)
            continue
        if byte_at(at(grid, MBARRIERS), flag) != AN_MBARRIER:
            fault(grid, BAD_MBARRIER, warp, pc, lane, address, 3, value)
            return False
        if operation == isa.MBAR_INVAL:
            byte_to(at(grid, MBARRIERS), flag, 0)
        elif operation == isa.MBAR_TRY:
            over = int(at(at(grid, MEMORY), place >> 3) & 1 != value & 1)
            note(grid, warp, pc, AWAITED, lane, place, value & 1, over)
            if over:
                done |= 1 << lane
                if at(grid, RACES):
                    acquired(grid, warp, lane, place + 4, together)
            else:
                waits = True
                digest = digest * 1000003 + address
                first = address
        else:
            arrivals = 0 if operation == isa.MBAR_EXPECT else 1 if at(word, 2) == 1 else value
            expected = value if operation == isa.MBAR_EXPECT or at(word, 2) == 1 else 0
            if expected:
                note(grid, warp, pc, EXPECTED, lane, place, expected, 0)
            if at(grid, RACES) and operation == isa.MBAR_ARRIVE:
                arrived_at(grid, warp, lane, place, mask if together and mask >> lane == 1 else 0)
            if not changed(grid, place, arrivals, expected, 0):
                fault(grid, BAD_MBARRIER, warp, pc, lane, address, 4, value)
                return False
    if operation != isa.MBAR_TRY:
        effect(grid, warp, block, SHARED, True)
        return False
    for lane in range(32):
        if mask >> lane & 1:
            to(registers, 32 * at(word, 3) + lane, done >> lane & 1)
    to(poison_of(grid, warp), at(word, 3), at(poison_of(grid, warp), at(word, 3)) & ~mask)
    return waits and poll(grid, warp, pc, digest, first)
