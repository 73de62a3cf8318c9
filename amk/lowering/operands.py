"""The operands of the compiled kernel's synchronisation against the schedule, step by step.

Property, for what `skeleton` found in its place:
    registers   none is read before it is written (`written`)
    masks       every warp-wide instruction of the kernel is for all 32 lanes
    constants   what is loaded through the non-coherent path lies in a buffer that nothing writes during the launch
    reached     some way leads to everything that synchronises
    watchdog    its flags are its own variable in shared memory, its other accesses are to addresses that it keeps
    buffers     between two synchronising instructions memory of the launch is accessed in the buffers that the steps
                there name, tagged ones by tagged words alone, and no constant is stored to
    wait        polls the counter of the schedule until it has reached its threshold, and goes on only then
                (`wait_loops`)
    signal      adds the amount of the schedule to its counter, from one lane, the one that the emitter chose
    parts       see `part_loops`
    the ring    see `ring_operands`
    tags        see `tag_operands`
    threads     that every thread synchronises as the schedule says, in its order: see `threads`
Assumptions: registers hold what `affine` says; ptxas keeps it.
Not read here, and left to tests that execute the kernel: values, addresses within a buffer, and what decides whether an
    op's instructions are executed at all.

AMK609 names the first instruction that differs.
"""

from __future__ import annotations

import re

from amk.lowering.abi import COUNTER_STRIDE, flat_index, member
from amk.lowering.affine import Form, added, constant, scaled
from amk.lowering.conditions import conditions, lanes_of
from amk.lowering.definite_assignment import Dominators, check_written
from amk.lowering.emit import KERNEL
from amk.lowering.gaps import Gaps
from amk.lowering.loop_ends import check_loop_ends
from amk.lowering.part_loops import check_part_loops
from amk.lowering.ptx_code import read_kernel
from amk.lowering.readback import Instruction, Kind, read_ptx
from amk.lowering.ring_operands import check_ring
from amk.lowering.skeleton import ByPart, Part
from amk.lowering.symbolic import DOG, Reading
from amk.lowering.tag_operands import check_tags
from amk.lowering.threads import check_threads
from amk.schedule_ir.schedule import Schedule, Signal, Step, Wait

_MASKED = re.compile(r"(?:shfl|vote|redux|match|elect)(?:\.\w+)*\.?sync\b|bar\.warp\.sync|activemask")
_ALL_LANES = (1 << 32) - 1
_SIGNALS = (Kind.SIGNAL_RELEASE, Kind.SIGNAL_RELAXED)
_MEMORY = re.compile(r"(?P<access>ld|st)\.(?:global\b(?!\.nc)|[busfv]\d+)")
_OWN = frozenset({"trace", "loaded"})
"""What a kernel may access everywhere: the marks of a traced one, the watchdog's log by the address that it keeps."""


def check_operands(schedule: Schedule, ptx: str, by_part: ByPart) -> None:
    """Raise AMK609 if operands of the kernel are not those of the schedule; by_part: from `check_synchronisation`."""
    reading = Reading(schedule, read_kernel(ptx, KERNEL), by_part)
    _masks(reading)
    _constants(reading)
    _watchdog(reading, ptx)
    for part, instructions in by_part:
        if isinstance(part.item, Wait):
            _wait(reading, part, part.item, instructions[0])
        elif isinstance(part.item, Step) and part.signals:
            _signals(reading, part, part.item.signals, instructions)
    check_part_loops(reading)
    check_loop_ends(reading)
    check_ring(reading)
    check_tags(reading)
    check_threads(reading)
    _buffers(reading)
    check_written(reading.kernel, reading.stops)
    _executed(reading, ptx)


def _masks(reading: Reading) -> None:
    for one in reading.kernel.code:
        if _MASKED.match(one.opcode):
            mask = constant(reading.values.of(one.operands[-1], one.at))
            if one.opcode == "activemask" or mask is None or mask & _ALL_LANES != _ALL_LANES:
                raise reading.refused("warp-wide instructions", one, "leaves out lanes of the warp")


def _constants(reading: Reading) -> None:
    fixed = {member(b.name) for b in reading.schedule.buffers if b.role == "constant"}
    for one in reading.kernel.code:
        if one.opcode.startswith("ld.global.nc") and not reading.roots.of_address(one) <= fixed:
            raise reading.refused("non-coherent loads", one, "reads what the launch may write")


def _executed(reading: Reading, ptx: str) -> None:
    blocks = set(Dominators(reading.kernel).order)
    for one in read_ptx(ptx)[KERNEL]:
        if reading.kernel.block((code := reading.code(one)).at) not in blocks:
            raise reading.refused("what synchronises", code, "does not come to it on any way")


