"""Which access happened before which, in the run that was executed: last accesses of bytes, what synchronises.

Property: every race of this run is told, but for those below. A race is two accesses of a byte, of which one writes and
    neither is before the other in the order of this run. They are by different lanes, also of one warp, or by a lane
    and an asynchronous copy. Two strong accesses of equal size whose scope holds both are no race (PTX ISA 8.9).
    Not seen: a strong read followed by a weak write, and a race with an older access than the byte's last write.
Assumes: `clocks` says what a lane knows. The copies of a warp are one more thread. A copy is over when a wait for its
    mbarrier or its group has ended. Synchronisation of scope cta on global memory counts for nothing.
    A vector has two halves: what happened before, and which reads are over as well. A tagged word (a relaxed store and
    a relaxed load of 64 bits) hands on the second alone. What it stores was computed from what was read, so a write
    behind it may follow those reads. Nobody may read what was written before it.
Algorithm: FastTrack (Flanagan and Freund, PLDI 2009): epochs of the last write and last read of each byte, a vector
    of reads where several are unordered.
Cost: 16 bytes of memory a byte of state, scratch and shared memory that is touched. A vector for each synchronising
    word and each byte that several warps read at a time. It gives up (GAVE_UP) when these run out.
"""

from __future__ import annotations

from amk.emulator.arithmetic.bits import compiled, separate
from amk.emulator.memory.cells import at, to
from amk.emulator.memory.clocks import (
    FENCED,
    LANE_AT,
    LOOKED,
    MANY,
    NOBODY,
    OWN,
    PC_BITS,
    all_to,
    clear,
    clock_of,
    epoch_of,
    free,
    fresh,
    happened_before,
    join,
    lane_of,
    lane_vector,
    lanes_over,
    moment,
    one_to,
    pooled,
    raise_to,
    reads_over,
    thread_of,
    tick,
    vector,
    vectors_of_lanes,
)
from amk.emulator.memory.state import (
    AGENTS,
    ALLOCATIONS,
    BLOCK_COUNT,
    CODE,
    COMMITS,
    COMMITTED,
    CONST_AT,
    CONSTANT,
    FENCED_AT,
    LAUNCHED,
    NON_COHERENT_READ,
    PAGE,
    PAGES,
    RACE,
    RACES,
    READ_EPOCHS,
    SHARED_AT,
    SYNC_OF,
    WAITED,
    WARP_COUNT,
    WRITE_EPOCHS,
    fault,
)
from amk.emulator.ptx import isa
from amk.emulator.ptx.encode import COLUMNS
from amk.emulator.ptx.isa import ACQUIRE, CTA, NON_COHERENT, RELAXED, RELEASE, VOLATILE, WEAK


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


@separate
def over(grid: int, warp: int, lane: int, epoch: int) -> bool:
    """Whether a read is over at the lane's present."""
    if happened_before(grid, warp, lane, epoch) or reads_over(grid, vector(grid, warp), epoch):
        return True
    own = at(vectors_of_lanes(grid, warp, OWN), lane)
    return own != 0 and reads_over(grid, pooled(grid, own - 1), epoch)


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


@compiled
def with_others(theirs: int, mine: int) -> int:
    """One epoch for reads of one thread: of a lane, or of several."""
    return mine if lane_of(theirs) == lane_of(mine) else mine & ~(63 << LANE_AT) | MANY << LANE_AT


@separate
def read_by(grid: int, warp: int, lane: int, byte: int, mine: int) -> None:
    """Note a weak read."""
    seen, thread = at(at(grid, READ_EPOCHS), byte), thread_of(mine)
    if seen < 0:
        reads = pooled(grid, -1 - seen)
        last = at(reads, thread)
        to(reads, thread, mine if last == 0 or happened_before(grid, warp, lane, last) else with_others(last, mine))
    elif seen == 0 or happened_before(grid, warp, lane, seen):
        to(at(grid, READ_EPOCHS), byte, mine)
    elif thread_of(seen) == thread:
        to(at(grid, READ_EPOCHS), byte, with_others(seen, mine))
    else:
        number = fresh(grid)
        to(pooled(grid, number), thread_of(seen), seen)
        to(pooled(grid, number), thread, mine)
        to(at(grid, READ_EPOCHS), byte, -1 - number)


@separate
def forget_reads(grid: int, warp: int, pc: int, lane: int, byte: int) -> None:
    """A write follows the reads of this byte: all have to be before it."""
    seen = at(at(grid, READ_EPOCHS), byte)
    if seen > 0:
        if not over(grid, warp, lane, seen):
            unordered(grid, warp, pc, lane, byte, seen, 3)
    else:
        reads = pooled(grid, -1 - seen)
        for thread in range(2 * at(grid, WARP_COUNT)):
            if at(reads, thread) and not over(grid, warp, lane, at(reads, thread)):
                unordered(grid, warp, pc, lane, byte, at(reads, thread), 3)
        free(grid, -1 - seen)
    to(at(grid, READ_EPOCHS), byte, 0)


