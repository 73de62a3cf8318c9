"""A launch: memory, the grid's arrays, and the loop that ends with a result or with what is wrong."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.emulator.arithmetic.bits import link
from amk.emulator.machine.report import Fault, faults_of
from amk.emulator.machine.schedule_loop import FINISHED, OUT_OF_BUDGET, STALLED, advance, look_again
from amk.emulator.memory import notes, state, touched
from amk.emulator.memory.clocks import LANE_KINDS, PARTS
from amk.emulator.memory.global_memory import KINDS, Allocation, Memory
from amk.emulator.memory.state import PAGE, Grid, fill_registers
from amk.emulator.ptx import isa
from amk.emulator.ptx.comparisons import comparisons
from amk.emulator.ptx.encode import GLOBAL_BASE
from amk.emulator.ptx.program import Program
from amk.emulator.refusal import too_large

POISON = 0xFF
LOOKS = 40_000
"""Instructions that every warp gets without changing anything before a grid that waits is called blocked: its watchdog
looks at its clock once in 1,024 polls of about 12 instructions."""
BETWEEN_LOOKS = 100_000
"""Instructions between two looks at the limit of time, but at least a turn of all warps."""


MOST_TOUCHES = 8_000_000
"""Rows of the log of touches."""
MOST_NOTES = 8_000_000
"""Rows of the log of what synchronised."""


@dataclass(frozen=True)
class Limits:
    """instructions: of all warps together. seconds: of wall time. megabytes: of what the emulator allocates."""

    instructions: int = 2_000_000_000
    seconds: float = 600.0
    megabytes: int = 8_000


@dataclass(frozen=True)
class Order:
    """Which warp runs next. seed: None, warps take turns, `slice` instructions each, and copies land as late as they
    can.

    With a seed, warps, slices and landings are drawn. first: warps (worker, warp) that run before, in this order. last:
    warps that run only where all others wait and no copy is in flight; never, if others change memory while they poll.
    eager: copies land at once.
    """

    seed: int | None = None
    slice: int = 400
    first: tuple[tuple[int, int], ...] = ()
    last: frozenset[tuple[int, int]] = frozenset()
    eager: bool = False


def gaps(arrays: Sequence[tuple[int, int]] | None, size: int) -> list[tuple[int, int]]:
    """(first byte, end) of what lies between the arrays, before and behind them."""
    found, at = [], 0
    for first, end in [] if arrays is None else [*sorted(arrays), (size, size)]:
        found += [(at, first)] if at < first else []
        at = max(at, end)
    return found


@dataclass
class Outcome:
    """ended: every warp reached the end. instructions: executed by all warps together.

    races_checked: races were looked for to the end; not if that was not asked for, or took more than a quarter of the
    memory that the limits allow.
    """

    ended: bool
    faults: list[Fault]
    instructions: int
    copies: int
    seconds: float = 0.0
    races_checked: bool = False


class Machine:
    """One kernel with its memory; `launch` may be called several times, memory stays."""

    def __init__(
        self,
        program: Program,
        blocks: int,
        warps: int,
        shared_bytes: int,
        allocations: Sequence[Allocation],
        limits: Limits | None = None,
        *,
        races: bool = False,
        touches: bool = False,
        arrays: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """blocks of `warps` warps; shared_bytes: dynamic. AMK803 if that takes more than the limits.

        arrays: (first byte, end) of those in dynamic shared memory; whole 8 bytes between them are nobody's, so that a
        store there is out of bounds. None: all of it is one array.
        races: accesses that nothing orders are told (`happens_before`), at about twice the time. touches: note the
        bytes that every instruction touches, and what it did to synchronise.
        """
        self.program, self.blocks, self.warps, self.dynamic = program, blocks, warps, shared_bytes
        self.limits = limits or Limits()
        self.races = races and 2 * blocks * warps < 1 << 13 and len(program.code) < 1 << 19
        self.touches_wanted = touches
        self._nobodys = gaps(arrays, shared_bytes)
        self.memory = Memory()
        for variable, address in program.globals:
            data = np.frombuffer(variable.data or bytes(variable.size), np.uint8)
            self.memory.allocations.append(Allocation(variable.name, variable.size, "state", data))
            self.memory.addresses[variable.name] = address
            self.memory.end = max(self.memory.end, address - GLOBAL_BASE + -(-variable.size // PAGE) * PAGE + PAGE)
        for allocation in allocations:
            self.memory.add(allocation)
        self._check_size()
        self.grid = self._grid()
        for allocation in self.memory.allocations:
            if allocation.content is not None:
                self.write(allocation.name, allocation.content)

    def _check_size(self) -> None:
        shared = self._shared_bytes() * self.blocks
        needed = 2 * (self.memory.end + shared) + self.blocks * self.warps * self.program.rows * (256 + 32 + 8)
        if needed > self.limits.megabytes * 1_000_000:
            raise too_large(
                f"{self.blocks} blocks of {self.warps} warps need {needed / 1e6:,.0f} MB, "
                f"the limit is {self.limits.megabytes:,}",
                "plan with fewer workers, or allow more memory",
            )

    def _shared_bytes(self) -> int:
        return -(-(self.program.static_shared + self.dynamic) // PAGE) * PAGE

    def _grid(self) -> Grid:
        program, warps = self.program, self.blocks * self.warps
        shared, end = self._shared_bytes(), self.memory.end
        const_at = end + shared * self.blocks
        param_at = const_at + -(-max(len(program.const), 1) // PAGE) * PAGE
        total = param_at + -(-max(program.parameters, 1) // PAGE) * PAGE
        m8 = np.full(total, POISON, np.uint8)
        undefined = np.ones(total, np.uint8)
        m8[const_at : const_at + len(program.const)] = np.frombuffer(program.const, np.uint8)
        undefined[const_at:] = 0
        pages = np.full(-(-end // PAGE) + 1, -1, np.int64)
        rows = []
        for number, allocation in enumerate(self.memory.allocations):
            place = self.memory.addresses[allocation.name] - GLOBAL_BASE
            pages[place // PAGE : -(-(place + max(allocation.bytes, 1)) // PAGE)] = number
            rows.append((place, place + allocation.bytes, KINDS[allocation.kind]))
        shared_end = program.static_shared + self.dynamic
        return Grid(
            code=self._code(),
            registers=np.zeros((warps, program.rows, 32), np.int64),
            poison=np.zeros((warps, program.rows), np.int64),
            defined=np.zeros((warps, program.rows, 32), np.uint8),
            pcs=np.zeros((warps, 32), np.int64),
            lanes=np.zeros((warps, 32), np.int64),
            masks=np.zeros((warps, 32), np.int64),
            warps=np.zeros((warps, 8), np.int64),
            poll_log=np.zeros((warps, state.POLLED, 3), np.int64),
            blocks=np.zeros((self.blocks, 2), np.int64),
            barriers=np.zeros((self.blocks, 16, 2), np.int64),
            pages=pages,
            allocations=np.array(rows or [(0, 0, 0)], np.int64),
            fault_log=np.zeros((state.MOST_FAULTS, 8), np.int64),
            copy_queue=np.zeros((max(256, self.blocks * 64), 8), np.int64),
            small_queue=np.zeros((self.blocks, self.dynamic // 16 + 64, 6), np.int64),
            small_count=np.zeros(self.blocks, np.int64),
            **self._clocks(total),
            touch_log=np.zeros((MOST_TOUCHES if self.touches_wanted else 1, touched.COLUMNS), np.int64),
            note_log=np.zeros((MOST_NOTES if self.touches_wanted else 1, notes.NOTE_COLUMNS), np.int64),
            scratch_words=np.zeros(1024, np.int64),
            groups=np.zeros((warps, 32), np.int64),
            fault_bits=np.zeros(len(program.code), np.uint8),
            mbarriers=np.zeros(shared * self.blocks // 8 + 1, np.uint8),
            undefined=undefined,
            memory=m8,
            sizes=(end, shared, end, const_at, param_at, len(program.const), program.parameters, shared_end),
        )

    def _code(self) -> NDArray[np.int64]:
        """The program; comparisons that are noted stand behind its end."""
        code = self.program.code.astype(np.int64)
        if not self.touches_wanted:
            return code
        places = sorted(comparisons(self.program))
        further = code[places].copy()
        code[places, 0], code[places, 3] = isa.NOTED, np.arange(len(code), len(code) + len(places))
        return np.ascontiguousarray(np.concatenate([code, further]))

    def _keep_off(self) -> None:
        """Of the bytes of shared memory that no array has."""
        units, base = self._shared_bytes() // 8, self.program.static_shared
        each = self.grid.mbarriers[: self.blocks * units].reshape(self.blocks, units)
        for first, end in self._nobodys:
            each[:, -(-(base + first) // 8) : (base + end) // 8] = state.OF_NOBODY

    def _clocks(self, total: int) -> dict[str, NDArray[Any]]:
        """Arrays of `happens_before` and `weak`, for `total` bytes; the system gives memory where they are touched."""
        warps = self.blocks * self.warps
        threads, watched = PARTS * warps, total if self.races else 1
        vectors = max(2, self.limits.megabytes * 1_000_000 // 4 // (8 * threads)) if self.races else 2
        sizes: dict[str, tuple[int, ...]] = {
            "clocks": (warps, threads), "barrier_clocks": (self.blocks, 16, threads), "agents": (warps,),
            "commits": (warps, 64), "committed": (warps,), "pool": (vectors, threads), "free": (vectors,),
            "sync_of": (watched // 4 + 2,), "write_epochs": (watched,), "read_epochs": (watched,),
            "spread": (2 * warps,), "proxied": (warps, 2, threads), "moments": (warps,), "ordered": (warps,),
            "lane_vectors": (warps, LANE_KINDS, 33), "lanes_known": (warps, 32, 32), "waited": (warps, 32),
            "fenced_at": (warps, 2, 32),
        }  # fmt: skip
        return {name: np.zeros(size, np.int64) for name, size in sizes.items()} | {
            name: np.zeros(watched, np.uint8) for name in ("before", "before_undefined")
        }

    def _start_clocks(self) -> None:
        """Everything so far happened before this launch."""
        grid, warps = self.grid, self.blocks * self.warps
        before = int(max(grid.moments.max(), grid.agents.max())) + 1
        for array in (grid.clocks, grid.barrier_clocks, grid.committed, grid.lanes_known, grid.waited, grid.fenced_at):
            array[:] = 0
        held = grid.lane_vectors[:, :, :32][grid.lane_vectors[:, :, :32] > 0] - 1
        count = int(grid.numbers[state.FREE_COUNT])
        grid.free[count : count + len(held)] = held
        grid.numbers[state.FREE_COUNT] += len(held)
        grid.lane_vectors[:] = 0
        grid.clocks[:, : 4 * warps] = before
        grid.moments[:], grid.ordered[:] = before + 1, before + 1
        grid.agents[:], grid.spread[:], grid.proxied[:] = before, before, 0
        grid.numbers[state.LAUNCHED] = before
        grid.numbers[state.RACES] = int(self.races)

    def write(self, name: str, data: NDArray[np.generic], offset: int = 0) -> None:
        """The host writes part of an allocation."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        place = self.memory.addresses[name] - GLOBAL_BASE + offset
        self.grid.memory[place : place + len(raw)] = raw
        self.grid.undefined[place : place + len(raw)] = 0

    def read(self, name: str, dtype: type[np.generic], count: int) -> NDArray[np.generic]:
        """The first `count` elements of an allocation, defined or not."""
        place = self.memory.addresses[name] - GLOBAL_BASE
        return self.grid.memory[place : place + count * np.dtype(dtype).itemsize].view(dtype).copy()

    def defined(self, name: str, first: int, last: int) -> bool:
        """Whether all bytes [first, last) of an allocation have a content."""
        place = self.memory.addresses[name] - GLOBAL_BASE
        return not self.grid.undefined[place + first : place + last].any()

    def touches(self) -> NDArray[np.int64]:
        """Rows of `touched` of the last launch. AMK803 if they are not all there."""
        if not self.touches_wanted or self.grid.numbers[state.TOUCHES_LOST]:
            raise too_large(f"the launch touches more than {MOST_TOUCHES:,} ranges of bytes")
        return self.grid.touch_log[: int(self.grid.numbers[state.TOUCHES])]

    def notes(self) -> NDArray[np.int64]:
        """Rows of `notes` of the last launch. AMK803 if they are not all there."""
        if not self.touches_wanted or self.grid.numbers[state.NOTES_LOST]:
            raise too_large(f"the launch synchronises more than {MOST_NOTES:,} times")
        return self.grid.note_log[: int(self.grid.numbers[state.NOTES])]

    def poison(self, name: str) -> None:
        """The content of an allocation is undefined from here on."""
        number = [a.name for a in self.memory.allocations].index(name)
        place = self.memory.addresses[name] - GLOBAL_BASE
        size = self.memory.allocations[number].bytes
        self.grid.memory[place : place + size] = POISON
        self.grid.undefined[place : place + size] = 1

    def fingerprint(self) -> bytes:
        """Before the first launch: machines of the same PTX for which it is equal do the same under equal launches."""
        shape = (self.blocks, self.warps, self.dynamic, self.races, self.touches_wanted, self.limits)
        found = sha256(repr((shape, self.grid.sizes)).encode())
        for array in (self.grid.allocations, self.grid.pages, self.grid.undefined, self.grid.memory):
            found.update(np.ascontiguousarray(array).data)
        return found.digest()

    def launch(self, argument: bytes, order: Order | None = None) -> Outcome:
        """Run the kernel with its one parameter block. Registers and shared memory start undefined."""
        order = order or Order()
        link()
        started = time.monotonic()
        self._start(argument, order)
        grid, limits = self.grid, self.limits
        listed = np.array([block * self.warps + warp for block, warp in order.first], np.int64)
        held = np.array([(n // self.warps, n % self.warps) in order.last for n in range(self.blocks * self.warps)], int)
        while True:
            left = limits.instructions - int(grid.numbers[state.EXECUTED])
            code = advance(
                grid.address, listed.ctypes.data, len(listed), held.ctypes.data, order.seed is not None, order.slice,
                min(left, BETWEEN_LOOKS),
            )  # fmt: skip
            listed = listed[:0]
            late = time.monotonic() - started > limits.seconds
            if code == STALLED and not late and look_again(grid.address, LOOKS):
                continue
            if code != OUT_OF_BUDGET or late or grid.numbers[state.EXECUTED] >= limits.instructions:
                break
        faults = faults_of(self, code, time.monotonic() - started)
        return Outcome(
            ended=code == FINISHED,
            faults=faults,
            instructions=int(grid.numbers[state.EXECUTED]),
            copies=int(grid.numbers[state.LANDED]),
            seconds=time.monotonic() - started,
            races_checked=bool(grid.numbers[state.RACES]),
        )

    def _start(self, argument: bytes, order: Order) -> None:
        grid, program = self.grid, self.program
        if len(argument) != program.parameters:
            raise ValueError(f"the kernel's parameters are {program.parameters} bytes, {len(argument)} were given")
        place = int(grid.table[state.PARAM_AT])
        grid.memory[place : place + len(argument)] = np.frombuffer(argument, np.uint8)
        shared = slice(int(grid.table[state.SHARED_AT]), int(grid.table[state.CONST_AT]))
        grid.memory[shared], grid.undefined[shared] = POISON, 1
        pool = grid.numbers[[state.POOL_USED, state.FREE_COUNT]]
        for array in (grid.pcs, grid.lanes, grid.masks, grid.warps, grid.poll_log, grid.blocks, grid.barriers,
                      grid.numbers,
                      grid.mbarriers, grid.fault_bits, grid.small_count, grid.groups, grid.fault_log):  # fmt: skip
            array[:] = 0
        self._keep_off()
        grid.numbers[[state.POOL_USED, state.FREE_COUNT]] = pool
        self._start_clocks()
        grid.numbers[state.PATIENT] = 1
        grid.numbers[[state.TOUCHING, state.NOTING]] = int(self.touches_wanted)
        grid.numbers[state.EAGER] = int(order.eager)
        grid.numbers[state.RANDOM] = 0x9E3779B97F4A7C1 * (2 * (order.seed or 0) + 1) & 0x7FFFFFFFFFFFFFFF
        major = int("".join(c for c in program.target if c.isdigit()) or 0)
        grid.numbers[state.TENSOR] = 8 if major < 90 else 16
        fill_registers(grid, program, self.warps, self.blocks, self.dynamic)
