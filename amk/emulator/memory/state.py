"""What a running grid consists of, as arrays that compiled code changes in place.

All memory is one array of bytes: global memory (every launch buffer an allocation of its own, gaps between them),
then the shared memory of each block, constants, parameters. An index into it is called a place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from amk.emulator.arithmetic.bits import compiled, separate
from amk.emulator.memory.cells import at, byte_at, byte_to, to
from amk.emulator.ptx.encode import (
    CONST_WINDOW,
    FIRST_SPECIAL,
    GLOBAL_BASE,
    PARAM_WINDOW,
    SHARED_WINDOW,
    SPECIAL,
    STATIC_SHARED_AT,
)
from amk.emulator.ptx.isa import CONST, GENERIC, GLOBAL, PARAM, SHARED
from amk.emulator.ptx.program import Program

Words = NDArray[np.int64]
Bytes = NDArray[np.uint8]

PAGE = 256
"""Allocations are multiples of it and at least one page apart."""

# Numbers of the whole grid.
(
    FAULTS, STOPPED, GLOBAL_VERSION, NOW, EXECUTED, RANDOM, COPIES, SEQUENCE, EAGER, PATIENT, LANDED, TENSOR, SLICES,
    RACES, POOL_USED, FREE_COUNT, LAUNCHED, GAVE_UP, TOUCHING, TOUCHES, TOUCHES_LOST, UNSPREAD,
    NOTING, NOTES, NOTES_LOST,
) = range(25)  # fmt: skip
# Kinds of faults; those below `MINOR` end the run.
(
    OUT_OF_BOUNDS, MISALIGNED, DIVERGED, BAD_BARRIER, BAD_MBARRIER, BAD_MASK, READ_ONLY, TRAPPED, LOST_LANES,
    LATE_COPY,
) = range(1, 11)  # fmt: skip
MINOR = 20
UNDEFINED, NON_COHERENT_READ, RACE, PROXY = range(20, 24)
MOST_FAULTS = 256
# States of a lane, of a warp.
RUNS, EXITED, AT_WARP_BARRIER, AT_MEETING = range(4)
READY, AT_BARRIER, ASLEEP, DONE = range(4)
# Columns of a warp.
STATUS, BARRIER, SEEN_GLOBAL, SEEN_BLOCK, TURN, EFFECTS, POLLS, WARP_EXECUTED = range(8)
POLLED = 64
"""Polls that a warp remembers."""

COPY_COLUMNS = 8
AN_MBARRIER, OF_NOBODY = 1, 2
"""What 8 bytes of shared memory are, if not 0."""
CONSTANT, SCRATCH, STATE = range(3)
"""Kinds of allocations; nothing may write a constant."""


NUMBERS = 32
# The table: numbers of the grid, then the addresses of its arrays, then sizes.
(
    CODE, REGISTERS, POISON, DEFINED, PCS, LANES, MASKS, WARPS, POLL_LOG, BLOCKS, BARRIERS, PAGES, ALLOCATIONS,
    FAULT_LOG, COPY_QUEUE, SMALL_QUEUE, SMALL_COUNT, GROUPS, FAULT_BITS, MBARRIERS, CLOCKS, BARRIER_CLOCKS, AGENTS,
    COMMITS, COMMITTED, POOL, FREE, SYNC_OF, WRITE_EPOCHS, READ_EPOCHS, SPREAD, PROXIED, MOMENTS, ORDERED,
    LANE_VECTORS, LANES_KNOWN, WAITED, FENCED_AT, BEFORE, BEFORE_UNDEFINED, TOUCH_LOG, NOTE_LOG, SCRATCH_WORDS,
    UNDEFINED_BYTES, MEMORY,
) = range(NUMBERS, NUMBERS + 45)  # fmt: skip
(
    WARP_COUNT, BLOCK_COUNT, ROWS, COPY_ROOM, SMALL_ROOM, POOL_ROOM, GLOBAL_BYTES, SHARED_BYTES, SHARED_AT, CONST_AT,
    PARAM_AT, CONST_BYTES, PARAM_BYTES, SHARED_END, TOUCH_ROOM, NOTE_ROOM,
) = range(NUMBERS + 45, NUMBERS + 61)  # fmt: skip


@dataclass
class Grid:
    """The arrays. Shapes: w warps, b blocks, r rows, n instructions, m bytes of memory. All int64 but the bytes."""

    code: Words  # [n, columns], then the instructions that are `isa.NOTED`
    registers: Words  # [w, r, 32]
    poison: Words  # [w, r], a bit for each lane
    defined: Bytes  # [w, r, 32], a bit for each byte, see `undefined`
    pcs: Words  # [w, 32]
    lanes: Words  # [w, 32], states
    masks: Words  # [w, 32], what a lane at a warp barrier waits for
    warps: Words  # [w, 8]
    poll_log: Words  # [w, POLLED, 3]: pc, hash, first address
    blocks: Words  # [b, 2]: version of shared memory
    barriers: Words  # [b, 16, 2]: threads arrived, threads expected
    pages: Words  # allocation of each page of global memory, -1 in gaps
    allocations: Words  # [a, 3]: first place, end, kind
    fault_log: Words  # [MOST_FAULTS, 8]: kind, warp, pc, lane, address, two more, when
    copy_queue: Words  # [., 8], bulk copies in flight
    small_queue: Words  # [b, ., 6], cp.async in flight
    small_count: Words  # [b]
    groups: Words  # [w, 32], groups committed
    fault_bits: Bytes  # [n], faults already told of an instruction, a bit a kind
    mbarriers: Bytes  # one for each 8 bytes of shared memory: whether an mbarrier stands there
    clocks: Words  # [w, 6 w], see `clocks`; short up to `before_undefined` where no races are looked for
    barrier_clocks: Words  # [b, 16, 6 w]
    agents: Words  # [w], clock of the warp's copies
    commits: Words  # [w, 64], that clock when a group was committed
    committed: Words  # [w], groups
    pool: Words  # [., 6 w], vectors
    free: Words  # [.], numbers of vectors that are free again
    sync_of: Words  # [m / 4], 1 + the vector released at this word
    write_epochs: Words  # [m], epoch of the last write
    read_epochs: Words  # [m], epoch of the last read, or -1 - the vector of epochs of several
    spread: Words  # [2 w], clock up to which strong loads see a thread's stores
    proxied: Words  # [w, 2, 6 w], what happened before the last proxy fence of global, of shared memory that all know
    moments: Words  # [w], clock of the warp's present
    ordered: Words  # [w], that clock when something last ordered the warp's stores for others
    lane_vectors: Words  # [w, 7, 33], of each kind 1 + the vector of a lane, then a bit for each lane that has one
    lanes_known: Words  # [w, 32, 32], clock up to which a lane knows another by barriers of some lanes
    waited: Words  # [w, 32], clock of the warp's small copies up to which a lane has waited for its own
    fenced_at: Words  # [w, 2, 32], clock of a lane's last fence for words of global, of shared memory
    before: Bytes  # [m], what was there before the last write
    before_undefined: Bytes  # [m]
    touch_log: Words  # [., 3], see `touched`
    note_log: Words  # [., 5], see `notes`
    scratch_words: Words  # [1024], of a tensor-core instruction while it runs
    undefined: Bytes  # [m], 1 where a byte has no defined content
    memory: Bytes  # [m]
    sizes: tuple[int, ...]  # from GLOBAL_BYTES to SHARED_END
    table: Words = field(init=False)

    def __post_init__(self) -> None:
        arrays = [getattr(self, f.name) for f in fields(self) if f.name not in ("sizes", "table")]
        counts = (
            len(self.warps),
            len(self.blocks),
            self.poison.shape[1],
            len(self.copy_queue),
            self.small_queue.shape[1],
            len(self.pool),
        )
        self.table = np.array(
            [0] * NUMBERS
            + [a.ctypes.data for a in arrays]
            + [*counts, *self.sizes, len(self.touch_log), len(self.note_log)],
            np.int64,
        )

    @property
    def address(self) -> int:
        """What compiled code takes."""
        return int(self.table.ctypes.data)

    @property
    def numbers(self) -> Words:
        return self.table[:NUMBERS]


@compiled
def registers_of(grid: int, warp: int) -> int:
    """The address of a warp's registers [r, 32]."""
    return at(grid, REGISTERS) + 256 * at(grid, ROWS) * warp


