"""What every step of a run touched, beside what its op declares (`accesses`).

Property: for each step that a warp ran, every byte that its instructions read or wrote is compared with the declared
    reads and writes of that op, worker, agent, layer and position, in both directions.
Assumes: PTX with line information (`LINE_INFO`). An instruction belongs to the step in whose line of the emitted text
    the outermost call stands that it was inlined at. Where the compiler names no line, it belongs to the step before
    it, or after it if what comes before is no op's. The compiler moves an instruction by less than half a loop's body.
    The rings of weights and their mbarriers are not in `accesses`; only steps that drain or refill a ring, and what
    comes before all steps, may touch them. Prefetches are no reads.
Algorithm: the steps of a warp, loops unrolled, in order. Each touch goes to the occurrence of its step that is nearest
    to the last one, of two to the later one: warps meet between parts of a product, so nothing is moved back. What the
    nearest does not declare and the next one does begins the next one, as a warp may touch nothing between the two.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np

from amk.emulator.machine.machine import Machine
from amk.emulator.memory import state
from amk.emulator.memory.touched import COPIED_TO, WRITE
from amk.emulator.ptx.encode import GLOBAL_BASE
from amk.lowering.printed import PartLoop, Printed, PrintedLoop, printed
from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops import AnyOp, BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.schedule import Node, Schedule, Step, steps_of

LINE_INFO = "--generate-line-info"
"""The compiler's option; it changes no instruction."""
SHARED = ""
"""Name of a worker's dynamic shared memory."""
COUNTERS, LOG, ABORT = "the counters", "the watchdog's log", "the abort word"
"""Memory of waits, signals and the watchdog, which belongs to no op and is called as no buffer can be."""
Kind = Literal["undeclared read", "undeclared write", "unwritten", "unread"]
Spans = list[tuple[int, int]]
Touched = dict[tuple[bool, str], Spans]
"""Bytes by whether they are written, and by buffer."""
_CALL = re.compile(r"amk::ops::(\w+)<S(\d+)>\(c\);")


@dataclass(frozen=True)
class Mismatch:
    """Bytes [lo, hi) of a buffer that one step of one warp touched and its op does not declare, or the reverse.

    op: its name, "none" outside all steps. loops: n, t and l. buffer: a global one, or "shared", of the worker.
    """

    kind: Kind
    op: str
    worker: int
    agent: int
    loops: tuple[tuple[str, int], ...]
    buffer: str
    lo: int
    hi: int

    def __str__(self) -> str:
        at = ", ".join(f"{name} {value}" for name, value in self.loops)
        who = f"{self.op}, worker {self.worker}, agent {self.agent}, {at}"
        return f"{self.kind} of {self.buffer} [{self.lo}, {self.hi}): {who}"


@dataclass(frozen=True)
class Visit:
    """One run of a step by a warp. number: of the call in the emitted text."""

    number: int
    op: AnyOp
    loops: Mapping[str, int]
    agent: int


def mismatches(schedule: Schedule, text: str, machine: Machine, *, tokens: int, position: int = 0) -> list[Mismatch]:
    """Of the machine's last launch, of `tokens` tokens from `position` on, epoch 0. text: the CUDA that was compiled.

    AMK803 if the log of touches was full, ValueError if the text is not this schedule's.
    """
    return list(_Comparison(schedule, text, machine, tokens, position).all())


def merged(spans: Spans) -> Spans:
    """Ascending, disjoint, not adjacent."""
    out: Spans = []
    for lo, hi in sorted(spans):
        if out and lo <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], hi)
        elif lo < hi:
            out.append((lo, hi))
    return out


def without(spans: Spans, others: Spans) -> Spans:
    """What of `spans` is in none of `others`."""
    out: Spans = []
    others = merged(others)
    for lo, hi in merged(spans):
        for first, end in others:
            if end <= lo or first >= hi:
                continue
            if lo < first:
                out.append((lo, first))
            lo = end
        if lo < hi:
            out.append((lo, hi))
    return out


def _allowed(declared: Touched, writes: bool, buffer: str) -> Spans:
    """What a step may write, or read: what it writes as well."""
    return declared.get((True, buffer), []) + ([] if writes else declared.get((False, buffer), []))


def _nearest(places: list[int], now: int) -> list[int]:
    """The place nearest to `now`, of two the later one, and the next one if there is any."""
    number = min(range(len(places)), key=lambda k: (abs(places[k] - now), -k))
    return places[number : number + 2]


