"""What a load may see of stores that nothing orders before it, and which copies follow accesses without a proxy fence.

Property: a store stays with its warp until something orders it. A load by another warp gets what was there before,
    unless the store happened before it. A strong load (relaxed, acquire, volatile) also gets the new content once it
    has spread. It spreads when no warp can run without it, at once in an eager order, at drawn times in a drawn one.
    Atomics act on memory itself. A non-coherent load never sees what the launch has written.
    A bulk copy that reads or overwrites bytes that threads have accessed in the launch needs a fence.proxy.async of
    their memory, global or shared. The fence is behind these accesses, of the lane of the copy or of one that this lane
    has met since.
Assumes: clocks of `happens_before`. Of several stores without order in between, a load sees all or none. A
    fence.proxy.async of another warp than the one that issues the copy does not count, which is stricter than PTX.
Cost: two more bytes a byte of memory. While every store is ordered, one comparison a byte loaded.
"""

from __future__ import annotations

from amk.emulator.arithmetic.bits import compiled, separate
from amk.emulator.memory.cells import at, byte_at, byte_to, to
from amk.emulator.memory.clocks import (
    PC_BITS,
    PROXY_FENCED,
    all_to,
    clock_of,
    happened_before,
    lane_vector,
    live_lanes,
    moment,
    of_one,
    one_to,
    pooled,
    proxied,
    thread_of,
    tick,
    vectors_of_lanes,
)
from amk.emulator.memory.happens_before import strong, watched
from amk.emulator.memory.state import (
    BEFORE,
    BEFORE_UNDEFINED,
    BLOCK_COUNT,
    BLOCKS,
    CODE,
    EAGER,
    GLOBAL_VERSION,
    LAUNCHED,
    MEMORY,
    ORDERED,
    PROXY,
    RACES,
    READ_EPOCHS,
    SHARED_AT,
    SPREAD,
    UNDEFINED_BYTES,
    UNSPREAD,
    WARP_COUNT,
    WRITE_EPOCHS,
    fault,
)
from amk.emulator.ptx import isa
from amk.emulator.ptx.encode import COLUMNS
from amk.emulator.ptx.isa import NON_COHERENT


@separate
def remember(grid: int, warp: int, place: int, size: int) -> None:
    """Before a store: keep what these bytes hold, unless it is the warp's own and nothing ordered it since."""
    if not at(grid, RACES) or not watched(grid, place):
        return
    ordered = at(at(grid, ORDERED), warp)
    for byte in range(place, place + size):
        last = at(at(grid, WRITE_EPOCHS), byte)
        if last == 0 or thread_of(last) != warp or clock_of(last) < ordered:
            byte_to(at(grid, BEFORE), byte, byte_at(at(grid, MEMORY), byte))
            byte_to(at(grid, BEFORE_UNDEFINED), byte, byte_at(at(grid, UNDEFINED_BYTES), byte))
    to(grid, UNSPREAD, 1)


@separate
def hidden(grid: int, warp: int, pc: int, lane: int, byte: int) -> bool:
    """Whether a load by this instruction gets what was there before the byte's last write."""
    last = at(at(grid, WRITE_EPOCHS), byte)
    thread = thread_of(last)
    if last == 0 or thread == warp or thread >= at(grid, WARP_COUNT):
        return False
    word = at(grid, CODE) + 8 * COLUMNS * pc
    if at(word, 2) >> 4 & 15 == NON_COHERENT:
        return clock_of(last) > at(grid, LAUNCHED)
    if happened_before(grid, warp, lane, last):
        return False
    if not strong(word):
        return True
    writer = at(at(grid, CODE), COLUMNS * (last & (1 << PC_BITS) - 1))
    return writer != isa.ATOM and at(grid, EAGER) == 0 and clock_of(last) > at(at(grid, SPREAD), thread)


@separate
def hidden_in(grid: int, warp: int, pc: int, lane: int, place: int, size: int) -> bool:
    """Whether a byte of an access is hidden from it."""
    if not at(grid, RACES) or not watched(grid, place):
        return False
    last = 0
    for byte in range(place, place + size):
        now = at(at(grid, WRITE_EPOCHS), byte)
        if now != last and hidden(grid, warp, pc, lane, byte):
            return True
        last = now
    return False


