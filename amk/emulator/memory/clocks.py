"""What each lane of a warp knows: vectors of clocks, and what brings the lanes of a warp to one knowledge.

Property: another lane of its warp knows what a lane did behind a barrier of the warp or of the block at which both
    were. Lockstep orders nothing. Lanes of other warps know what the lane released afterwards, or what another lane
    released once the two had met. What a lane acquires is its own until its warp meets. By the PTX ISA:
    bar.warp.sync: it "also guarantee memory ordering among threads participating in barrier";
    bar.sync, bar.arrive: "prior memory accesses requested by this thread are performed relative to all threads
    participating in the barrier" when it completes; the arrival "synchronizes with" a bar.sync (8.9.4);
    mbarriers, counters, fences: a release pattern synchronizes with an acquire pattern that observes it (8.9.4).
    shfl, vote, match, redux, elect and mma make lanes wait for each other. No sentence about them orders memory, so
    here they do not.
Assumes: of what several lanes release between two meetings only the last lane's is known, unless one instruction of
    all lanes arrives at one mbarrier. A barrier of some lanes tells other warps nothing. Both are stricter than PTX.
Cost: a warp has one vector. A lane has another one between an acquire of its own and the next meeting.

A vector has, for W warps:
    W clocks up to which all lanes of a warp are known, and W of their copies;
    2 W clocks up to which reads are over;
    W words (clock << 6 | lane) up to which a single lane is known;
    W words (clock << 32 | lanes) up to which the reads of some lanes are over.
An epoch is clock << 38 | lane << 32 | thread << 19 | pc. Thread W + w stands for the copies of warp w, lane MANY for
several lanes, NOBODY for a bulk copy.
"""

from __future__ import annotations

from amk.emulator.arithmetic.bits import compiled, separate
from amk.emulator.memory.cells import at, to
from amk.emulator.memory.state import (
    BARRIER_CLOCKS,
    CLOCKS,
    COMMITTED,
    EXITED,
    FREE,
    FREE_COUNT,
    GAVE_UP,
    LANE_VECTORS,
    LANES,
    LANES_KNOWN,
    MOMENTS,
    ORDERED,
    POOL,
    POOL_ROOM,
    POOL_USED,
    PROXIED,
    RACES,
    WAITED,
    WARP_COUNT,
)

OWN, LOOKED, FENCED = 0, 1, 3
"""Vectors of a lane: what it alone knows; what its relaxed reads would give if a fence followed (of global, of shared
memory); what happened before its last fence (the same two)."""
PROXY_FENCED = 5
"""And what happened before its last proxy fence (the same two), until its warp meets."""
LANE_KINDS = 7
PARTS = 6
"""Words of a vector for each warp."""
ALL_LANES = (1 << 32) - 1
THREAD_BITS, PC_BITS, LANE_AT, CLOCK_AT = 13, 19, 32, 38
MANY, NOBODY = 32, 33
LAST_CLOCK = (1 << 63 - CLOCK_AT) - 2


@compiled
def thread_of(epoch: int) -> int:
    return epoch >> PC_BITS & (1 << THREAD_BITS) - 1


@compiled
def lane_of(epoch: int) -> int:
    return epoch >> LANE_AT & 63


@compiled
def clock_of(epoch: int) -> int:
    return epoch >> CLOCK_AT


@compiled
def epoch_of(clock: int, lane: int, thread: int, pc: int) -> int:
    return clock << CLOCK_AT | lane << LANE_AT | thread << PC_BITS | pc


@compiled
def vector(grid: int, warp: int) -> int:
    """What all lanes of a warp know."""
    return at(grid, CLOCKS) + 8 * PARTS * at(grid, WARP_COUNT) * warp


@compiled
def proxied(grid: int, warp: int, inside: int) -> int:
    """What happened before the last proxy fence of global (0) or shared (1) memory that all lanes of a warp know."""
    return at(grid, PROXIED) + 8 * PARTS * at(grid, WARP_COUNT) * (2 * warp + inside)


@compiled
def vectors_of_lanes(grid: int, warp: int, kind: int) -> int:
    """For each lane 1 + the number of its vector, then a bit for each lane that has one."""
    return at(grid, LANE_VECTORS) + 8 * 33 * (LANE_KINDS * warp + kind)


@compiled
def lanes_with(grid: int, warp: int, kind: int) -> int:
    return at(vectors_of_lanes(grid, warp, kind), 32)


