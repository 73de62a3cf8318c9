"""Loads, stores, atomics of one warp."""

from __future__ import annotations

from amk.emulator.arithmetic.bits import as_f32, below, bits32, compiled, separate, sign_extended, zero_extended
from amk.emulator.memory.cells import at, byte_at, byte_to, half_at, half_to, to, word_at, word_to
from amk.emulator.memory.clocks import live_lanes, tick
from amk.emulator.memory.happens_before import ordered_read, ordered_write, tagged, watch
from amk.emulator.memory.notes import ADDED, LOADED, STORED, note
from amk.emulator.memory.state import (
    ALLOCATIONS,
    AN_MBARRIER,
    ASLEEP,
    BAD_MBARRIER,
    BLOCK_COUNT,
    BLOCKS,
    CODE,
    CONSTANT,
    EFFECTS,
    GLOBAL_VERSION,
    MBARRIERS,
    MEMORY,
    MISALIGNED,
    OF_NOBODY,
    OUT_OF_BOUNDS,
    PAGE,
    PAGES,
    POLL_LOG,
    POLLED,
    POLLS,
    RACES,
    READ_ONLY,
    SEEN_BLOCK,
    SEEN_GLOBAL,
    SHARED_AT,
    SHARED_BYTES,
    STATUS,
    UNDEFINED,
    UNDEFINED_BYTES,
    WARP_COUNT,
    WARPS,
    fault,
    place_of,
    poison_of,
    registers_of,
)
from amk.emulator.memory.touched import READ, WRITE, touch
from amk.emulator.memory.undefined import keep, mark, undefined_of
from amk.emulator.memory.weak import earlier, hidden_in, remember, undefined_earlier
from amk.emulator.ptx import isa
from amk.emulator.ptx.encode import COLUMNS
from amk.emulator.ptx.isa import ACQUIRE, GLOBAL, HINT, NON_COHERENT, RELAXED, SHARED, WEAK

A_ADD, A_OR, A_AND, A_XOR, A_MIN, A_MAX = (isa.A_ADD, isa.A_OR, isa.A_AND, isa.A_XOR, isa.A_MIN, isa.A_MAX)
A_EXCH, A_CAS, A_INC, A_DEC = (isa.A_EXCH, isa.A_CAS, isa.A_INC, isa.A_DEC)


