"""One warp runs: the loop over instructions, lanes that part and meet again."""

from __future__ import annotations

from amk.emulator.arithmetic.bits import M32, compiled, separate, zero_extended
from amk.emulator.arithmetic.floating import floating
from amk.emulator.arithmetic.whole import whole
from amk.emulator.machine.tensor_core import multiply, transpose
from amk.emulator.memory.access import atomic, effect, load, sleep, store, sure
from amk.emulator.memory.cells import at, to
from amk.emulator.memory.clocks import live_lanes
from amk.emulator.memory.copies import bulk_copy, commit_small, small_copy, wait_small
from amk.emulator.memory.happens_before import fence
from amk.emulator.memory.mbarriers import mbarrier
from amk.emulator.memory.meeting import (
    block_barrier,
    elect,
    first_lane,
    leave_warp_barrier,
    match,
    reduce,
    shuffle,
    vote,
    warp_barrier,
)
from amk.emulator.memory.notes import note_operands
from amk.emulator.memory.state import (
    AT_MEETING,
    BAD_MASK,
    BLOCK_COUNT,
    CODE,
    DIVERGED,
    DONE,
    EXECUTED,
    EXITED,
    LANES,
    LOST_LANES,
    NOW,
    PATIENT,
    PCS,
    RACES,
    RUNS,
    STATUS,
    STOPPED,
    TENSOR,
    TRAPPED,
    TURN,
    WARP_COUNT,
    WARP_EXECUTED,
    WARPS,
    fault,
    poison_of,
    registers_of,
)
from amk.emulator.memory.undefined import carried, keep, mark, undefined_of
from amk.emulator.memory.weak import proxy_fence
from amk.emulator.ptx import isa
from amk.emulator.ptx.encode import COLUMNS
from amk.emulator.ptx.isa import GLOBAL

BRA, EXIT, LD, ST, ATOM = (isa.BRA, isa.EXIT, isa.LD, isa.ST, isa.ATOM)
BEYOND = 1 << 40
GOES_ON, LANES_WAIT, WARP_WAITS, ENDED, NOT_YET, LOOKS_AGAIN = range(6)


@separate
def lane_wise(grid: int, warp: int, pc: int, mask: int) -> None:
    """An instruction in which every lane is alone with its registers."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    registers, poison = (registers_of(grid, warp), poison_of(grid, warp))
    operation, mode = (at(word, 0), at(word, 2))
    into, a, b, c, e = (at(word, 3), at(word, 4), at(word, 5), at(word, 6), at(word, 7))
    if (at(poison, a) | at(poison, b) | at(poison, c) | at(poison, e)) & mask:
        carried(grid, warp, word, mask)
    else:
        to(poison, into, at(poison, into) & ~mask)
    if operation < isa.FADD:
        for lane in range(32):
            if mask >> lane & 1:
                to(
                    registers,
                    32 * into + lane,
                    whole(
                        operation,
                        mode,
                        at(registers, 32 * a + lane),
                        at(registers, 32 * b + lane),
                        at(registers, 32 * c + lane),
                        at(registers, 32 * e + lane),
                    ),
                )
    else:
        for lane in range(32):
            if mask >> lane & 1:
                to(
                    registers,
                    32 * into + lane,
                    floating(
                        operation,
                        mode,
                        at(registers, 32 * a + lane),
                        at(registers, 32 * b + lane),
                        at(registers, 32 * c + lane),
                    ),
                )
    if (operation == isa.SETP or operation == isa.FSETP) and at(word, 8) != 1 and (at(word, 8) != 0):
        for lane in range(32):
            if mask >> lane & 1:
                to(registers, 32 * at(word, 8) + lane, 1 - at(registers, 32 * into + lane))
        mark(grid, warp, at(word, 8), mask, at(poison, into))


@separate
def several(grid: int, warp: int, pc: int, mask: int) -> None:
    """mov between one register and two or four."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    registers, one = registers_of(grid, warp), at(word, 3)
    bits, count = (at(word, 2) & 255, at(word, 2) >> 8)
    size = bits >> 3
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        if at(word, 0) == isa.PACK:
            value, undefined = 0, 0
            for part in range(count):
                row = at(word, 10 + part)
                value |= zero_extended(at(registers, 32 * row + lane), bits) << part * bits
                undefined |= (undefined_of(grid, warp, row, lane) & (1 << size) - 1) << part * size
            to(registers, 32 * one + lane, value)
            keep(grid, warp, one, lane, undefined)
            continue
        value, undefined = at(registers, 32 * at(word, 4) + lane), undefined_of(grid, warp, at(word, 4), lane)
        for part in range(count):
            row = at(word, 10 + part)
            to(registers, 32 * row + lane, zero_extended(value >> part * bits, bits))
            keep(grid, warp, row, lane, undefined >> part * size & (1 << size) - 1)