def _watchdog(reading: Reading, ptx: str) -> None:
    for one in read_ptx(ptx)[KERNEL]:
        if one.kind is Kind.WATCHDOG:
            own = {DOG} if ".shared" in one.opcode else {"loaded"}
            if reading.roots.of_address(code := reading.code(one)) != own:
                raise reading.refused("the watchdog", code, "accesses memory that is not the watchdog's")


def _wait(reading: Reading, part: Part, wait: Wait, poll: Instruction) -> None:
    loop, address = reading.loop(poll), reading.values.address(reading.code(poll))
    reading.same(part, poll, "polls another counter", address, _counter(reading, part, wait))
    target = loop.target()
    if target is None or not loop.holds():
        raise reading.refused(part.label, poll, "goes on although the counter has not reached its threshold")
    reading.same(part, poll, "waits for another threshold", target, reading.expected(part, wait.at_least))


def _signals(reading: Reading, part: Part, signals: tuple[Signal, ...], instructions: tuple[Instruction, ...]) -> None:
    """The compiler may put signals of different lanes into any order; those of one lane keep theirs."""
    left = list(enumerate(signals))
    for one in (i for i in instructions if i.kind in _SIGNALS):
        deciding = list(conditions(reading, reading.kernel.by_line[one.line]))
        lanes = lanes_of(deciding)
        mine = next((each for each in left if {each[0] % 32} == lanes), None)
        if mine is None:
            raise reading.refused(part.label, one, f"does not signal from lane {left[0][0] % 32} alone")
        left.remove(mine)
        _signal(reading, part, mine[1], one)
        allowed = [] if isinstance(mine[1].add, int) else [reading.expected(part, mine[1].add)]
        if any(not each.of_lane and each.not_zero() not in allowed for each in deciding):
            raise reading.refused(part.label, one, "signals only on a condition that the schedule does not have")


def _signal(reading: Reading, part: Part, signal: Signal, one: Instruction) -> None:
    code = reading.code(one)
    if one.kind is not (Kind.SIGNAL_RELEASE if signal.order == "release" else Kind.SIGNAL_RELAXED):
        raise reading.refused(part.label, one, "signals in another order of memory")
    address, amount = reading.values.address(code), reading.values.operand(code, 1)
    reading.same(part, one, "signals another counter", address, _counter(reading, part, signal))
    reading.same(part, one, "adds another amount", amount, reading.expected(part, signal.add))


def _counter(reading: Reading, part: Part, use: Wait | Signal) -> Form:
    """The address of the counter of a wait or a signal."""
    flat = flat_index(reading.counters[use.counter], use.index)
    number = reading.expected(part, flat | {"1": flat.get("1", 0) + reading.abi.counter_base[use.counter]})
    return added({"argument counters": 1}, scaled(number, 4 * COUNTER_STRIDE))


def _buffers(reading: Reading) -> None:
    """Every access of the launch's memory in a buffer that the steps at its place name."""
    constants = {b.name for b in reading.schedule.buffers if b.role == "constant"}
    tagged = {b.name for b in reading.schedule.buffers if b.tagged}
    gaps, allowed = Gaps(reading.kernel, reading.stops), _named_between(reading)
    for at, one in enumerate(reading.kernel.code):
        match = _MEMORY.match(one.opcode)
        if match is None or at in reading.stops:
            continue
        named = set[str].intersection(*(allowed[gap] for gap in gaps.around(at)))
        there = named - tagged - (constants if match["access"] == "st" else set())
        wrong = reading.roots.of_address(one) - _OWN - {member(name) for name in there}
        if wrong:
            names = ", ".join(sorted(reading.buffer_names.get(root, root) for root in wrong))
            what = "stores to" if match["access"] == "st" else "reads"
            raise reading.refused("memory of the launch", one, f"{what} {names}, which no step at its place names")


def _named_between(reading: Reading) -> list[set[str]]:
    """For every gap between synchronising instructions, the buffers that steps named there: those of the op that the
    gap is inside of or next to, and of ops between without an instruction."""
    gaps: list[set[str]] = [set() for _ in range(len(reading.stops) + 1)]
    at = 0
    open_from: int | None = None  # where tagged loads began whose step the text does not tell from the next
    for part, instructions in reading.by_part:
        loads = [one.kind is Kind.TAGGED_LOAD for one in instructions]
        start = at if open_from is None or (loads and not loads[0]) else open_from
        for gap in range(start, at + len(instructions) + 1):
            gaps[gap] |= reading.named_by(part)
        if loads:
            open_from = at if loads[-1] else None
        at += len(instructions)
    return gaps