@separate
def watch_as(grid: int, warp: int, pc: int, lane: int, place: int, size: int, writes: bool, mine: int) -> None:
    """An access that the lane makes, or starts, at this moment of its order; `mine` is the epoch that stands for it."""
    if not watched(grid, place):
        return
    word = at(grid, CODE) + 8 * COLUMNS * pc
    records = not strong(word)
    stale = at(word, 0) == isa.LD and at(word, 2) >> 4 & 15 == NON_COHERENT
    several = mine & ~(63 << LANE_AT) | MANY << LANE_AT
    ordered = 0
    for byte in range(place, place + size):
        before = at(at(grid, WRITE_EPOCHS), byte)
        if before and before != mine:
            if before != ordered and not happened_before(grid, warp, lane, before):
                unordered(grid, warp, pc, lane, byte, before, 1 if writes else 0)
            ordered = before
            if stale and clock_of(before) > at(grid, LAUNCHED):
                fault(grid, NON_COHERENT_READ, warp, pc, lane, byte, before, 0)
        seen = at(at(grid, READ_EPOCHS), byte)
        if writes:
            if seen:
                forget_reads(grid, warp, pc, lane, byte)
            to(at(grid, WRITE_EPOCHS), byte, mine)
        elif records and seen != mine and seen != several:
            read_by(grid, warp, lane, byte, mine)


@separate
def watch(grid: int, warp: int, pc: int, lane: int, place: int, size: int, writes: bool) -> None:
    """An ordinary access of a lane."""
    watch_as(grid, warp, pc, lane, place, size, writes, epoch_of(moment(grid, warp), lane, warp, pc))


@separate
def take(grid: int, into: int, place: int) -> None:
    """Join what was released at a word into a vector."""
    number = at(at(grid, SYNC_OF), place >> 2)
    if number:
        join(grid, into, pooled(grid, number - 1))


@separate
def released(grid: int, place: int, replaces: bool) -> int:
    """The vector of a word; a store replaces what was released there before, a reduction adds to it."""
    number = at(at(grid, SYNC_OF), place >> 2)
    if number == 0:
        number = fresh(grid) + 1
        to(at(grid, SYNC_OF), place >> 2, number)
    elif replaces:
        clear(grid, pooled(grid, number - 1))
    return pooled(grid, number - 1)


@compiled
def tagged(word: int, place: int, shared: int) -> bool:
    """A relaxed load or store of 64 bits of global memory."""
    mode = at(word, 2)
    return at(word, 0) in (isa.LD, isa.ST) and place < shared and mode >> 4 & 15 == RELAXED and mode >> 12 & 15 == 8


@separate
def hand_over(grid: int, warp: int, lane: int, place: int) -> None:
    """Tell readers of this tagged word which reads are over. Its second half has the vector, as an mbarrier's has."""
    row, warps = released(grid, place + 4, False), at(grid, WARP_COUNT)
    own = at(vectors_of_lanes(grid, warp, OWN), lane)
    for source in range(2 if own else 1):
        of = pooled(grid, own - 1) if source else vector(grid, warp)
        for thread in range(2 * warps):
            raise_to(row, 2 * warps + thread, max(at(of, thread), at(of, 2 * warps + thread)))
        for thread in range(warps):
            one, some = at(of, 4 * warps + thread), at(of, 5 * warps + thread)
            if one:
                lanes_over(grid, row, thread, one >> 6 << 32 | 1 << (one & 63))
            if some:
                lanes_over(grid, row, thread, some)
    lanes_over(grid, row, warp, moment(grid, warp) << 32 | 1 << lane)


@separate
def acquired(grid: int, warp: int, lane: int, place: int, everybody: bool) -> None:
    """The lane, or every lane of the warp at once, learns what was released at a word."""
    if at(at(grid, SYNC_OF), place >> 2):
        take(grid, vector(grid, warp) if everybody else lane_vector(grid, warp, lane, OWN), place)