@compiled
def pooled(grid: int, number: int) -> int:
    return at(grid, POOL) + 8 * PARTS * at(grid, WARP_COUNT) * number


@compiled
def barrier_vector(grid: int, block: int, number: int) -> int:
    return at(grid, BARRIER_CLOCKS) + 8 * PARTS * at(grid, WARP_COUNT) * (16 * block + number)


@compiled
def live_lanes(grid: int, warp: int) -> int:
    mask = 0
    for lane in range(32):
        if at(at(grid, LANES), 32 * warp + lane) != EXITED:
            mask |= 1 << lane
    return mask


@separate
def lanes_over(grid: int, into: int, thread: int, word: int) -> None:
    """A vector learns up to which clock the reads of some lanes of a warp are over. Where neither word has all of the
    other's, the earlier clock holds for the lanes of both."""
    warps = at(grid, WARP_COUNT)
    old, every = at(into, 5 * warps + thread), at(into, 2 * warps + thread)
    if old >> 32 <= every:
        old = 0
    if word >> 32 <= every:
        word = 0
    if old >> 32 > word >> 32:
        old, word = word, old
    if old == 0 or old & ALL_LANES & ~word == 0:
        to(into, 5 * warps + thread, word)
    else:
        to(into, 5 * warps + thread, old | word & ALL_LANES)


@separate
def join(grid: int, into: int, of: int) -> None:
    warps = at(grid, WARP_COUNT)
    for thread in range(5 * warps):
        if at(of, thread) > at(into, thread):
            to(into, thread, at(of, thread))
    for thread in range(warps):
        if at(of, 5 * warps + thread):
            lanes_over(grid, into, thread, at(of, 5 * warps + thread))


@separate
def clear(grid: int, one: int) -> None:
    for thread in range(PARTS * at(grid, WARP_COUNT)):
        to(one, thread, 0)


@compiled
def raise_to(row: int, index: int, value: int) -> None:
    to(row, index, max(at(row, index), value))


@compiled
def reads_over(grid: int, one: int, epoch: int) -> bool:
    """Whether a vector knows that a read of a warp's lane, or of several, is over."""
    warps, thread, clock = at(grid, WARP_COUNT), thread_of(epoch), clock_of(epoch)
    if clock <= at(one, 2 * warps + thread):
        return True
    if thread >= warps:
        return False
    word, lane = at(one, 5 * warps + thread), lane_of(epoch)
    wanted = ALL_LANES if lane == MANY else 1 << lane
    return clock <= word >> 32 and word & wanted == wanted


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
def free(grid: int, number: int) -> None:
    to(at(grid, FREE), at(grid, FREE_COUNT), number)
    to(grid, FREE_COUNT, at(grid, FREE_COUNT) + 1)


@compiled
def moment(grid: int, warp: int) -> int:
    """The clock of the warp's present."""
    return at(at(grid, MOMENTS), warp)


@compiled
def next_moment(grid: int, warp: int) -> None:
    to(at(grid, MOMENTS), warp, moment(grid, warp) + 1)
    if moment(grid, warp) > LAST_CLOCK:
        to(grid, RACES, 0)
        to(grid, GAVE_UP, 1)


@compiled
def tick(grid: int, warp: int) -> None:
    """What the warp does from here on is not part of what it has released."""
    next_moment(grid, warp)
    to(at(grid, ORDERED), warp, moment(grid, warp))


@compiled
def of_one(grid: int, one: int, epoch: int) -> bool:
    """Whether a vector knows the epoch's lane up to it."""
    word = at(one, 4 * at(grid, WARP_COUNT) + thread_of(epoch))
    return word & 63 == lane_of(epoch) and clock_of(epoch) <= word >> 6


@separate
def happened_before(grid: int, warp: int, lane: int, epoch: int) -> bool:
    """Whether what the epoch stands for happened before the lane's present."""
    now, thread, by, clock = vector(grid, warp), thread_of(epoch), lane_of(epoch), clock_of(epoch)
    if clock <= at(now, thread):
        return True
    if thread == warp:
        return by == lane or (by < MANY and clock <= at(at(grid, LANES_KNOWN), 1024 * warp + 32 * lane + by))
    threads = at(grid, WARP_COUNT)
    if thread == threads + warp and by == lane and clock <= at(at(grid, WAITED), 32 * warp + lane):
        return True
    if thread < threads and of_one(grid, now, epoch):
        return True
    number = at(vectors_of_lanes(grid, warp, OWN), lane)
    if number == 0:
        return False
    own = pooled(grid, number - 1)
    return clock <= at(own, thread) or (thread < threads and of_one(grid, own, epoch))