@compiled
def clock(grid: int, warp: int, pc: int, mask: int) -> None:
    """Instructions executed stand for cycles, and for nanoseconds."""
    word, now = (at(grid, CODE) + 8 * COLUMNS * pc, at(grid, NOW))
    bits = at(word, 2) >> 8
    value = now >> 32 if at(word, 2) & 255 == 1 else now
    for lane in range(32):
        if mask >> lane & 1:
            to(registers_of(grid, warp), 32 * at(word, 3) + lane, zero_extended(value, bits))
    to(poison_of(grid, warp), at(word, 3), at(poison_of(grid, warp), at(word, 3)) & ~mask)


@compiled
def members_of(grid: int, warp: int, pc: int, mask: int, operation: int) -> int:
    """Lanes that have to execute this instruction together."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    if operation == isa.SHFL:
        row = at(word, 7)
    elif operation in (isa.VOTE, isa.MATCH, isa.REDUX):
        row = at(word, 5)
    elif operation == isa.ELECT:
        row = at(word, 4)
    else:
        return live_lanes(grid, warp)
    sure(grid, warp, pc, row, mask, 5)
    return at(registers_of(grid, warp), 32 * row + first_lane(mask)) & M32


@separate
def together(grid: int, warp: int, pc: int, mask: int, block: int, operation: int, guarded: bool) -> int:  # noqa: C901
    """Instructions that lanes execute together; they wait until all members have come."""
    members = members_of(grid, warp, pc, mask, operation)
    if mask & ~members:
        fault(grid, BAD_MASK, warp, pc, first_lane(mask & ~members), members, mask, 0)
        return GOES_ON
    if members & live_lanes(grid, warp) & ~mask:
        if guarded:
            fault(grid, DIVERGED, warp, pc, first_lane(mask), members, mask, 0)
            return GOES_ON
        return NOT_YET
    word = at(grid, CODE) + 8 * COLUMNS * pc
    if operation == isa.SHFL:
        shuffle(grid, warp, pc, mask, members)
    elif operation == isa.MMA:
        if at(grid, TENSOR) == 8:
            multiply(grid, warp, word, 8, 24)
        else:
            multiply(grid, warp, word, 16, 25)
    elif operation == isa.MOVMATRIX:
        transpose(grid, warp, word)
    elif operation == isa.VOTE:
        vote(grid, warp, pc, mask)
    elif operation == isa.ELECT:
        elect(grid, warp, pc, mask, members)
    elif operation == isa.MATCH:
        match(grid, warp, pc, mask)
    elif operation == isa.REDUX:
        reduce(grid, warp, pc, mask)
    elif block_barrier(grid, warp, pc, mask, block, operation == isa.BAR_SYNC):
        return WARP_WAITS
    return GOES_ON


@compiled
def tell_active(grid: int, warp: int, row: int, mask: int) -> None:
    """Lanes of the mask get the mask in this row."""
    for lane in range(32):
        if mask >> lane & 1:
            to(registers_of(grid, warp), 32 * row + lane, mask)
    to(poison_of(grid, warp), row, at(poison_of(grid, warp), row) & ~mask)


@compiled
def lane_wise_noted(grid: int, warp: int, pc: int, mask: int) -> None:
    """The instruction that stands where this one says, behind the program's end."""
    there = at(at(grid, CODE), COLUMNS * pc + 3)
    note_operands(grid, warp, pc, mask, at(grid, CODE) + 8 * COLUMNS * there)
    lane_wise(grid, warp, there, mask)