@separate
def located(grid: int, warp: int, pc: int, lane: int, space: int, address: int, size: int) -> int:
    """The place of an access, -1 after a fault."""
    if address % size:
        fault(grid, MISALIGNED, warp, pc, lane, address, space, size)
        return -1
    place = place_of(grid, space, address, size, warp // (at(grid, WARP_COUNT) // at(grid, BLOCK_COUNT)))
    if place < 0:
        fault(grid, OUT_OF_BOUNDS, warp, pc, lane, address, space, size)
    return place


@compiled
def content(grid: int, place: int, size: int) -> int:
    """The content of 1, 2, 4 or 8 aligned bytes."""
    memory = at(grid, MEMORY)
    if size == 4:
        return word_at(memory, place >> 2)
    if size == 8:
        return at(memory, place >> 3)
    return half_at(memory, place >> 1) if size == 2 else byte_at(memory, place)


@compiled
def put(grid: int, place: int, size: int, word: int) -> None:
    memory = at(grid, MEMORY)
    if size == 4:
        word_to(memory, place >> 2, word)
    elif size == 8:
        to(memory, place >> 3, word)
    elif size == 2:
        half_to(memory, place >> 1, word)
    else:
        byte_to(memory, place, word)


@separate
def undefined_in(grid: int, place: int, size: int) -> int:
    """A bit for each undefined byte of 1, 2, 4 or 8 aligned ones."""
    flags, found = at(grid, UNDEFINED_BYTES), 0
    if (size == 4 and word_at(flags, place >> 2) == 0) or (size == 8 and at(flags, place >> 3) == 0):
        return 0
    for byte in range(size):
        found |= (byte_at(flags, place + byte) & 1) << byte
    return found


@separate
def sure(grid: int, warp: int, pc: int, row: int, mask: int, what: int) -> None:
    """Report lanes of `mask` whose register is undefined where it decides something."""
    bad = at(poison_of(grid, warp), row) & mask
    if bad:
        lane = 0
        while not bad >> lane & 1:
            lane += 1
        fault(grid, UNDEFINED, warp, pc, lane, row, what, 0)


@separate
def poll(grid: int, warp: int, pc: int, digest: int, address: int) -> bool:
    """Remember a poll; True if the same one saw the same before and the warp has changed nothing since."""
    log, count = at(grid, POLL_LOG) + 24 * POLLED * warp, at(at(grid, WARPS), 8 * warp + POLLS)
    for n in range(min(count, POLLED)):
        if at(log, 3 * n) == pc and at(log, 3 * n + 2) == address:
            same = at(log, 3 * n + 1) == digest
            to(log, 3 * n + 1, digest)
            return same
    entry = log + 24 * (count % POLLED)
    to(entry, 0, pc)
    to(entry, 1, digest)
    to(entry, 2, address)
    to(at(grid, WARPS), 8 * warp + POLLS, count + 1)
    return False


@compiled
def sleep(grid: int, warp: int, block: int) -> None:
    """The warp need not run before memory that polls look at has changed."""
    row = at(grid, WARPS) + 8 * (8 * warp)
    to(row, STATUS, ASLEEP)
    to(row, SEEN_GLOBAL, at(grid, GLOBAL_VERSION))
    to(row, SEEN_BLOCK, at(at(grid, BLOCKS), 2 * block + 0))


@compiled
def effect(grid: int, warp: int, block: int, space: int, strong: bool) -> None:
    """The warp has changed something: its polls start over, and those who poll such memory look again."""
    to(at(grid, WARPS), 8 * warp + EFFECTS, at(at(grid, WARPS), 8 * warp + EFFECTS) + 1)
    to(at(grid, WARPS), 8 * warp + POLLS, 0)
    if strong:
        if space == SHARED:
            to(at(grid, BLOCKS), 2 * block + 0, at(at(grid, BLOCKS), 2 * block + 0) + 1)
        else:
            to(grid, GLOBAL_VERSION, at(grid, GLOBAL_VERSION) + 1)


@separate
def alike(grid: int, warp: int, row: int, mask: int) -> bool:
    """Whether these are all lanes of the warp, and have the same in this register."""
    registers, first = registers_of(grid, warp) + 256 * row, -1
    if live_lanes(grid, warp) & ~mask:
        return False
    for lane in range(32):
        if mask >> lane & 1:
            if first < 0:
                first = lane
            elif at(registers, lane) != at(registers, first):
                return False
    return True


@separate
def load(grid: int, warp: int, pc: int, mask: int, block: int) -> bool:  # noqa: C901
    """ld; True if it is a poll that saw what it saw before."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    mode = at(word, 2)
    space, strength, size, count = (mode & 15, mode >> 4 & 15, mode >> 12 & 15, mode >> 16 & 15)
    signed, wide = (mode >> 20 & 1, mode >> 21 & 1)
    registers, poison = (registers_of(grid, warp), poison_of(grid, warp))
    base, offset = (at(word, 10), at(word, 11))
    sure(grid, warp, pc, base, mask, 0)
    everybody = strength == ACQUIRE and alike(grid, warp, base, mask)
    digest, first = (0, -1)
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        address = at(registers, 32 * base + lane) + offset
        place = located(grid, warp, pc, lane, space, address, size * count)
        if place < 0:
            return False
        touch(grid, warp, pc, READ, place, size * count)
        late = hidden_in(grid, warp, pc, lane, place, size * count)
        if at(grid, RACES) and strength != HINT:
            watch(grid, warp, pc, lane, place, size * count, False)
            if not late:
                ordered_read(grid, warp, pc, lane, place, everybody)
        if first < 0:
            first = address
        for part in range(count):
            spot = place + part * size
            value = earlier(grid, warp, pc, lane, spot, size) if late else content(grid, spot, size)
            digest = digest * 1000003 + value + address
            if strength in (RELAXED, ACQUIRE) and place < at(grid, SHARED_AT):
                note(grid, warp, pc, LOADED, lane, spot, value, part)
            if signed:
                value = zero_extended(sign_extended(value, 8 * size), 64 if wide else 32)
            to(registers, 32 * at(word, 3 + part) + lane, value)
            bad = undefined_earlier(grid, warp, pc, lane, spot, size) if late else undefined_in(grid, spot, size)
            if bad | at(poison, at(word, 3 + part)) >> lane & 1:
                keep(grid, warp, at(word, 3 + part), lane, bad | -(bad >> size - 1 & signed) << size)
    if strength in (WEAK, NON_COHERENT, HINT):
        return False
    return poll(grid, warp, pc, digest, first)


@separate
def writable(grid: int, warp: int, pc: int, lane: int, space: int, place: int, address: int, size: int) -> bool:
    """Ordinary stores write no constants, parameters, read-only allocations, mbarriers, nor bytes that are nobody's."""
    if place >= at(grid, SHARED_AT) + at(grid, BLOCK_COUNT) * at(grid, SHARED_BYTES):
        fault(grid, READ_ONLY, warp, pc, lane, address, space, size)
        return False
    if place < at(grid, SHARED_AT):
        if at(at(grid, ALLOCATIONS), 3 * at(at(grid, PAGES), place // PAGE) + 2) == CONSTANT:
            fault(grid, READ_ONLY, warp, pc, lane, address, space, size)
            return False
        return True
    for part in range(place - at(grid, SHARED_AT) >> 3, (place + size - 1 - at(grid, SHARED_AT) >> 3) + 1):
        kind = byte_at(at(grid, MBARRIERS), part)
        if kind == AN_MBARRIER:
            fault(grid, BAD_MBARRIER, warp, pc, lane, address, 1, size)
            return False
        if kind == OF_NOBODY:
            fault(grid, OUT_OF_BOUNDS, warp, pc, lane, address, space, size)
            return False
    return True


@separate
def store(grid: int, warp: int, pc: int, mask: int, block: int) -> None:
    """st; an undefined value makes the bytes undefined, and is a fault where others may see it (global memory)."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    mode = at(word, 2)
    space, strength, size, count = (mode & 15, mode >> 4 & 15, mode >> 12 & 15, mode >> 16 & 15)
    registers = registers_of(grid, warp)
    base, offset = (at(word, 10), at(word, 11))
    sure(grid, warp, pc, base, mask, 0)
    shared = space == SHARED
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        address = at(registers, 32 * base + lane) + offset
        place = located(grid, warp, pc, lane, space, address, size * count)
        if place < 0 or not writable(grid, warp, pc, lane, space, place, address, size * count):
            return
        shared = place >= at(grid, SHARED_AT)
        touch(grid, warp, pc, WRITE, place, size * count)
        remember(grid, warp, place, size * count)
        if at(grid, RACES):
            watch(grid, warp, pc, lane, place, size * count, True)
            ordered_write(grid, warp, pc, lane, place)
        for part in range(count):
            spot, row = (place + part * size, at(word, 3 + part))
            put(grid, spot, size, at(registers, 32 * row + lane))
            if strength != WEAK and not shared:
                note(grid, warp, pc, STORED, lane, spot, at(registers, 32 * row + lane), part)
            bad = undefined_of(grid, warp, row, lane) & (1 << size) - 1
            for byte in range(size):
                byte_to(at(grid, UNDEFINED_BYTES), spot + byte, bad >> byte & 1)
            if bad and (not shared):
                fault(grid, UNDEFINED, warp, pc, lane, row, 1, address + part * size)
    if at(grid, RACES) and tagged(word, 0, 1):
        tick(grid, warp)
    effect(grid, warp, block, SHARED if shared else GLOBAL, strength != WEAK)


@compiled
def combined(operation: int, bits: int, signed: bool, old: int, b: int, c: int) -> int:
    if operation == A_ADD:
        return old + b
    if operation == A_OR:
        return old | b
    if operation == A_AND:
        return old & b
    if operation == A_XOR:
        return old ^ b
    if operation == A_EXCH:
        return b
    if operation == A_CAS:
        return c if zero_extended(old, bits) == zero_extended(b, bits) else old
    if operation == A_INC:
        return 0 if not below(old, b) else old + 1
    if operation == A_DEC:
        return b if old == 0 or below(b, old) else old - 1
    if operation in (A_MIN, A_MAX):
        x = sign_extended(old, bits) if signed else zero_extended(old, bits)
        y = sign_extended(b, bits) if signed else zero_extended(b, bits)
        less = x < y if signed else below(x, y)
        return (x if less else y) if operation == A_MIN else y if less else x
    return bits32(as_f32(old) + as_f32(b))


@separate
def atomic(grid: int, warp: int, pc: int, mask: int, block: int) -> None:
    """atom and red, lane after lane."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    mode = at(word, 2)
    space, size, operation = (mode & 15, mode >> 12 & 15, mode >> 22 & 31)
    signed = mode >> 20 & 1 == 1
    registers = registers_of(grid, warp)
    base, offset = (at(word, 10), at(word, 11))
    sure(grid, warp, pc, base, mask, 0)
    sure(grid, warp, pc, at(word, 4), mask, 2)
    if operation == A_CAS:
        sure(grid, warp, pc, at(word, 5), mask, 2)
    bad = 0
    shared = space == SHARED
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        address = at(registers, 32 * base + lane) + offset
        place = located(grid, warp, pc, lane, space, address, size)
        if place < 0 or not writable(grid, warp, pc, lane, space, place, address, size):
            return
        shared = place >= at(grid, SHARED_AT)
        old = content(grid, place, size)
        if not shared:
            note(grid, warp, pc, ADDED, lane, place, at(registers, 32 * at(word, 4) + lane), operation)
        touch(grid, warp, pc, READ, place, size)
        touch(grid, warp, pc, WRITE, place, size)
        remember(grid, warp, place, size)
        if at(grid, RACES):
            watch(grid, warp, pc, lane, place, size, True)
            if mode >> 27 & 1 == 0:
                ordered_read(grid, warp, pc, lane, place, False)
            ordered_write(grid, warp, pc, lane, place)
        if undefined_in(grid, place, size):
            bad |= 1 << lane
            fault(grid, UNDEFINED, warp, pc, lane, base, 3, address)
        put(
            grid,
            place,
            size,
            combined(
                operation,
                8 * size,
                signed,
                old,
                at(registers, 32 * at(word, 4) + lane),
                at(registers, 32 * at(word, 5) + lane),
            ),
        )
        to(registers, 32 * at(word, 3) + lane, old)
    mark(grid, warp, at(word, 3), mask, bad)
    effect(grid, warp, block, SHARED if shared else GLOBAL, True)