@separate
def earlier(grid: int, warp: int, pc: int, lane: int, place: int, size: int) -> int:
    """What a load gets that some bytes are hidden from."""
    word = 0
    for part in range(size):
        byte = place + part
        array = BEFORE if hidden(grid, warp, pc, lane, byte) else MEMORY
        word |= byte_at(at(grid, array), byte) << 8 * part
    return word


@separate
def undefined_earlier(grid: int, warp: int, pc: int, lane: int, place: int, size: int) -> int:
    """A bit for each undefined byte of what such a load gets."""
    found = 0
    for byte in range(size):
        array = BEFORE_UNDEFINED if hidden(grid, warp, pc, lane, place + byte) else UNDEFINED_BYTES
        found |= (byte_at(at(grid, array), place + byte) & 1) << byte
    return found


@separate
def spread(grid: int, warp: int) -> None:
    """Strong loads see what the warp has stored up to now."""
    to(at(grid, SPREAD), warp, moment(grid, warp))
    tick(grid, warp)


@separate
def spread_all(grid: int) -> bool:
    """Strong loads see all that was stored; True if that was not so before."""
    if not at(grid, RACES) or at(grid, UNSPREAD) == 0:
        return False
    for warp in range(at(grid, WARP_COUNT)):
        spread(grid, warp)
    to(grid, UNSPREAD, 0)
    looks_changed(grid)
    return True


@compiled
def looks_changed(grid: int) -> None:
    """Those who poll look again."""
    to(grid, GLOBAL_VERSION, at(grid, GLOBAL_VERSION) + 1)
    for block in range(at(grid, BLOCK_COUNT)):
        to(at(grid, BLOCKS), 2 * block, at(at(grid, BLOCKS), 2 * block) + 1)


@separate
def proxy_fence(grid: int, warp: int, mode: int, mask: int) -> None:
    """Of these lanes: each for what it knows and has done to global memory, shared memory or both, and for the others
    once they meet. Other fences are none."""
    if mode not in (isa.F_PROXY_GLOBAL, isa.F_PROXY_SHARED, isa.F_PROXY_ALL):
        return
    for inside in range(2):
        if mode == (isa.F_PROXY_GLOBAL if inside else isa.F_PROXY_SHARED):
            continue
        if live_lanes(grid, warp) & ~mask == 0:
            all_to(grid, warp, mask, proxied(grid, warp, inside))
        else:
            for lane in range(32):
                if mask >> lane & 1:
                    one_to(grid, warp, lane, lane_vector(grid, warp, lane, PROXY_FENCED + inside))
    tick(grid, warp)


@compiled
def within(grid: int, fenced: int, epoch: int) -> bool:
    return clock_of(epoch) <= at(fenced, thread_of(epoch)) or of_one(grid, fenced, epoch)


@separate
def fenced_off(grid: int, warp: int, lane: int, inside: int, epoch: int) -> bool:
    """Whether an access is of the copies' proxy, of an earlier launch, or before the last proxy fence of its memory,
    global (0) or shared (1), that the lane knows of."""
    if thread_of(epoch) >= at(grid, WARP_COUNT) or clock_of(epoch) <= at(grid, LAUNCHED):
        return True
    own = at(vectors_of_lanes(grid, warp, PROXY_FENCED + inside), lane)
    return within(grid, proxied(grid, warp, inside), epoch) or (own != 0 and within(grid, pooled(grid, own - 1), epoch))


@separate
def behind_fence(grid: int, warp: int, pc: int, lane: int, place: int, size: int, writes: bool) -> None:
    """A bulk copy starts to read or write these bytes: accesses of the other proxy are told."""
    if not at(grid, RACES) or not watched(grid, place):
        return
    inside = 1 if place >= at(grid, SHARED_AT) else 0
    for byte in range(place, place + size):
        last, seen = at(at(grid, WRITE_EPOCHS), byte), at(at(grid, READ_EPOCHS), byte)
        if last and not fenced_off(grid, warp, lane, inside, last):
            fault(grid, PROXY, warp, pc, lane, byte, last, 1 if writes else 0)
        if writes and seen > 0 and not fenced_off(grid, warp, lane, inside, seen):
            fault(grid, PROXY, warp, pc, lane, byte, seen, 3)
        if writes and seen < 0:
            for thread in range(at(grid, WARP_COUNT)):
                read = at(pooled(grid, -1 - seen), thread)
                if read and not fenced_off(grid, warp, lane, inside, read):
                    fault(grid, PROXY, warp, pc, lane, byte, read, 3)
