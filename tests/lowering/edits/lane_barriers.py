"""Which barriers of a warp (bar.warp.sync) a kernel needs, each decided by itself.

    python -m tests.validator.evidence --only lanes --jobs 14 --records tests/records/proof

A barrier of the warp does one thing that the memory model knows: it orders what its lanes accessed before it ahead of
what they access behind it. Each one of each subject's PTX is either

* *needed*: the kernel without it is refuted by the emulator, which sees races between lanes; or
* *redundant*, by one of these proofs about all paths of the kernel's control flow, M being another barrier of the warp
  or a `bar.sync`, at which all lanes of the warp meet as well:
  `next`      no lane accesses memory that orders or is written between the barrier and the next M on any path: what is
              behind the barrier is behind that M, and so ordered after what is before;
  `previous`  the same from the last M on every path to the barrier;
  `mbarriers` before it mbarriers are initialised, and nothing else is accessed since the last M; none is used before
              the next M;
  `no refill` a product whose ring does not run ahead, and in which no warp has more chunks than slots: no copy follows;
  `one split` of `combine`, the first two barriers: with one split a lane reads and writes the weight of its own head
              before the third (with two, each is needed, as tests/emulator/test_lanes_of_kernels.py shows);
  `own rows`  between the tokens of a slice of layers, the one barrier that no op or signal owns: of the steps on both
              sides of it give_hidden and take_hidden use the residual, row r in lane r mod 32 of a warp's share in
              both; give_hidden uses nothing else that take_hidden does, and a barrier of the block stands before it;
              what `begin` reads take_hidden does not write;
* *needed: words*, which no run shows: it stands between a use of memory and a step with flag words, and nothing but
  flag words is used on both sides. The emulator takes a warp's lanes for as far as its barriers let them be, not for as
  far as words do (memory_model.py);
* or *undecided*, which is a difference of the recorded run.

What may stand between: loads of parameters and constants, which nothing writes; the watchdog's own words, by which no
lane hands another data; relaxed polls and relaxed reductions of counters, which order nothing, as no kernel fences
them; and, only behind the barrier, acquiring polls: they read counters, which nobody writes but by strong
operations, and what they acquire the next M hands on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from amk.lowering.abi import abi
from amk.lowering.emit import KERNEL
from amk.lowering.lanes import lane_barriers
from amk.lowering.ptx_code import Code, Kernel, read_kernel
from amk.lowering.readback import read_ptx
from amk.lowering.roots import Roots
from amk.lowering.skeleton import Part, check_synchronisation
from amk.models.matrices import MatrixName, matrix, share_table
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Loop, Schedule, Step, Wait, steps_of
from tests.lowering.edits.emulated import REQUESTS, Request, difference
from tests.lowering.edits.judge import SUBJECTS, original, subject

WARP_BARRIER = "bar.warp.sync"
BETWEEN, WORDS = "between two steps", "between flag words and other memory"
NO_MEMORY = ("ld.param", "ld.const", "ld.global.nc")
RELAXED = ("ld.relaxed.gpu.global.u32", "red.relaxed.gpu.global.add.u32")
ACQUIRING = "ld.acquire.gpu.global.u32"
ACCESSES = ("ld", "st", "atom", "red", "cp", "mbarrier", "fence", "membar", "prefetch", "discard")
INIT = re.compile(r"mbarrier\.init|fence\.mbarrier_init")
WATCHDOG, LOG = re.compile(r"_Z\w*dog"), frozenset({"abort_word", "loaded"})
SLICES = 400


@dataclass(frozen=True)
class Case:
    """One barrier of a subject's kernel. what: where the emitter or a header puts it."""

    subject: str
    line: int
    what: str


@cache
def kernel_of(name: str) -> tuple[str, Kernel, Roots]:
    ptx = original(name)
    assert ptx is not None
    kernel = read_kernel(ptx, KERNEL)
    return ptx, kernel, Roots(kernel, abi(subject(name)))


@cache
def cases(name: str) -> tuple[Case, ...]:
    """All barriers of the warp in a subject's kernel, in textual order."""
    ptx, kernel, _ = kernel_of(name)
    parts = check_synchronisation(subject(name), tuple(read_ptx(ptx)[KERNEL]))
    what: dict[int, str] = {}
    for_words = iter(_for_words(subject(name)))
    for part, instructions in parts:
        lines = [one.line for one in instructions if one.opcode == WARP_BARRIER]
        several = isinstance(part.item, Step) and part.item.op.meets > 1 and not part.signals
        said = _what(part)
        if said == BETWEEN and lines and next(for_words):
            said = WORDS
        what |= {line: said + (f", {n}" if several else "") for n, line in enumerate(lines, 1)}
    return tuple(Case(name, one.line, what[one.line]) for one in kernel.code if one.opcode == WARP_BARRIER)


def _for_words(schedule: Schedule) -> list[bool]:
    """Of each barrier that the lowering adds between steps: is there none here but for flag words, which lanes hand to
    each other without it?"""
    buffers = tuple(b for b in schedule.buffers if not b.tagged)
    other = lane_barriers(schedule.model_copy(update={"buffers": buffers}))
    return [not plain for one, plain in zip(lane_barriers(schedule), other, strict=True) if one]


def _what(part: Part) -> str:
    if isinstance(part.item, Wait):
        return f"after a wait that is {'an acquire' if part.item.order == 'acquire' else 'a hint'}"
    if not isinstance(part.item, Step):
        return "at the ring's start" if "ring" in part.label else BETWEEN
    orders = sorted({signal.order for signal in part.item.signals})
    if part.signals:
        return f"before {' and '.join(orders)} signals"
    op = part.item.op
    return f"in gemv of {op.matrix}" if isinstance(op, GemvOp) else f"in {op.op}"


