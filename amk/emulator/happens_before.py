"""Which access happened before which, in the run that was executed: vector clocks of warps, last accesses of bytes.

Property: two accesses of a byte of which one writes, by different warps or by a warp and its asynchronous copies,
    neither before the other in the order of this run, are told, unless both are strong, of equal size, and of a scope
    that holds both (a race of PTX ISA 8.9). Not seen: a strong read followed by a weak write, and a race of an access
    with an older one than the byte's last write.
Assumes: a warp is one thread, its copies are a second one; a copy is over when a wait for its mbarrier or its group
    has ended. Synchronisation of scope cta on global memory counts for nothing.
    A vector has two halves: what happened before, and which reads are over as well. A tagged word (a relaxed store and
    a relaxed load of 64 bits) hands on the second alone: what is stored there was computed from what was read, so a
    write behind it may follow those reads, and nobody may read what was written before it.
Algorithm: FastTrack (Flanagan and Freund, PLDI 2009): epochs of the last write and last read of each byte, a vector
    of reads where several are unordered.
Cost: 16 bytes of memory a byte of state, scratch and shared memory that is touched, and a vector for each
    synchronising word, each byte that several warps read at a time; it gives up (GAVE_UP) when these run out.

An epoch is clock << 32 | thread << 19 | pc; thread WARP_COUNT + w stands for the copies of warp w.
"""

from __future__ import annotations

from amk.emulator import isa
from amk.emulator.bits import compiled, separate
from amk.emulator.cells import at, to
from amk.emulator.isa import ACQUIRE, CTA, NON_COHERENT, RELAXED, RELEASE, VOLATILE, WEAK
from amk.emulator.program import COLUMNS
from amk.emulator.state import (
    AGENTS,
    ALLOCATIONS,
    BARRIER_CLOCKS,
    BLOCK_COUNT,
    CLOCKS,
    CODE,
    COMMITS,
    COMMITTED,
    CONST_AT,
    CONSTANT,
    FREE,
    FREE_COUNT,
    GAVE_UP,
    LAUNCHED,
    NON_COHERENT_READ,
    PAGE,
    PAGES,
    POOL,
    POOL_ROOM,
    POOL_USED,
    RACE,
    RACES,
    SEEN,
    SHARED_AT,
    SYNC_OF,
    WARP_COUNT,
    WRITTEN,
    fault,
)

NOW_KNOWN, LOOKED, FENCED = 0, 1, 3
"""Vectors of a warp: what happened before its present; what relaxed reads would give if a fence followed (of global,
of shared memory); what happened before its last fence (the same two)."""
VECTORS = 5
THREAD_BITS, PC_BITS = 13, 19


@compiled
def thread_of(epoch: int) -> int:
    return epoch >> PC_BITS & 8191


@compiled
def vector(grid: int, warp: int, which: int) -> int:
    return at(grid, CLOCKS) + 32 * at(grid, WARP_COUNT) * (VECTORS * warp + which)


@compiled
def pooled(grid: int, number: int) -> int:
    return at(grid, POOL) + 32 * at(grid, WARP_COUNT) * number


@compiled
def known(grid: int, warp: int, epoch: int) -> bool:
    """Whether what the epoch stands for happened before the warp's present."""
    return epoch >> 32 <= at(vector(grid, warp, NOW_KNOWN), thread_of(epoch))


@compiled
def over(grid: int, warp: int, epoch: int) -> bool:
    """Whether a read is over at the warp's present."""
    now, thread = vector(grid, warp, NOW_KNOWN), thread_of(epoch)
    return epoch >> 32 <= max(at(now, thread), at(now, 2 * at(grid, WARP_COUNT) + thread))


@separate
def join(grid: int, into: int, of: int) -> None:
    for thread in range(4 * at(grid, WARP_COUNT)):
        if at(of, thread) > at(into, thread):
            to(into, thread, at(of, thread))


@separate
def clear(grid: int, one: int) -> None:
    for thread in range(4 * at(grid, WARP_COUNT)):
        to(one, thread, 0)


@compiled
def tick(grid: int, warp: int) -> None:
    """What the warp does from here on is not part of what it has released."""
    own = vector(grid, warp, NOW_KNOWN)
    to(own, warp, at(own, warp) + 1)