@separate
def one(grid: int, warp: int, pc: int, mask: int, block: int, guarded: bool) -> int:  # noqa: C901
    """Execute one instruction that is neither lane-wise nor a branch; says how the warp goes on."""
    operation = at(at(grid, CODE), COLUMNS * pc + 0)
    if operation == LD:
        return LOOKS_AGAIN if load(grid, warp, pc, mask, block) else GOES_ON
    if operation == ST:
        store(grid, warp, pc, mask, block)
    elif operation == ATOM:
        atomic(grid, warp, pc, mask, block)
    elif operation in (
        isa.SHFL, isa.VOTE, isa.MATCH, isa.REDUX, isa.ELECT, isa.MMA, isa.MOVMATRIX, isa.BAR_SYNC, isa.BAR_ARRIVE,
    ):  # fmt: skip
        return together(grid, warp, pc, mask, block, operation, guarded)
    elif operation == isa.BAR_WARP:
        return GOES_ON if warp_barrier(grid, warp, pc, mask) else LANES_WAIT
    elif operation == isa.MBAR_TRY:
        return LOOKS_AGAIN if mbarrier(grid, warp, pc, mask, block, operation) else GOES_ON
    elif isa.MBAR_INIT <= operation <= isa.MBAR_EXPECT:
        mbarrier(grid, warp, pc, mask, block, operation)
    elif operation == isa.BULK:
        bulk_copy(grid, warp, pc, mask, block)
    elif operation == isa.CP_ASYNC:
        small_copy(grid, warp, pc, mask, block)
    elif operation == isa.CP_COMMIT:
        commit_small(grid, warp, pc, mask)
    elif operation == isa.FENCE and at(grid, RACES):
        proxy_fence(grid, warp, at(at(grid, CODE), COLUMNS * pc + 2), mask)
        fence(grid, warp, at(at(grid, CODE), COLUMNS * pc + 2), mask)
    elif operation == isa.CP_WAIT:
        wait_small(grid, warp, pc, mask, block)
    elif operation == isa.CLOCK:
        clock(grid, warp, pc, mask)
    elif operation == isa.PACK or operation == isa.UNPACK:
        several(grid, warp, pc, mask)
    elif operation == isa.ACTIVEMASK:
        tell_active(grid, warp, at(at(grid, CODE), COLUMNS * pc + 3), mask)
    elif operation == isa.NOTED:
        lane_wise_noted(grid, warp, pc, mask)
    elif operation == isa.TRAP:
        fault(grid, TRAPPED, warp, pc, first_lane(mask), 0, 0, 0)
    elif operation == EXIT:
        for lane in range(32):
            if mask >> lane & 1:
                to(at(grid, LANES), 32 * warp + lane, EXITED)
        leave_warp_barrier(grid, warp)
        return ENDED
    return GOES_ON


@compiled
def chosen(grid: int, warp: int, turn: int) -> tuple[int, int, int]:  # noqa: C901
    """(pc, lanes, next pc of others) of the group that runs: the one at the smallest pc, or the `turn`-th above it.

    Lanes that wait for others at a meeting join those that reach it. No lanes: mask 0.
    """
    least, groups = (BEYOND, 0)
    for lane in range(32):
        if at(at(grid, LANES), 32 * warp + lane) == RUNS:
            least = min(least, at(at(grid, PCS), 32 * warp + lane))
            groups += 1
    if groups == 0:
        return (0, 0, 0)
    for _ in range(turn):
        above = BEYOND
        for lane in range(32):
            if at(at(grid, LANES), 32 * warp + lane) == RUNS and at(at(grid, PCS), 32 * warp + lane) > least:
                above = min(above, at(at(grid, PCS), 32 * warp + lane))
        if above == BEYOND:
            break
        least = above
    mask, following = (0, BEYOND)
    for lane in range(32):
        state, pc = (at(at(grid, LANES), 32 * warp + lane), at(at(grid, PCS), 32 * warp + lane))
        if pc == least and state in (RUNS, AT_MEETING):
            mask |= 1 << lane
            to(at(grid, LANES), 32 * warp + lane, RUNS)
        elif pc > least and state in (RUNS, AT_MEETING):
            following = min(following, pc)
    return (least, mask, following)


@compiled
def stay(grid: int, warp: int, pc: int, mask: int, state: int) -> None:
    for lane in range(32):
        if mask >> lane & 1:
            to(at(grid, PCS), 32 * warp + lane, pc)
            to(at(grid, LANES), 32 * warp + lane, state)


