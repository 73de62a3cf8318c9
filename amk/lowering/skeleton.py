"""The synchronisation of the compiled kernel against the schedule, step by step.

Property: the synchronising instructions of the PTX, in the order of the text, are those that the schedule asks for: the
ring's start, then for every step its polls, what its op does, its signals. Every loop body and every program stands
once in the PTX, also that of a loop over parts of a product (`printed`), so the sequence of one agent is the part of it
whose steps name the agent's role.

Expected per step (the table that ties the IR to sync.cuh):
    (a step)    the warp's barrier if an earlier step used the same memory and no barrier came between (M1)
    wait        ld.acquire (acquire) or ld.relaxed (relaxed) poll, then the warp's barrier (M3, M4)
    barrier     bar.sync with the step's id and the threads of its role
    gemv        per chunk: wait for the copy (mbarrier, or all but slots - 1 groups), the warp's barrier, the proxy
                fence iff the stream has refill_fence (M7), the next copy with its bytes expected or group committed;
                before all of it, where a ring does not run ahead, the fence and the first copies
    refill      per copy held back: the proxy fence likewise, before the first; the copy with its bytes expected
    other ops   at least one tagged load if it reads tagged words, then at least one tagged store per tagged buffer
                that it writes (M13); its own warp barriers, `meets` in a row, one more before `sums` are added up
    signal      the warp's barrier (M1), then red.release or red.relaxed in the order of the schedule (M2)
Forms outside the table of `readback` were refused before. The watchdog's accesses and non-coherent loads are left out.
Not seen here: operands and loops, which `operands.py` checks step by step in the parts that this finds.

AMK607 names the first step whose instructions are not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, count, product
from typing import NamedTuple

import numpy as np

from amk.lowering import refusal
from amk.lowering.printed import PartLoop, Printed, PrintedLoop, printed
from amk.lowering.readback import Instruction, Kind
from amk.report.diagnostic import AmkError, shown
from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Stream
from amk.schedule_ir.ops import BarrierOp, Op
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.schedule import Schedule, Step, Wait

LETTERS = {
    Kind.SIGNAL_RELEASE: "R",
    Kind.SIGNAL_RELAXED: "r",
    Kind.POLL_ACQUIRE: "P",
    Kind.POLL_RELAXED: "p",
    Kind.TAGGED_STORE: "T",
    Kind.TAGGED_LOAD: "L",
    Kind.WARP_BARRIER: "W",
    Kind.MBARRIER_INIT: "I",
    Kind.MBARRIER_INIT_FENCE: "F",
    Kind.MBARRIER_EXPECT: "E",
    Kind.MBARRIER_WAIT: "M",
    Kind.PROXY_FENCE_SHARED: "X",
    Kind.BULK_LOAD: "U",
    Kind.COPY: "c",
    Kind.COPY_COMMIT: "g",
}
"""One letter per kind; barriers and group waits carry their operands."""
IGNORED = frozenset({Kind.WATCHDOG, Kind.LOAD_CONSTANT})
UNEXPECTED = "?"


class LoopAt(NamedTuple):
    """A loop of the schedule, in the order of the text: over layers ("l"), or tokens ("t") with 0 for passes."""

    number: int
    var: str
    passes: int


@dataclass(frozen=True)
class Part:
    """What one step must have left in the PTX: a regular expression over the letters.

    item: the wait or the step that the part is of; None for the kernel's start and the lanes' meeting. layers: how
    often the loop over layers around it runs. part_loop: the loop over parts of a product that it is in. loops: those
    around it, the outermost first.
    """

    label: str
    pattern: str
    item: Wait | Step | None = None
    signals: bool = False
    layers: int = 1
    part_loop: PartLoop | None = None
    loops: tuple[LoopAt, ...] = ()


ByPart = list[tuple[Part, tuple[Instruction, ...]]]
"""The parts in order, each with the instructions that it matched."""


def check_synchronisation(schedule: Schedule, instructions: tuple[Instruction, ...]) -> ByPart:
    """The parts found. Raises AMK607 if the kernel's synchronisation is not the schedule's."""
    kept = [i for i in instructions if i.kind not in IGNORED]
    parts = [*_start(schedule), *_programs(schedule)]
    words = [_word(i) for i in kept]
    match = re.fullmatch("".join(f"({p.pattern})" for p in parts), "".join(words))
    if match is None:
        raise _mismatch(parts, kept, words)
    starts = {start: number for number, start in enumerate(accumulate((len(w) for w in words), initial=0))}
    spans = (match.span(number) for number in range(1, len(parts) + 1))
    return [(p, tuple(kept[starts[lo] : starts[hi]])) for p, (lo, hi) in zip(parts, spans, strict=True)]


def _word(instruction: Instruction) -> str:
    if instruction.kind is Kind.CTA_BARRIER:
        return f"B{','.join(instruction.operands)};"
    if instruction.kind is Kind.COPY_WAIT:
        return f"q{','.join(instruction.operands)};"
    return LETTERS.get(instruction.kind, UNEXPECTED)


def _mismatch(parts: list[Part], instructions: list[Instruction], words: list[str]) -> AmkError:
    """The first step after which no reading of the text fits, and the instruction reached there."""
    text = "".join(words)
    good, reached = 0, 0
    for number in range(1, len(parts) + 1):
        found = re.match("".join(p.pattern for p in parts[:number]), text)
        if found is None:
            break
        good, reached = number, found.end()
    place = next((n for n in range(len(words)) if len("".join(words[:n])) >= reached), len(words))
    there = (
        f"line {instructions[place].line}: {instructions[place].opcode}"
        if place < len(instructions)
        else "the end of the kernel"
    )
    label = parts[good].label if good < len(parts) else "nothing more"
    return refusal.unsafe(
        "AMK607", f"expected the synchronisation of {label}", shown(f"the PTX has, from there on, {there}"),
        advice="a primitive of the device headers, or its use, no longer does what the schedule says",
    )  # fmt: skip


def _start(schedule: Schedule) -> Iterator[Part]:
    threads = schedule.launch.warps * 32
    yield Part("the start of the kernel", f"B0,{threads};")
    stream = schedule.streams[0]
    if stream.engine == "bulk":
        yield Part("the ring's start", "I+FW" + ("(?:EU)+" if stream.run_ahead else ""))
    elif stream.run_ahead:
        yield Part("the ring's start", "c+g")


def _programs(schedule: Schedule) -> Iterator[Part]:
    numbers = count()

    def walk(nodes: tuple[Printed, ...], layers: int = 1, loops: tuple[LoopAt, ...] = ()) -> Iterator[Part]:
        for node in nodes:
            if isinstance(node, PrintedLoop):
                here = LoopAt(next(numbers), node.loop.var, node.loop.count or 0)
                yield from walk(node.body, node.loop.count or layers, (*loops, here))
                continue
            for step in node.body if isinstance(node, PartLoop) else (node,):
                for part in _step(schedule, step.step, step.path, step.lanes_meet):
                    part_loop = node if isinstance(node, PartLoop) else None
                    yield replace(part, layers=layers, part_loop=part_loop, loops=loops)

    for nodes in printed(schedule):
        yield from walk(nodes)


def _step(schedule: Schedule, step: Step, path: str, lanes_meet: bool) -> Iterator[Part]:
    for n, wait in enumerate(step.waits):
        yield Part(f"{path}/waits/{n} on '{wait.counter}'", ("P" if wait.order == "acquire" else "p") + "W", wait)
    if lanes_meet:
        yield Part(f"{path}: the lanes of a warp, which used the same memory before", "W")
    yield Part(f"{path} ({step.op.op})", _op(schedule, step.op), step)
    if step.signals:
        letters = "".join("R" if s.order == "release" else "r" for s in step.signals)
        yield Part(f"{path}/signals on {', '.join(s.counter for s in step.signals)}", f"W{letters}", step, True)


def _op(schedule: Schedule, op: Op) -> str:
    if isinstance(op, BarrierOp):
        return f"B{op.id},{op.agents * 32};"
    if isinstance(op, GemvOp):
        return _drain(next(s for s in schedule.streams if s.name == op.stream))
    if isinstance(op, RefillOp):
        return f"{'X' if next(s for s in schedule.streams if s.name == op.stream).refill_fence else ''}EU"
    reads, writes = _tagged_use(schedule, op)
    return _fetches(op, bool(reads)) + (f"T{{{writes},}}" if writes else "")


def _fetches(op: Op, tagged: bool) -> str:
    """Tagged loads and the warp barriers of the op's own. The text may hold either several times."""
    load = "L+" if tagged else ""
    if getattr(op, "sums", None) is not None:
        return f"{load}{'L*'.join('W' * (op.meets + 1))}[LW]*"
    return f"{load}W{{{op.meets}}}(?:L|W{{{op.meets}}})*" if op.meets else load