@separate
def fresh(grid: int) -> int:
    """The number of a vector of zeros; when there is none left, races are no longer looked for."""
    if at(grid, FREE_COUNT):
        to(grid, FREE_COUNT, at(grid, FREE_COUNT) - 1)
        number = at(at(grid, FREE), at(grid, FREE_COUNT))
    else:
        number = at(grid, POOL_USED)
        if number == at(grid, POOL_ROOM) - 1:
            to(grid, RACES, 0)
            to(grid, GAVE_UP, 1)
            return number
        to(grid, POOL_USED, number + 1)
    clear(grid, pooled(grid, number))
    return number


@compiled
def watched(grid: int, place: int) -> bool:
    """Constants and parameters are not: nothing may write them."""
    if place >= at(grid, SHARED_AT):
        return place < at(grid, CONST_AT)
    return at(at(grid, ALLOCATIONS), 3 * at(at(grid, PAGES), place // PAGE) + 2) != CONSTANT


@compiled
def strong(word: int) -> bool:
    operation = at(word, 0)
    if operation == isa.LD or operation == isa.ST:
        strength = at(word, 2) >> 4 & 15
        return strength != WEAK and strength != NON_COHERENT
    return operation == isa.ATOM or (isa.MBAR_INVAL < operation <= isa.MBAR_TRY)


@compiled
def narrow(word: int) -> bool:
    """Of scope cta."""
    mode = at(word, 2)
    return at(word, 0) in (isa.LD, isa.ST, isa.ATOM) and mode >> 8 & 15 == CTA and mode >> 4 & 15 != VOLATILE


@separate
def agree(grid: int, warp: int, pc: int, epoch: int) -> bool:
    """Whether two accesses are strong enough to meet: both strong, of one size, each within the other's scope."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    other = at(grid, CODE) + 8 * COLUMNS * (epoch & (1 << PC_BITS) - 1)
    if not (strong(word) and strong(other)):
        return False
    mbarriers = at(word, 0) >= isa.MBAR_INIT
    if not mbarriers and at(word, 2) >> 12 & 15 != at(other, 2) >> 12 & 15:
        return False
    each = at(grid, WARP_COUNT) // at(grid, BLOCK_COUNT)
    together = warp // each == thread_of(epoch) % at(grid, WARP_COUNT) // each
    return together or not (narrow(word) or narrow(other))


@separate
def unordered(grid: int, warp: int, pc: int, lane: int, byte: int, epoch: int, what: int) -> None:
    """Tell a race unless the two accesses may meet. what: bit 0, this one writes; bit 1, the other one read."""
    if not agree(grid, warp, pc, epoch):
        fault(grid, RACE, warp, pc, lane, byte, epoch, what)


@separate
def read_by(grid: int, warp: int, byte: int, mine: int) -> None:
    """Note a weak read."""
    seen = at(at(grid, SEEN), byte)
    if seen < 0:
        to(pooled(grid, -1 - seen), thread_of(mine), mine)
    elif seen == 0 or known(grid, warp, seen):
        to(at(grid, SEEN), byte, mine)
    else:
        number = fresh(grid)
        to(pooled(grid, number), thread_of(seen), seen)
        to(pooled(grid, number), thread_of(mine), mine)
        to(at(grid, SEEN), byte, -1 - number)


@separate
def forget_reads(grid: int, warp: int, pc: int, lane: int, byte: int) -> None:
    """A write follows the reads of this byte: all have to be before it."""
    seen = at(at(grid, SEEN), byte)
    if seen > 0:
        if not over(grid, warp, seen):
            unordered(grid, warp, pc, lane, byte, seen, 3)
    else:
        reads = pooled(grid, -1 - seen)
        for thread in range(2 * at(grid, WARP_COUNT)):
            if at(reads, thread) and not over(grid, warp, at(reads, thread)):
                unordered(grid, warp, pc, lane, byte, at(reads, thread), 3)
        to(at(grid, FREE), at(grid, FREE_COUNT), -1 - seen)
        to(grid, FREE_COUNT, at(grid, FREE_COUNT) + 1)
    to(at(grid, SEEN), byte, 0)


@separate
def watch_as(grid: int, warp: int, pc: int, lane: int, place: int, size: int, writes: bool, mine: int) -> None:
    """An access that the warp makes, or starts, at this moment of its order; `mine` is the epoch that stands for it."""
    if not watched(grid, place):
        return
    word = at(grid, CODE) + 8 * COLUMNS * pc
    records = not strong(word)
    stale = at(word, 0) == isa.LD and at(word, 2) >> 4 & 15 == NON_COHERENT
    for byte in range(place, place + size):
        before = at(at(grid, WRITTEN), byte)
        if before and before != mine:
            if not known(grid, warp, before):
                unordered(grid, warp, pc, lane, byte, before, 1 if writes else 0)
            if stale and before >> 32 > at(grid, LAUNCHED):
                fault(grid, NON_COHERENT_READ, warp, pc, lane, byte, before, 0)
        if writes:
            if at(at(grid, SEEN), byte):
                forget_reads(grid, warp, pc, lane, byte)
            to(at(grid, WRITTEN), byte, mine)
        elif records and at(at(grid, SEEN), byte) != mine:
            read_by(grid, warp, byte, mine)


@separate
def watch(grid: int, warp: int, pc: int, lane: int, place: int, size: int, writes: bool) -> None:
    """An ordinary access of a warp."""
    clock = at(vector(grid, warp, NOW_KNOWN), warp)
    watch_as(grid, warp, pc, lane, place, size, writes, clock << 32 | warp << PC_BITS | pc)


@separate
def take(grid: int, into: int, place: int) -> None:
    """Join what was released at a word into a vector."""
    number = at(at(grid, SYNC_OF), place >> 2)
    if number:
        join(grid, into, pooled(grid, number - 1))


@separate
def give(grid: int, place: int, of: int, replaces: bool) -> None:
    """Release a vector at a word; a store replaces what was released there before, a reduction adds to it."""
    number = at(at(grid, SYNC_OF), place >> 2)
    if number == 0:
        number = fresh(grid) + 1
        to(at(grid, SYNC_OF), place >> 2, number)
    elif replaces:
        clear(grid, pooled(grid, number - 1))
    join(grid, pooled(grid, number - 1), of)


@compiled
def tagged(word: int, place: int, shared: int) -> bool:
    """A relaxed load or store of 64 bits of global memory."""
    mode = at(word, 2)
    return at(word, 0) in (isa.LD, isa.ST) and place < shared and mode >> 4 & 15 == RELAXED and mode >> 12 & 15 == 8


@separate
def hand_over(grid: int, warp: int, place: int) -> None:
    """Tell readers of this tagged word which reads are over. Its second half has the vector, as an mbarrier's has."""
    number = at(at(grid, SYNC_OF), place + 4 >> 2)
    if number == 0:
        number = fresh(grid) + 1
        to(at(grid, SYNC_OF), place + 4 >> 2, number)
    row, now, half = pooled(grid, number - 1), vector(grid, warp, NOW_KNOWN), 2 * at(grid, WARP_COUNT)
    for thread in range(half):
        to(row, half + thread, max(at(now, thread), at(now, half + thread)))


@separate
def ordered_read(grid: int, warp: int, pc: int, place: int) -> None:
    """What a load, or an atomic with a result, learns from the word that it read."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    inside = place >= at(grid, SHARED_AT)
    if not strong(word) or (narrow(word) and not inside):
        return
    if at(word, 2) >> 4 & 15 == ACQUIRE:
        take(grid, vector(grid, warp, NOW_KNOWN), place)
    elif tagged(word, place, at(grid, SHARED_AT)):
        for part in range(at(word, 2) >> 16 & 15):
            take(grid, vector(grid, warp, NOW_KNOWN), place + 8 * part + 4)
    else:
        take(grid, vector(grid, warp, LOOKED + (1 if inside else 0)), place)


@separate
def ordered_write(grid: int, warp: int, pc: int, place: int) -> None:
    """What a store or an atomic tells those who read its word."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    inside = place >= at(grid, SHARED_AT)
    replaces = at(word, 0) == isa.ST
    wide = strong(word) and (inside or not narrow(word))
    if wide and at(word, 2) >> 4 & 15 == RELEASE:
        give(grid, place, vector(grid, warp, NOW_KNOWN), replaces)
        tick(grid, warp)
        return
    if tagged(word, place, at(grid, SHARED_AT)):
        for part in range(at(word, 2) >> 16 & 15):
            hand_over(grid, warp, place + 8 * part)
        tick(grid, warp)
    fenced = vector(grid, warp, FENCED + (1 if inside else 0))
    if wide and at(fenced, warp):
        give(grid, place, fenced, replaces)
    elif replaces and at(at(grid, SYNC_OF), place >> 2):
        clear(grid, pooled(grid, at(at(grid, SYNC_OF), place >> 2) - 1))


@separate
def fence(grid: int, warp: int, mode: int) -> None:
    """fence.acq_rel and fence.sc; of scope cta only for words in shared memory."""
    if mode not in (isa.F_CTA, isa.F_GPU):
        return
    now = vector(grid, warp, NOW_KNOWN)
    for inside in range(1 if mode == isa.F_CTA else 0, 2):
        join(grid, now, vector(grid, warp, LOOKED + inside))
    for inside in range(1 if mode == isa.F_CTA else 0, 2):
        join(grid, vector(grid, warp, FENCED + inside), now)
    tick(grid, warp)


@compiled
def barrier_vector(grid: int, block: int, number: int) -> int:
    return at(grid, BARRIER_CLOCKS) + 32 * at(grid, WARP_COUNT) * (16 * block + number)


@separate
def arrive(grid: int, warp: int, block: int, number: int) -> None:
    """At a named barrier."""
    if not at(grid, RACES):
        return
    join(grid, barrier_vector(grid, block, number), vector(grid, warp, NOW_KNOWN))
    tick(grid, warp)


@separate
def meet(grid: int, block: int, number: int) -> None:
    """The last warp has arrived at a barrier: nobody has arrived at its next use."""
    if at(grid, RACES):
        clear(grid, barrier_vector(grid, block, number))


@separate
def leave(grid: int, warp: int, block: int, number: int) -> None:
    """A warp that has waited goes on."""
    if not at(grid, RACES):
        return
    join(grid, vector(grid, warp, NOW_KNOWN), barrier_vector(grid, block, number))


@separate
def ended_phase(grid: int, place: int) -> None:
    """The phase of an mbarrier is complete: what arrived is there for those who wait. The vector of its first word
    collects, that of its second is what complete phases released."""
    number = at(at(grid, SYNC_OF), place >> 2)
    if number:
        give(grid, place + 4, pooled(grid, number - 1), False)
        clear(grid, pooled(grid, number - 1))


@separate
def copy_over(grid: int, warp: int, clock: int, place: int) -> None:
    """A bulk copy of the warp counts its bytes at an mbarrier."""
    number = at(at(grid, SYNC_OF), place >> 2)
    if number == 0:
        number = fresh(grid) + 1
        to(at(grid, SYNC_OF), place >> 2, number)
    row, thread = pooled(grid, number - 1), at(grid, WARP_COUNT) + warp
    to(row, thread, max(at(row, thread), clock))


@separate
def copied(grid: int, warp: int, pc: int, lane: int, source: int, destination: int, size: int, clock: int) -> None:
    """A copy starts: from here on it reads its source and writes its destination at any time."""
    mine = clock << 32 | at(grid, WARP_COUNT) + warp << PC_BITS | pc
    watch_as(grid, warp, pc, lane, source, size, False, mine)
    watch_as(grid, warp, pc, lane, destination, size, True, mine)


@separate
def bulk_started(grid: int, warp: int, pc: int, lane: int, source: int, destination: int, size: int) -> None:
    """A bulk copy has a clock of its own."""
    if not at(grid, RACES):
        return
    clock = at(at(grid, AGENTS), warp) + 1
    to(at(grid, AGENTS), warp, clock)
    copied(grid, warp, pc, lane, source, destination, size, clock)


@separate
def committed(grid: int, warp: int) -> None:
    """cp.async.commit_group: the copies since the last one are over together."""
    clock = at(at(grid, AGENTS), warp) + 1
    to(at(grid, AGENTS), warp, clock)
    count = at(at(grid, COMMITTED), warp)
    to(at(grid, COMMITS), 64 * warp + count % 64, clock)
    to(at(grid, COMMITTED), warp, count + 1)


@separate
def groups_over(grid: int, warp: int, pending: int) -> None:
    """All but the last `pending` groups of the warp are complete; -1: every copy is."""
    thread, now = at(grid, WARP_COUNT) + warp, vector(grid, warp, NOW_KNOWN)
    clock = at(at(grid, AGENTS), warp) + 1
    if pending >= 0:
        count = at(at(grid, COMMITTED), warp)
        if pending >= count or pending >= 64:
            return
        clock = at(at(grid, COMMITS), 64 * warp + (count - pending - 1) % 64)
    to(now, thread, max(at(now, thread), clock))