@compiled
def others_wait(grid: int, warp: int, pc: int, mask: int) -> bool:
    """Do lanes beside these wait at this meeting? They do where these came to it by a jump back: then all run on."""
    for lane in range(32):
        here = at(at(grid, PCS), 32 * warp + lane) == pc and at(at(grid, LANES), 32 * warp + lane) == AT_MEETING
        if here and not mask >> lane & 1:
            return True
    return False


@compiled
def predicated(grid: int, warp: int, pc: int, mask: int, guard: int) -> int:
    """Lanes of the mask for which the guard holds."""
    row, negated = (guard >> 1, guard & 1)
    sure(grid, warp, pc, row, mask, 7)
    found = 0
    for lane in range(32):
        if mask >> lane & 1 and at(registers_of(grid, warp), 32 * row + lane) & 1 != negated:
            found |= 1 << lane
    return found


@compiled
def branched(grid: int, warp: int, pc: int, mask: int, active: int, target: int) -> tuple[int, int]:
    """Where the lanes of the mask go on, of which the active ones branch; mask 0 if they part."""
    if active == mask:
        return (target, mask)
    if active == 0:
        return (pc + 1, mask)
    stay(grid, warp, target, active, RUNS)
    stay(grid, warp, pc + 1, mask & ~active, RUNS)
    return (pc, 0)


@separate
def run(grid: int, warp: int, budget: int) -> int:  # noqa: C901
    """Run a warp for at most `budget` instructions, or until it waits; the number that it executed."""
    code = at(grid, CODE)
    block = warp // (at(grid, WARP_COUNT) // at(grid, BLOCK_COUNT))
    status = at(grid, WARPS) + 8 * (8 * warp)
    spent, mask, pc, following = (0, 0, 0, 0)
    turn = at(status, TURN)
    to(status, TURN, 0)
    while spent < budget and at(grid, STOPPED) == 0:
        if mask == 0:
            pc, mask, following = chosen(grid, warp, turn)
            turn = 0
            if mask == 0:
                idle(grid, warp)
                break
        elif pc >= following:
            stay(grid, warp, pc, mask, RUNS)
            mask = 0
            continue
        word = code + 8 * COLUMNS * pc
        spent += 1
        operation, guard = (at(word, 0), at(word, 1))
        active = mask
        if guard >= 0:
            active = predicated(grid, warp, pc, mask, guard)
        if operation == BRA:
            pc, mask = branched(grid, warp, pc, mask, active, at(word, 3))
            continue
        if active == 0:
            pc += 1
            continue
        if operation <= isa.LAST_LANE_WISE:
            lane_wise(grid, warp, pc, active)
            pc += 1
            continue
        outcome = one(grid, warp, pc, active, block, active != mask)
        if outcome == GOES_ON:
            pc += 1
        elif outcome == LOOKS_AGAIN:
            pc += 1
            if at(grid, PATIENT):
                sleep(grid, warp, block)
                break
        elif outcome == WARP_WAITS:
            pc += 1
            break
        elif outcome == NOT_YET:
            stay(grid, warp, pc, mask, RUNS if others_wait(grid, warp, pc, mask) else AT_MEETING)
            mask = 0
        else:
            stay_behind(grid, warp, pc, mask & ~active)
            mask = 0
    if mask:
        stay(grid, warp, pc, mask, RUNS)
    to(grid, EXECUTED, at(grid, EXECUTED) + spent)
    to(grid, NOW, at(grid, NOW) + spent)
    to(status, WARP_EXECUTED, at(status, WARP_EXECUTED) + spent)
    return spent


@compiled
def stay_behind(grid: int, warp: int, pc: int, mask: int) -> None:
    """Lanes for which the guard of an instruction that stops the others did not hold go on behind it."""
    if mask:
        stay(grid, warp, pc + 1, mask, RUNS)


@compiled
def idle(grid: int, warp: int) -> None:
    """No lane can run: the warp has ended, or its lanes wait for lanes that never come."""
    left = live_lanes(grid, warp)
    if left == 0:
        to(at(grid, WARPS), 8 * warp + STATUS, DONE)
        effect(grid, warp, warp // (at(grid, WARP_COUNT) // at(grid, BLOCK_COUNT)), GLOBAL, False)
        return
    lane = first_lane(left)
    fault(grid, LOST_LANES, warp, at(at(grid, PCS), 32 * warp + lane), lane, left, 0, 0)