@separate
def lane_vector(grid: int, warp: int, lane: int, kind: int) -> int:
    """A vector of the lane, made if it has none."""
    row = vectors_of_lanes(grid, warp, kind)
    if at(row, lane) == 0:
        to(row, lane, fresh(grid) + 1)
        to(row, 32, at(row, 32) | 1 << lane)
    return pooled(grid, at(row, lane) - 1)


@separate
def join_lanes(grid: int, warp: int, mask: int, kind: int, into: int) -> None:
    """Join vectors of these lanes."""
    row = vectors_of_lanes(grid, warp, kind)
    for lane in range(32):
        if (at(row, 32) & mask) >> lane & 1:
            join(grid, into, pooled(grid, at(row, lane) - 1))


@separate
def forget_lanes(grid: int, warp: int, kind: int) -> None:
    """Every lane knows what each alone knew."""
    row = vectors_of_lanes(grid, warp, kind)
    for lane in range(32):
        if at(row, 32) >> lane & 1:
            free(grid, at(row, lane) - 1)
            to(row, lane, 0)
    to(row, 32, 0)


@separate
def all_to(grid: int, warp: int, mask: int, into: int) -> None:
    """Join what these lanes, which are all of the warp, know and have done."""
    join(grid, into, vector(grid, warp))
    if lanes_with(grid, warp, OWN):
        join_lanes(grid, warp, mask, OWN, into)
    raise_to(into, warp, moment(grid, warp))
    if at(at(grid, COMMITTED), warp):
        least = LAST_CLOCK
        for lane in range(32):
            if mask >> lane & 1:
                least = min(least, at(at(grid, WAITED), 32 * warp + lane))
        raise_to(into, at(grid, WARP_COUNT) + warp, least)


@separate
def one_to(grid: int, warp: int, lane: int, into: int) -> None:
    """Join what the lane knows and has done."""
    join(grid, into, vector(grid, warp))
    number = at(vectors_of_lanes(grid, warp, OWN), lane)
    if number:
        join(grid, into, pooled(grid, number - 1))
    raise_to(into, 4 * at(grid, WARP_COUNT) + warp, moment(grid, warp) << 6 | lane)


@separate
def some_meet(grid: int, warp: int, mask: int) -> None:
    """Some of a warp's lanes know of each other, and what each alone knew."""
    rows = at(grid, LANES_KNOWN) + 8 * 1024 * warp
    for other in range(32):
        latest = moment(grid, warp) if mask >> other & 1 else 0
        for lane in range(32):
            if mask >> lane & 1:
                latest = max(latest, at(rows, 32 * lane + other))
        for lane in range(32):
            if mask >> lane & 1:
                to(rows, 32 * lane + other, latest)
    for kind in (OWN, PROXY_FENCED, PROXY_FENCED + 1):
        if lanes_with(grid, warp, kind) & mask:
            number = fresh(grid)
            join_lanes(grid, warp, mask, kind, pooled(grid, number))
            for lane in range(32):
                if mask >> lane & 1:
                    join(grid, lane_vector(grid, warp, lane, kind), pooled(grid, number))
            free(grid, number)


@separate
def all_know(grid: int, warp: int) -> None:
    """The warp's vector has what each lane alone knew; so have its proxy fences."""
    if lanes_with(grid, warp, OWN):
        forget_lanes(grid, warp, OWN)
    for inside in range(2):
        if lanes_with(grid, warp, PROXY_FENCED + inside):
            join_lanes(grid, warp, ALL_LANES, PROXY_FENCED + inside, proxied(grid, warp, inside))
            forget_lanes(grid, warp, PROXY_FENCED + inside)


@separate
def lanes_meet(grid: int, warp: int, mask: int) -> None:
    """These lanes have come to a barrier of the warp."""
    if not at(grid, RACES):
        return
    if live_lanes(grid, warp) & ~mask == 0:
        all_to(grid, warp, mask, vector(grid, warp))
        all_know(grid, warp)
    else:
        some_meet(grid, warp, mask)
    next_moment(grid, warp)


@separate
def arrive(grid: int, warp: int, block: int, number: int) -> None:
    """All lanes, at a named barrier."""
    if not at(grid, RACES):
        return
    all_to(grid, warp, live_lanes(grid, warp), barrier_vector(grid, block, number))
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
    join(grid, vector(grid, warp), barrier_vector(grid, block, number))
    all_know(grid, warp)