def _without(ptx: str, line: int) -> str:
    lines = ptx.split("\n")
    assert WARP_BARRIER in lines[line - 1]
    return "\n".join([*lines[: line - 1], "", *lines[line:]])


def decided(case: Case, requests: tuple[Request, ...] = REQUESTS) -> str:
    """`redundant: next`, `redundant: previous`, `needed: ` and what the emulator saw without it, or `undecided`.

    requests: of the emulator."""
    ptx, kernel, roots = kernel_of(case.subject)
    proof = redundant(kernel, roots, kernel.by_line[case.line])
    proof = proof or _of_plan(subject(case.subject), case.what)
    if proof:
        return f"redundant: {proof}"
    seen = difference(case.subject, subject(case.subject), ptx, _without(ptx, case.line), requests)
    return f"needed: {seen}" if seen else "needed: words" if case.what == WORDS else "undecided"


def _of_plan(schedule: Schedule, what: str) -> str:
    """The proof that rests on what the plan has: of a product without refills, of `combine` with one split."""
    if what in ("in combine, 1", "in combine, 2") and schedule.kv.splits == 1:
        return "one split"
    if what == BETWEEN and _between_tokens_of_slice(schedule):
        return "own rows"
    stream = schedule.streams[0]
    if what.startswith("in gemv of ") and not stream.run_ahead:
        name = cast(MatrixName, what.removeprefix("in gemv of "))
        agents = next(role.count for role in schedule.roles if role.name == stream.role)
        groups = -(-max(schedule.tables[f"{share_table(name)}.count"]) // agents)
        if groups * -(-matrix(schedule.model, name).k // stream.chunk(name, 0).columns) <= stream.slots:
            return "no refill"
    return ""


def _between_tokens_of_slice(schedule: Schedule) -> bool:
    """Whether all barriers that the lowering adds stand before take_hidden, whose loop ends with a barrier step of all
    warps and give_hidden, and nothing between it and `begin`."""
    for program in schedule.programs:
        first, loop = program.body[:2]
        if not (isinstance(first, Step) and first.op.op == "begin" and isinstance(loop, Loop)):
            return False
        ends = [loop.body[n] for n in (0, -2, -1)]
        ops = [node.op for node in ends if isinstance(node, Step) and not node.waits]
        met = isinstance(ops[1], BarrierOp) and ops[1].agents == schedule.launch.warps if len(ops) == 3 else False
        if not met or (ops[0].op, ops[2].op) != ("take_hidden", "give_hidden"):
            return False
    steps = [step for program in schedule.programs for step in steps_of(program.body)]
    where = {step.op.op for step, meets in zip(steps, lane_barriers(schedule), strict=True) if meets}
    return where == {"take_hidden"}


def redundant(kernel: Kernel, roots: Roots, at: int) -> str:
    """The proof that another barrier does what this one does; empty if there is none."""
    if any(one.opcode.startswith(("fence.acq_rel", "fence.sc", "membar")) for one in kernel.code):
        return ""

    def idle_behind(one: Code) -> bool:
        return one.opcode == ACQUIRING or _idle(one, roots)

    if _meets(kernel, at, kernel.successors, idle_behind):
        return "next"
    before = kernel.predecessors.__getitem__
    if _meets(kernel, at, before, lambda one: _idle(one, roots)):
        return "previous"
    starts = _meets(kernel, at, before, lambda one: _idle(one, roots) or INIT.match(one.opcode) is not None)
    unused = _meets(kernel, at, kernel.successors, lambda one: not one.opcode.startswith(("mbarrier", "cp.async.bulk")))
    return "mbarriers" if starts and unused else ""


def _meets(kernel: Kernel, at: int, onward: Callable[[int], list[int]], idle: Callable[[Code], bool]) -> bool:
    """Whether every path from a barrier comes to another, or to an end of the kernel, with idle instructions alone."""
    seen, stack = {at}, list(onward(at))
    while stack:
        here = stack.pop()
        one = kernel.code[here]
        if here in seen or _all_meet(one):
            continue
        if not idle(one):
            return False
        seen.add(here)
        stack += onward(here)
    return True


def _all_meet(one: Code) -> bool:
    whole = one.operands[-1:] in (("-1",), ("0xffffffff",), ("4294967295",))
    return not one.guard and (one.opcode == "bar.sync" or (one.opcode == WARP_BARRIER and whole))


def _idle(one: Code, roots: Roots) -> bool:
    family = one.opcode.split(".")[0]
    if family not in ACCESSES or one.opcode.startswith(NO_MEMORY) or one.opcode in RELAXED:
        return True
    return _of_watchdog(one, roots)


def _of_watchdog(one: Code, roots: Roots) -> bool:
    """Its variable in shared memory, its log by the address kept there, the word by which the host stops a launch."""
    if one.opcode.startswith(("cp", "mbarrier", "fence", "membar")):
        return False
    found = roots.of_address(one)
    if ".shared" in one.opcode:
        return bool(found) and all(WATCHDOG.fullmatch(root) for root in found)
    return bool(found) and found <= LOG and one.address[0].startswith("%rd")


@cache
def all_cases() -> tuple[Case, ...]:
    return tuple(case for name in SUBJECTS for case in cases(name))


def lanes_slice(number: int) -> dict[str, Any]:
    """One barrier."""
    assert len(all_cases()) <= SLICES
    if number >= len(all_cases()):
        return {"barriers": 0}
    case = all_cases()[number]
    found = decided(case)
    differences = [f"{case.subject}, line {case.line}, {case.what}: {found}"] if found == "undecided" else []
    return {"barriers": 1, "found": {f"{case.what}: {found}": 1}, "differences": differences}
