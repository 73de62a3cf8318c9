"""Loads, stores, atomics, asynchronous copies, mbarriers of one warp."""

from __future__ import annotations

from amk.emulator import isa
from amk.emulator.bits import as_f32, below, bits32, compiled, separate, sign_extended, zero_extended
from amk.emulator.cells import at, byte_at, byte_to, half_at, half_to, to, word_at, word_to
from amk.emulator.happens_before import (
    NOW_KNOWN,
    bulk_started,
    committed,
    copied,
    copy_over,
    ended_phase,
    give,
    groups_over,
    ordered_read,
    ordered_write,
    take,
    tick,
    vector,
    watch,
)
from amk.emulator.isa import GLOBAL, NON_COHERENT, SHARED, WEAK
from amk.emulator.program import COLUMNS
from amk.emulator.state import (
    AGENTS,
    ALLOCATIONS,
    ASLEEP,
    BAD_MBARRIER,
    BLOCK_COUNT,
    BLOCKS,
    CODE,
    CONSTANT,
    COPIES,
    COPY_QUEUE,
    COPY_ROOM,
    EAGER,
    EFFECTS,
    GLOBAL_VERSION,
    GROUPS,
    LANDED,
    MBARRIERS,
    MEMORY,
    MISALIGNED,
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
    SEQUENCE,
    SHARED_AT,
    SHARED_BYTES,
    SMALL_COUNT,
    SMALL_QUEUE,
    SMALL_ROOM,
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
def taken(grid: int, place: int, size: int) -> int:
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
def undefined_in(grid: int, place: int, size: int) -> bool:
    for byte in range(place, place + size):  # noqa: SIM110
        if byte_at(at(grid, UNDEFINED_BYTES), byte):
            return True
    return False


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
def load(grid: int, warp: int, pc: int, mask: int, block: int) -> bool:  # noqa: C901
    """ld; True if it is a poll that saw what it saw before."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    mode = at(word, 2)
    space, strength, size, count = (mode & 15, mode >> 4 & 15, mode >> 12 & 15, mode >> 16 & 15)
    signed, wide = (mode >> 20 & 1, mode >> 21 & 1)
    registers, poison = (registers_of(grid, warp), poison_of(grid, warp))
    base, offset = (at(word, 10), at(word, 11))
    sure(grid, warp, pc, base, mask, 0)
    bad0 = bad1 = bad2 = bad3 = 0
    digest, first = (0, -1)
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        address = at(registers, 32 * base + lane) + offset
        place = located(grid, warp, pc, lane, space, address, size * count)
        if place < 0:
            return False
        if at(grid, RACES):
            watch(grid, warp, pc, lane, place, size * count, False)
            ordered_read(grid, warp, pc, place)
        if first < 0:
            first = address
        for part in range(count):
            spot = place + part * size
            value = taken(grid, spot, size)
            digest = digest * 1000003 + value + address
            if signed:
                value = zero_extended(sign_extended(value, 8 * size), 64 if wide else 32)
            to(registers, 32 * at(word, 3 + part) + lane, value)
            if undefined_in(grid, spot, size):
                if part == 0:
                    bad0 |= 1 << lane
                elif part == 1:
                    bad1 |= 1 << lane
                elif part == 2:
                    bad2 |= 1 << lane
                else:
                    bad3 |= 1 << lane
    for part in range(count):
        row = at(word, 3 + part)
        bad = bad0 if part == 0 else bad1 if part == 1 else bad2 if part == 2 else bad3
        to(poison, row, at(poison, row) & ~mask | bad)
    if strength in (WEAK, NON_COHERENT):
        return False
    return poll(grid, warp, pc, digest, first)


@separate
def writable(grid: int, warp: int, pc: int, lane: int, space: int, place: int, address: int, size: int) -> bool:
    """Constants, parameters, read-only allocations and mbarriers are not written by ordinary stores."""
    if place >= at(grid, SHARED_AT) + at(grid, BLOCK_COUNT) * at(grid, SHARED_BYTES):
        fault(grid, READ_ONLY, warp, pc, lane, address, space, size)
        return False
    if place < at(grid, SHARED_AT):
        if at(at(grid, ALLOCATIONS), 3 * at(at(grid, PAGES), place // PAGE) + 2) == CONSTANT:
            fault(grid, READ_ONLY, warp, pc, lane, address, space, size)
            return False
        return True
    for part in range(place - at(grid, SHARED_AT) >> 3, (place + size - 1 - at(grid, SHARED_AT) >> 3) + 1):
        if byte_at(at(grid, MBARRIERS), part):
            fault(grid, BAD_MBARRIER, warp, pc, lane, address, 1, size)
            return False
    return True


@separate
def store(grid: int, warp: int, pc: int, mask: int, block: int) -> None:
    """st; an undefined value makes the bytes undefined, and is a fault where others may see it (global memory)."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    mode = at(word, 2)
    space, strength, size, count = (mode & 15, mode >> 4 & 15, mode >> 12 & 15, mode >> 16 & 15)
    registers, poison = (registers_of(grid, warp), poison_of(grid, warp))
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
        if at(grid, RACES):
            watch(grid, warp, pc, lane, place, size * count, True)
            ordered_write(grid, warp, pc, place)
        for part in range(count):
            spot, row = (place + part * size, at(word, 3 + part))
            put(grid, spot, size, at(registers, 32 * row + lane))
            bad = at(poison, row) >> lane & 1
            for byte in range(spot, spot + size):
                byte_to(at(grid, UNDEFINED_BYTES), byte, bad)
            if bad and (not shared):
                fault(grid, UNDEFINED, warp, pc, lane, row, 1, address + part * size)
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
    registers, poison = (registers_of(grid, warp), poison_of(grid, warp))
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
        old = taken(grid, place, size)
        if at(grid, RACES):
            watch(grid, warp, pc, lane, place, size, True)
            if mode >> 27 & 1 == 0:
                ordered_read(grid, warp, pc, place)
            ordered_write(grid, warp, pc, place)
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
    to(poison, at(word, 3), at(poison, at(word, 3)) & ~mask | bad)
    effect(grid, warp, block, SHARED if shared else GLOBAL, True)


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
            byte_to(at(grid, MBARRIERS), flag, 1)
            to(at(grid, MEMORY), place >> 3, value << 1 | value << 21)
            for byte in range(place, place + 8):
                byte_to(at(grid, UNDEFINED_BYTES), byte, 0)
            continue
        if not byte_at(at(grid, MBARRIERS), flag):
            fault(grid, BAD_MBARRIER, warp, pc, lane, address, 3, value)
            return False
        if operation == isa.MBAR_INVAL:
            byte_to(at(grid, MBARRIERS), flag, 0)
        elif operation == isa.MBAR_TRY:
            if at(at(grid, MEMORY), place >> 3) & 1 != value & 1:
                done |= 1 << lane
                if at(grid, RACES):
                    take(grid, vector(grid, warp, NOW_KNOWN), place + 4)
            else:
                waits = True
                digest = digest * 1000003 + address
                first = address
        else:
            arrivals = 0 if operation == isa.MBAR_EXPECT else 1 if at(word, 2) == 1 else value
            expected = value if operation == isa.MBAR_EXPECT or at(word, 2) == 1 else 0
            if at(grid, RACES) and operation == isa.MBAR_ARRIVE:
                give(grid, place, vector(grid, warp, NOW_KNOWN), False)
                tick(grid, warp)
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
    if not byte_at(at(grid, MBARRIERS), barrier - shared >> 3) or not changed(grid, barrier, 0, 0, size):
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
        if at(grid, RACES):
            copied(grid, warp, pc, lane, source, destination, size, at(at(grid, AGENTS), warp) + 1)
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
    if at(grid, RACES):
        groups_over(grid, warp, pending)


@separate
def commit_small(grid: int, warp: int, mask: int) -> None:
    for lane in range(32):
        if mask >> lane & 1:
            to(at(grid, GROUPS), 32 * warp + lane, at(at(grid, GROUPS), 32 * warp + lane) + 1)
    if at(grid, RACES):
        committed(grid, warp)