@compiled
def poison_of(grid: int, warp: int) -> int:
    """The address of a warp's lanes [r] that are not wholly defined."""
    return at(grid, POISON) + 8 * at(grid, ROWS) * warp


@separate
def fault(grid: int, kind: int, warp: int, pc: int, lane: int, address: int, more: int, other: int) -> None:
    """Record a fault; a minor one once for each instruction, any other ends the run."""
    if kind >= MINOR:
        bits, bit = at(grid, FAULT_BITS), 1 << (kind - MINOR)
        if byte_at(bits, pc) & bit:
            return
        byte_to(bits, pc, byte_at(bits, pc) | bit)
    else:
        to(grid, STOPPED, 1)
    count = at(grid, FAULTS)
    if count < MOST_FAULTS:
        row = at(grid, FAULT_LOG) + 64 * count
        to(row, 0, kind)
        to(row, 1, warp)
        to(row, 2, pc)
        to(row, 3, lane)
        to(row, 4, address)
        to(row, 5, more)
        to(row, 6, other)
        to(row, 7, at(grid, EXECUTED))
        to(grid, FAULTS, count + 1)


@separate
def place_of(grid: int, space: int, address: int, size: int, block: int) -> int:  # noqa: C901
    """The place of `size` bytes at an address of a space; -1 if they are not all in one allocation."""
    if space == GENERIC:
        if address >= GLOBAL_BASE:
            space = GLOBAL
        elif address >= SHARED_WINDOW:
            space, address = SHARED, address - SHARED_WINDOW
        elif address >= PARAM_WINDOW:
            space, address = PARAM, address - PARAM_WINDOW
        else:
            space, address = CONST, address - CONST_WINDOW
    if space == GLOBAL:
        place = address - GLOBAL_BASE
        if place < 0 or place >= at(grid, GLOBAL_BYTES):
            return -1
        allocation = at(at(grid, PAGES), place // PAGE)
        if allocation < 0 or place + size > at(at(grid, ALLOCATIONS), 3 * allocation + 1):
            return -1
        return place
    if space == SHARED:
        if address < STATIC_SHARED_AT or address + size > at(grid, SHARED_END):
            return -1
        return at(grid, SHARED_AT) + block * at(grid, SHARED_BYTES) + address
    first, end = at(grid, CONST_AT), at(grid, CONST_BYTES)
    if space == PARAM:
        first, end = at(grid, PARAM_AT), at(grid, PARAM_BYTES)
    return first + address if address >= 0 and address + size <= end else -1


def special_values(warp: int, warps: int, block: int, blocks: int, dynamic: int) -> NDArray[np.int64]:
    """[SPECIAL, 32] of one warp of a one-dimensional launch."""
    lane = np.arange(32, dtype=np.int64)
    bit = np.int64(1) << lane
    one, zero = np.ones(32, np.int64), np.zeros(32, np.int64)
    values = {
        "%tid.x": 32 * warp + lane, "%ntid.x": one * 32 * warps, "%ntid.y": one, "%ntid.z": one,
        "%ctaid.x": one * block, "%nctaid.x": one * blocks,
        "%nctaid.y": one, "%nctaid.z": one, "%laneid": lane, "%warpid": one * warp,
        "%nwarpid": one * warps, "%smid": one * block, "%nsmid": one * blocks, "%lanemask_eq": bit,
        "%lanemask_lt": bit - 1, "%lanemask_le": 2 * bit - 1, "%lanemask_gt": (1 << 32) - 2 * bit,
        "%lanemask_ge": (1 << 32) - bit, "%dynamic_smem_size": one * dynamic, "%total_smem_size": one * dynamic,
    }  # fmt: skip
    return np.stack([values.get(name, zero) for name in SPECIAL])


def fill_registers(grid: Grid, program: Program, warps: int, blocks: int, dynamic: int) -> None:
    """Constants and special registers of every warp; everything else is undefined."""
    grid.poison[:], grid.defined[:] = (1 << 32) - 1, 0
    grid.poison[:, : FIRST_SPECIAL + len(SPECIAL)] = 0
    for row, value in program.constants:
        grid.registers[:, row, :] = value - (1 << 64) if value >> 63 else value
        grid.poison[:, row] = 0
    for number in range(warps * blocks):
        block, warp = divmod(number, warps)
        grid.registers[number, FIRST_SPECIAL : FIRST_SPECIAL + len(SPECIAL)] = special_values(
            warp, warps, block, blocks, dynamic
        )