@separate
def ordered_read(grid: int, warp: int, pc: int, lane: int, place: int, everybody: bool) -> None:
    """What a load, or an atomic with a result, learns from the word that it read; everybody: all lanes read it."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    inside = place >= at(grid, SHARED_AT)
    if not strong(word) or (narrow(word) and not inside):
        return
    if at(word, 2) >> 4 & 15 == ACQUIRE:
        acquired(grid, warp, lane, place, everybody)
    elif tagged(word, place, at(grid, SHARED_AT)):
        for part in range(at(word, 2) >> 16 & 15):
            acquired(grid, warp, lane, place + 8 * part + 4, False)
    elif at(at(grid, SYNC_OF), place >> 2):
        take(grid, lane_vector(grid, warp, lane, LOOKED + (1 if inside else 0)), place)


@separate
def ordered_write(grid: int, warp: int, pc: int, lane: int, place: int) -> None:
    """What a store or an atomic tells those who read its word."""
    word = at(grid, CODE) + 8 * COLUMNS * pc
    inside = place >= at(grid, SHARED_AT)
    replaces = at(word, 0) == isa.ST
    wide = strong(word) and (inside or not narrow(word))
    if wide and at(word, 2) >> 4 & 15 == RELEASE:
        one_to(grid, warp, lane, released(grid, place, replaces))
        tick(grid, warp)
        return
    if tagged(word, place, at(grid, SHARED_AT)):
        for part in range(at(word, 2) >> 16 & 15):
            hand_over(grid, warp, lane, place + 8 * part)
    fenced = at(at(grid, FENCED_AT), 64 * warp + 32 * (1 if inside else 0) + lane)
    if wide and fenced:
        row = released(grid, place, replaces)
        join(grid, row, lane_vector(grid, warp, lane, FENCED + (1 if inside else 0)))
        raise_to(row, 4 * at(grid, WARP_COUNT) + warp, fenced << 6 | lane)
    elif replaces and at(at(grid, SYNC_OF), place >> 2):
        clear(grid, pooled(grid, at(at(grid, SYNC_OF), place >> 2) - 1))


@separate
def lane_fence(grid: int, warp: int, lane: int, first: int) -> None:
    """For words of shared memory (1), or of global memory too (0): what the lane has looked at is acquired, and what it
    knows may be released."""
    for inside in range(first, 2):
        looked = at(vectors_of_lanes(grid, warp, LOOKED + inside), lane)
        if looked:
            join(grid, lane_vector(grid, warp, lane, OWN), pooled(grid, looked - 1))
    own = at(vectors_of_lanes(grid, warp, OWN), lane)
    for inside in range(first, 2):
        fenced = lane_vector(grid, warp, lane, FENCED + inside)
        join(grid, fenced, vector(grid, warp))
        if own:
            join(grid, fenced, pooled(grid, own - 1))
        to(at(grid, FENCED_AT), 64 * warp + 32 * inside + lane, moment(grid, warp))


@separate
def fence(grid: int, warp: int, mode: int, mask: int) -> None:
    """fence.acq_rel and fence.sc of these lanes; of scope cta only for words in shared memory."""
    if mode not in (isa.F_CTA, isa.F_GPU):
        return
    for lane in range(32):
        if mask >> lane & 1:
            lane_fence(grid, warp, lane, 1 if mode == isa.F_CTA else 0)
    tick(grid, warp)


@separate
def ended_phase(grid: int, place: int) -> None:
    """The phase of an mbarrier is complete: what arrived is there for those who wait. The vector of its first word
    collects, that of its second is what complete phases released."""
    number = at(at(grid, SYNC_OF), place >> 2)
    if number:
        join(grid, released(grid, place + 4, False), pooled(grid, number - 1))
        clear(grid, pooled(grid, number - 1))


@separate
def arrived_at(grid: int, warp: int, lane: int, place: int, everybody: int) -> None:
    """A lane arrives at an mbarrier. everybody: all lanes if this is the last of them to arrive there, else 0."""
    if everybody:
        all_to(grid, warp, everybody, released(grid, place, False))
    else:
        one_to(grid, warp, lane, released(grid, place, False))
    tick(grid, warp)


@separate
def copy_over(grid: int, warp: int, clock: int, place: int) -> None:
    """A bulk copy of the warp counts its bytes at an mbarrier."""
    raise_to(released(grid, place, False), at(grid, WARP_COUNT) + warp, clock)


@separate
def copied(
    grid: int, warp: int, pc: int, lane: int, source: int, destination: int, size: int, clock: int, by: int
) -> None:
    """A copy starts: from here on it reads its source and writes its destination at any time."""
    mine = epoch_of(clock, by, at(grid, WARP_COUNT) + warp, pc)
    watch_as(grid, warp, pc, lane, source, size, False, mine)
    watch_as(grid, warp, pc, lane, destination, size, True, mine)


@separate
def bulk_started(grid: int, warp: int, pc: int, lane: int, source: int, destination: int, size: int) -> None:
    """A bulk copy has a clock of its own."""
    if not at(grid, RACES):
        return
    clock = at(at(grid, AGENTS), warp) + 1
    to(at(grid, AGENTS), warp, clock)
    copied(grid, warp, pc, lane, source, destination, size, clock, NOBODY)


@separate
def committed(grid: int, warp: int) -> None:
    """cp.async.commit_group: the copies since the last one are over together."""
    clock = at(at(grid, AGENTS), warp) + 1
    to(at(grid, AGENTS), warp, clock)
    count = at(at(grid, COMMITTED), warp)
    to(at(grid, COMMITS), 64 * warp + count % 64, clock)
    to(at(grid, COMMITTED), warp, count + 1)


@separate
def groups_over(grid: int, warp: int, pending: int, mask: int) -> None:
    """All but the last `pending` groups of these lanes are complete; -1: every copy is."""
    clock = at(at(grid, AGENTS), warp) + 1
    if pending >= 0:
        count = at(at(grid, COMMITTED), warp)
        if pending >= count or pending >= 64:
            return
        clock = at(at(grid, COMMITS), 64 * warp + (count - pending - 1) % 64)
    for lane in range(32):
        if mask >> lane & 1:
            raise_to(at(grid, WAITED), 32 * warp + lane, clock)