def _filled(numbers: list[int | None]) -> list[int]:
    """Each number, or the last one before it, or -1."""
    return list(accumulate(numbers, lambda last, one: last if one is None else one, initial=-1))[1:]


class _Comparison:
    def __init__(self, schedule: Schedule, text: str, machine: Machine, tokens: int, position: int) -> None:
        self.schedule, self.machine, self.tokens = schedule, machine, tokens
        self.positions = self._positions(position)
        self.geometry = schedule.geometry()
        self.tables = {name: np.array(table, np.int64) for name, table in schedule.tables.items()}
        self.offset = {b.name: b.offset or 0 for b in schedule.buffers if b.space == "shared"}
        self.roles = {role.name: role for role in schedule.roles}
        self.numbers: dict[int, int] = {}
        self.calls = 0
        for program, nodes in zip(schedule.programs, printed(schedule), strict=True):
            self._number(nodes, iter(steps_of(program.body)))
        self.step_of = self._steps_of_instructions(text)
        names = {name for stream in schedule.streams for name in (stream.ring, stream.full)}
        self.ring = merged([self._absolute(b.name, 0, b.bytes)[1] for b in schedule.buffers if b.name in names])
        self.weights = {stream.source for stream in schedule.streams}

    def _positions(self, first: int) -> list[int]:
        """Of each step's first row. Where steps accept guesses, what they show says how many rows counted."""
        rows = self.schedule.rows
        if not self.schedule.accepts:
            return [first + n * rows for n in range(self.tokens)]
        shown = self.machine.read("output", np.int32, self.tokens * rows).view(np.int32).reshape(-1, rows)
        return [first, *(first + np.cumsum((shown >= 0).sum(axis=1))).tolist()]

    def _number(self, nodes: Iterable[Printed], steps: Iterator[Step]) -> None:
        """Calls are numbered as they are printed; a loop over parts has one call for a step of each of them."""
        for node in nodes:
            if isinstance(node, PrintedLoop):
                self._number(node.body, steps)
                continue
            group, times = (node.body, node.count) if isinstance(node, PartLoop) else ((node,), 1)
            first = self.calls
            for _ in range(times):
                self.calls = first
                for step in (next(steps) for _ in group):
                    if not isinstance(step.op, BarrierOp | WaitOp | SignalOp):
                        self.numbers[id(step)] = self.calls
                        self.calls += 1

    def _steps_of_instructions(self, text: str) -> list[int]:
        """The number of the call that each instruction belongs to, -1 for none; prefetches are -2."""
        lines: dict[int, int] = {}
        for line, words in enumerate(text.splitlines(), 1):
            if call := _CALL.search(words):
                lines[line] = int(call[2])
        if sorted(lines.values()) != list(range(self.calls)):
            raise ValueError("the text has other calls than the schedule has steps")
        program = self.machine.program
        kernel = Counter(file for file in program.files if file).most_common(1)
        order = np.argsort(program.lines, kind="stable").tolist()
        named: list[int | None] = [
            lines.get(program.places[pc][-1], -1)
            if kernel and program.files[pc] == kernel[0][0] and program.places[pc][-1]
            else None
            for pc in order
        ]
        found = [-1] * len(order)
        for pc, before, own, after in zip(order, _filled(named), named, _filled(named[::-1])[::-1], strict=True):
            found[pc] = own if own is not None else before if before >= 0 else after
        return [
            -2 if opcode.startswith("prefetch") else one for opcode, one in zip(program.opcodes, found, strict=True)
        ]

    def _absolute(self, buffer: str, lo: int, hi: int) -> tuple[str, tuple[int, int]]:
        if buffer in self.offset:
            return SHARED, (self.offset[buffer] + lo, self.offset[buffer] + hi)
        return buffer, (lo, hi)

    def visits(self, worker: int, warp: int) -> list[Visit]:
        """What a warp runs, loops unrolled."""
        for program in self.schedule.programs:
            if program.first <= worker < program.first + program.count:
                return list(self._walk(program.body, {"t": 0, "n": 0}, warp))
        return []

    def _walk(self, body: tuple[Node, ...], loops: dict[str, int], warp: int) -> Iterator[Visit]:
        for node in body:
            if isinstance(node, Step):
                role = self.roles[node.op.role]
                if id(node) in self.numbers and role.first <= warp < role.first + role.count:
                    yield Visit(self.numbers[id(node)], node.op, loops, warp - role.first)
            elif node.count is None:
                for k in range(self.tokens):
                    yield from self._walk(node.body, loops | {node.var: k, "n": k, "t": k}, warp)
            else:
                for k in range(node.count):
                    yield from self._walk(node.body, loops | {node.var: k}, warp)

    def all(self) -> Iterator[Mismatch]:
        rows = self.machine.touches()
        warps = rows[:, 0] >> 32
        for number in range(self.machine.blocks * self.machine.warps):
            worker, warp = divmod(number, self.machine.warps)
            yield from self._warp(worker, warp, rows[warps == number])

    def _warp(self, worker: int, warp: int, rows: state.Words) -> Iterator[Mismatch]:
        visits = self.visits(worker, warp)
        places: dict[int, list[int]] = defaultdict(list)
        for index, visit in enumerate(visits):
            places[visit.number].append(index)
        declared = [self._declared(worker, visit) for visit in visits]
        touched: list[Touched] = [defaultdict(list) for _ in visits]
        outside: Touched = defaultdict(list)
        now = 0
        for key, lo, hi in rows.tolist():
            step, kind = self.step_of[key >> 8 & 0xFFFFFF], key & 255
            if step == -2:
                continue
            buffer, span = self._buffer(lo, hi, worker)
            if buffer is None or buffer in (COUNTERS, LOG, ABORT):
                continue
            into, writes = outside, kind in (WRITE, COPIED_TO)
            if places[step]:
                nearest = _nearest(places[step], now)
                fits = [at for at in nearest if not without([span], _allowed(declared[at], writes, buffer))]
                now, into = max(now, (fits or nearest)[0]), touched[(fits or nearest)[0]]
            into[writes, buffer].append(span)
        for visit, declaration, found in zip(visits, declared, touched, strict=True):
            yield from self._step(worker, visit, declaration, found)
        for (writes, buffer), spans in outside.items():
            left = [] if buffer in self.weights else without(spans, self.ring if buffer == SHARED else [])
            for lo, hi in left:
                yield Mismatch(
                    "undeclared write" if writes else "undeclared read", "none", worker, warp, (),
                    buffer or "shared", lo, hi,
                )  # fmt: skip

    def _buffer(self, lo: int, hi: int, worker: int) -> tuple[str | None, tuple[int, int]]:
        """The buffer of places [lo, hi), and the bytes there; None for static shared memory, constants, parameters."""
        table = self.machine.grid.table
        if lo < int(table[state.SHARED_AT]):
            number = int(self.machine.grid.pages[lo // state.PAGE])
            allocation = self.machine.memory.allocations[number]
            first = self.machine.memory.addresses[allocation.name] - GLOBAL_BASE
            return allocation.name, (lo - first, hi - first)
        if lo >= int(table[state.CONST_AT]):
            return None, (0, 0)
        first = int(table[state.SHARED_AT]) + worker * int(table[state.SHARED_BYTES])
        first += self.machine.program.static_shared
        return (None, (0, 0)) if lo < first else (SHARED, (lo - first, hi - first))

    def _declared(self, worker: int, visit: Visit) -> Touched:
        position = self.positions[visit.loops["n"]]
        env = Env(loops=visit.loops, worker=worker, agent=visit.agent, pos=position, tables=self.tables)
        declared: Touched = defaultdict(list)
        for access in visit.op.accesses(env, self.geometry):
            buffer, span = self._absolute(access.buffer, access.lo, access.hi)
            declared[access.kind == "write", buffer].append(span)
        return declared

    def _step(self, worker: int, visit: Visit, declared: Touched, actual: Touched) -> Iterator[Mismatch]:
        beside: dict[str, Spans] = {}
        if isinstance(visit.op, GemvOp | RefillOp):
            beside = {SHARED: self.ring} | {name: [(0, 1 << 62)] for name in self.weights}
        for buffer in sorted({name for _, name in (*declared, *actual)}):
            more = beside.get(buffer, [])
            read, written = actual.get((False, buffer), []), actual.get((True, buffer), [])
            reads, writes = declared.get((False, buffer), []), declared.get((True, buffer), [])
            kinds: tuple[tuple[Kind, Spans], ...] = (
                ("undeclared read", without(read, _allowed(declared, False, buffer) + more)),
                ("undeclared write", without(written, _allowed(declared, True, buffer) + more)),
                ("unwritten", without(writes, written)),
                ("unread", without(reads, read)),
            )
            for kind, spans in kinds:
                for lo, hi in spans:
                    yield Mismatch(
                        kind, visit.op.op, worker, visit.agent, tuple(sorted(visit.loops.items())),
                        buffer or "shared", lo, hi,
                    )  # fmt: skip
