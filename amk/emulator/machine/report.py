"""Faults and blocked warps in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from amk.emulator.machine.schedule_loop import FAULTED, FINISHED, OUT_OF_BUDGET, STALLED
from amk.emulator.memory import state
from amk.emulator.memory.clocks import LANE_AT, MANY, PC_BITS, THREAD_BITS
from amk.emulator.memory.global_memory import Memory
from amk.emulator.memory.state import Grid
from amk.emulator.ptx import isa
from amk.emulator.ptx.encode import GLOBAL_BASE
from amk.emulator.ptx.program import Program

SPACES = {
    isa.GLOBAL: "global",
    isa.SHARED: "shared",
    isa.CONST: "constant",
    isa.PARAM: "parameter",
    isa.GENERIC: "generic",
}
UNDEFINED_IN = ("an address", "a store to global memory", "an atomic", "an atomic's memory", "an mbarrier's operand",
                "a member mask", "a shuffle's lane", "a predicate")  # fmt: skip
MBARRIER = ("", "an ordinary store hits an mbarrier", "an mbarrier is initialised with a wrong count",
            "there is no mbarrier", "more arrivals or bytes than the phase expects",
            "bytes land that the phase does not expect")  # fmt: skip

ACCESSES = {
    state.OUT_OF_BOUNDS: ("out of bounds", "accesses"),
    state.MISALIGNED: ("misaligned", "accesses"),
    state.READ_ONLY: ("write of a constant", "writes"),
}


@dataclass(frozen=True)
class Fault:
    """Something that no correct kernel does, or that ended the run.

    kind: a word. warp: (block, warp of the block), None for the grid. line: of the PTX, opcode: there. place: lines
    of the CUDA source, outermost last. message: what, where, in words.
    """

    kind: str
    warp: tuple[int, int] | None
    line: int
    opcode: str
    place: tuple[int, ...]
    message: str

    def __str__(self) -> str:
        who = f"worker {self.warp[0]}, warp {self.warp[1]}: " if self.warp else ""
        where = f" at {self.opcode}, line {self.line} of the PTX" if self.opcode else ""
        return f"{self.kind}: {who}{self.message}{where}"


class Launched(Protocol):
    """What is reported on: a `Machine` after a launch."""

    program: Program
    grid: Grid
    memory: Memory
    blocks: int
    warps: int


def faults_of(machine: Launched, code: int, seconds: float) -> list[Fault]:
    """What the launch recorded, and why it ended if not at its end."""
    grid = machine.grid
    found = [_fault(machine, row) for row in grid.fault_log[: int(grid.numbers[state.FAULTS])]]
    if code == STALLED:
        found += [
            Fault("deadlock", (w // machine.warps, w % machine.warps), *_at(machine, pc), blocked(machine, w))
            for w in range(machine.blocks * machine.warps)
            if grid.warps[w, state.STATUS] != state.DONE
            for pc in [_pc(machine, w)]
        ]
    elif code == OUT_OF_BUDGET:
        what = f"{int(grid.numbers[state.EXECUTED]):,} instructions in {seconds:.0f} s, and the kernel had not ended"
        found.append(Fault("limit", None, 0, "", (), what))
    assert code in (FINISHED, STALLED, OUT_OF_BUDGET, FAULTED)
    return found


def _at(machine: Launched, pc: int) -> tuple[int, str, tuple[int, ...]]:
    program = machine.program
    return int(program.lines[pc]), program.opcodes[pc], program.places[pc]


def _pc(machine: Launched, warp: int) -> int:
    """Where a warp that waits stands: its last poll, or its first lane that has not ended, one before if at a
    barrier."""
    grid = machine.grid
    count = int(grid.warps[warp, state.POLLS])
    if grid.warps[warp, state.STATUS] != state.AT_BARRIER and count:
        return int(grid.poll_log[warp, (count - 1) % state.POLLED, 0])
    lanes = [lane for lane in range(32) if grid.lanes[warp, lane] != state.EXITED]
    pc = int(grid.pcs[warp, lanes[0]]) if lanes else 0
    return pc - 1 if grid.warps[warp, state.STATUS] == state.AT_BARRIER else pc


def blocked(machine: Launched, warp: int) -> str:
    """What a warp waits for."""
    grid = machine.grid
    block = warp // machine.warps
    if grid.warps[warp, state.STATUS] == state.AT_BARRIER:
        number = int(grid.warps[warp, state.BARRIER])
        arrived, wanted = (int(n) // 32 for n in grid.barriers[block, number])
        return f"waits at barrier {number}, {arrived} of {wanted} warps have arrived"
    polls = grid.poll_log[warp, : min(int(grid.warps[warp, state.POLLS]), state.POLLED)]
    if not len(polls):
        lanes = [lane for lane in range(32) if grid.lanes[warp, lane] == state.AT_WARP_BARRIER]
        return f"lanes {lanes} wait for the others of their warp" if lanes else "does not go on"
    words = []
    for pc, _, address in polls.tolist():
        if machine.program.code[pc, 0] == isa.MBAR_TRY:
            place = int(grid.table[state.SHARED_AT]) + block * int(grid.table[state.SHARED_BYTES]) + address
            word = int(grid.memory[place : place + 8].view(np.int64)[0])
            words.append(
                f"mbarrier at shared {name_of_shared(machine, address)}: {(word >> 1) & 0xFFFFF} arrivals and "
                f"{word >> 41} bytes are still to come"
            )
        elif address >= GLOBAL_BASE:
            value = int(grid.memory[address - GLOBAL_BASE :][:4].view(np.uint32)[0])
            words.append(f"{name_of(machine, address)}, which holds {value}")
    return "polls " + "; ".join(dict.fromkeys(words))


def name_of(machine: Launched, address: int) -> str:
    """An address of global memory as allocation and byte."""
    place = address - GLOBAL_BASE
    best = None
    for allocation in machine.memory.allocations:
        start = machine.memory.addresses[allocation.name] - GLOBAL_BASE
        if start <= place:
            best = (allocation, place - start)
    if best is None:
        return f"address {address:#x}"
    allocation, offset = best
    if offset >= allocation.bytes:
        return f"{allocation.name} + {offset}, {offset - allocation.bytes} bytes behind its {allocation.bytes}"
    return f"{allocation.name} + {offset}"


def name_of_shared(machine: Launched, address: int) -> str:
    offset = address - machine.program.static_shared
    return f"+ {offset}" if offset >= 0 else f"(static) {address}"


def _place(machine: Launched, space: int, address: int) -> str:
    if space == isa.GLOBAL or address >= GLOBAL_BASE:
        return name_of(machine, address)
    if space == isa.SHARED:
        return f"shared memory {name_of_shared(machine, address)}"
    return f"{SPACES.get(space, 'generic')} memory {address:#x}"


def _fault(machine: Launched, row: NDArray[np.int64]) -> Fault:
    kind, warp, pc, lane, address, more, other, _ = (int(n) for n in row)
    word, message = _fault_text(machine, kind, lane, address, more, other)
    return Fault(word, (warp // machine.warps, warp % machine.warps), *_at(machine, pc), message)


def _race_text(machine: Launched, kind: int, lane: int, place: int, epoch: int, what: int) -> tuple[str, str]:
    """A byte that two lanes touch, and who touched it before."""
    warps = machine.blocks * machine.warps
    thread, by = epoch >> PC_BITS & (1 << THREAD_BITS) - 1, epoch >> LANE_AT & 63
    worker, warp = divmod(thread % warps, machine.warps)
    line, opcode, _ = _at(machine, epoch & (1 << PC_BITS) - 1)
    lanes = f"lane {by}" if by < MANY else "several lanes"
    whose = "a copy" if thread >= warps else lanes
    who = f"{whose} of worker {worker}, warp {warp} {'read' if what & 2 else 'wrote'}"
    verb = "writes" if what & 1 else "reads"
    said = f"lane {lane} {verb} {_named(machine, place)}, which {who} at {opcode}, line {line} of the PTX"
    if kind == state.NON_COHERENT_READ:
        return "non-coherent read", f"{said}, in this launch"
    if kind == state.PROXY:
        return "proxy", f"a copy of {said}, and no fence.proxy.async stands between"
    return "race", f"{said}, and nothing orders the two"


def _named(machine: Launched, place: int) -> str:
    """A place of global or shared memory."""
    inside = place - int(machine.grid.table[state.SHARED_AT])
    if inside < 0:
        return name_of(machine, place + GLOBAL_BASE)
    return f"shared memory {name_of_shared(machine, inside % int(machine.grid.table[state.SHARED_BYTES]))}"


def _fault_text(machine: Launched, kind: int, lane: int, address: int, more: int, other: int) -> tuple[str, str]:
    """The word and the sentence of a recorded fault."""
    if kind in ACCESSES:
        word, verb = ACCESSES[kind]
        return word, f"lane {lane} {verb} {other} bytes at {_place(machine, more, address)}"
    if kind in (state.RACE, state.NON_COHERENT_READ, state.PROXY):
        return _race_text(machine, kind, lane, address, more, other)
    if kind == state.UNDEFINED:
        names = machine.program.row_names
        what = name_of(machine, address) if more == 3 else names[address]
        return "undefined", f"lane {lane} uses bytes that nothing has written in {UNDEFINED_IN[more]} ({what})"
    if kind == state.BAD_MBARRIER:
        return "mbarrier", f"{MBARRIER[more]}, at shared {name_of_shared(machine, address)} (operand {other})"
    return {
        state.DIVERGED: ("divergence", f"lanes {address:#010x} have to be here together, {more:#010x} are"),
        state.BAD_MASK: ("member mask", f"lanes {more:#010x} execute it with the mask {address:#010x}"),
        state.BAD_BARRIER: ("barrier", f"barrier {address} for {more} threads, others expect {other}"),
        state.TRAPPED: ("trap", f"lane {lane}"),
        state.LOST_LANES: ("divergence", f"lanes {address:#010x} wait for lanes that never come"),
        state.LATE_COPY: (
            "late copy",
            f"{more} bytes land in a block that has ended, at shared {name_of_shared(machine, address)}",
        ),
    }[kind]