def _drain(stream: Stream) -> str:
    if stream.engine == "bulk":
        fence = "X" if stream.refill_fence else ""
        enter = "" if stream.run_ahead else f"{fence}(?:EU)+"
        return f"{enter}(?:MW{fence}EU)+"
    enter = "" if stream.run_ahead else "(?:c*g)+"
    return f"{enter}(?:q{stream.slots - 1};WWc+g{'' if stream.run_ahead else 'g?'})+"


def _tagged_use(schedule: Schedule, op: Op) -> tuple[int, int]:
    """(tagged buffers read, tagged buffers written) by any warp; the last ones may be the only ones that attend."""
    tagged = {b.name for b in schedule.buffers if b.tagged}
    named = {value for _, value in op if isinstance(value, str)} & tagged
    role = next(r for r in schedule.roles if r.name == op.role)
    geometry = schedule.geometry()
    tables = {name: np.array(column, np.int64) for name, column in schedule.tables.items()}
    seen: dict[str, set[str]] = {"read": set(), "write": set()}
    for worker, agent in product(range(schedule.launch.workers), range(role.count)):
        if seen["read"] | seen["write"] == named:
            break
        env = Env({"t": 0, "n": 0, "l": 0}, worker, agent, schedule.kv.context - schedule.rows, tables)
        for access in op.accesses(env, geometry):
            if access.buffer in tagged:
                seen[access.kind].add(access.buffer)
    return len(seen["read"]), len(seen["write"])
