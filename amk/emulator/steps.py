"""The steps of a run: which of them each warp runs, in order, and which of them an instruction is of.

Assumes: PTX with line information (`LINE_INFO`). An instruction belongs to the step in whose line of the emitted text
    the outermost call stands that it was inlined at. Where the compiler names no line, it belongs to the step before
    it, or after it if what comes before is no op's.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from amk.emulator.machine.machine import Machine
from amk.emulator.memory import state
from amk.emulator.ptx.encode import GLOBAL_BASE
from amk.lowering.printed import PartLoop, Printed, PrintedLoop, printed
from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops import AnyOp, BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.schedule import Node, Schedule, Step, steps_of

LINE_INFO = "--generate-line-info"
"""The compiler's option; it changes no instruction."""
SHARED = ""
"""Name of a worker's dynamic shared memory."""
COUNTERS, LOG, ABORT = "the counters", "the watchdog's log", "the abort word"
"""Memory of waits, signals and the watchdog, which belongs to no op and is called as no buffer can be."""
Spans = list[tuple[int, int]]
Touched = dict[tuple[bool, str], Spans]
"""Bytes by whether they are written, and by buffer."""
Site = tuple[str, int, int]
"""A wait or signal of the emitted text: which of the two, how many calls stand before it, and how many of its kind
since the last of them."""
NO_CALL = -1
PREFETCH = -2
_CALL = re.compile(r"amk::ops::(\w+)<S(\d+)>\(c\);")
_SITE = re.compile(r"amk::sync::(wait|signal)_(?:counter|hint|release|relaxed)\(")


@dataclass(frozen=True)
class Places:
    """Where a step stands in the emitted text. call: its number, or NO_CALL."""

    call: int
    waits: tuple[Site, ...]
    signals: tuple[Site, ...]


@dataclass(frozen=True)
class Visit:
    """One run of a step by a warp."""

    step: Step
    places: Places
    loops: Mapping[str, int]
    agent: int

    @property
    def op(self) -> AnyOp:
        return self.step.op

    @property
    def number(self) -> int:
        return self.places.call


def merged(spans: Spans) -> Spans:
    """Ascending, disjoint, not adjacent."""
    out: Spans = []
    for lo, hi in sorted(spans):
        if out and lo <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], hi)
        elif lo < hi:
            out.append((lo, hi))
    return out


def _filled(numbers: list[int | None]) -> list[int]:
    """Each number, or the last one before it, or NO_CALL."""
    return list(accumulate(numbers, lambda last, one: last if one is None else one, initial=NO_CALL))[1:]


class _Text:
    """Numbers calls, waits and signals as they stand in the emitted text."""

    def __init__(self) -> None:
        self.calls = 0
        self.since: Counter[str] = Counter()

    def site(self, kind: str) -> Site:
        self.since[kind] += 1
        return kind, self.calls, self.since[kind] - 1

    def call(self) -> int:
        self.calls += 1
        self.since.clear()
        return self.calls - 1


class Steps:
    """Of the machine's last launch, of `tokens` tokens from `position` on, epoch 0.

    text: the CUDA that was compiled.
    """

    def __init__(self, schedule: Schedule, text: str, machine: Machine, tokens: int, position: int) -> None:
        """ValueError if the text is not this schedule's."""
        self.schedule, self.machine, self.tokens = schedule, machine, tokens
        self.positions = self._positions(position)
        self.geometry = schedule.geometry()
        self.tables = {name: np.array(table, np.int64) for name, table in schedule.tables.items()}
        self.offset = {b.name: b.offset or 0 for b in schedule.buffers if b.space == "shared"}
        self.roles = {role.name: role for role in schedule.roles}
        self.places: dict[int, Places] = {}
        self.text = _Text()
        for program, nodes in zip(schedule.programs, printed(schedule), strict=True):
            self._number(nodes, iter(steps_of(program.body)))
        self.site_of: list[Site | None] = []
        self.step_of: list[int] = []
        self._read(text)

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
            first = self.text.calls
            for _ in range(times):
                self.text.calls = first
                for step in (next(steps) for _ in group):
                    self.places[id(step)] = self._printed(step)

    def _printed(self, step: Step) -> Places:
        waits = tuple(self.text.site("wait") for _ in step.waits)
        call = NO_CALL if isinstance(step.op, BarrierOp | WaitOp | SignalOp) else self.text.call()
        return Places(call, waits, tuple(self.text.site("signal") for _ in step.signals))

    def _read(self, text: str) -> None:
        """Which call, wait or signal each instruction belongs to."""
        calls: dict[int, int] = {}
        sites: dict[int, Site] = {}
        reader = _Text()
        for line, words in enumerate(text.splitlines(), 1):
            if call := _CALL.search(words):
                calls[line] = int(call[2])
                reader.call()
            elif site := _SITE.search(words):
                sites[line] = reader.site(site[1])
        if sorted(calls.values()) != list(range(self.text.calls)):
            raise ValueError("the text has other calls than the schedule has steps")
        program = self.machine.program
        kernel = Counter(file for file in program.files if file).most_common(1)
        lines = [
            place[-1] if kernel and file == kernel[0][0] and place else None
            for file, place in zip(program.files, program.places, strict=True)
        ]
        self.site_of = [None if line is None else sites.get(line) for line in lines]
        self.step_of = self._steps_of_instructions([None if n is None else calls.get(n, NO_CALL) for n in lines])

    def _steps_of_instructions(self, calls: list[int | None]) -> list[int]:
        """The number of the call that each instruction belongs to, NO_CALL for none; prefetches are PREFETCH."""
        program = self.machine.program
        order = np.argsort(program.lines, kind="stable").tolist()
        named = [calls[pc] for pc in order]
        found = [NO_CALL] * len(order)
        for pc, before, own, after in zip(order, _filled(named), named, _filled(named[::-1])[::-1], strict=True):
            found[pc] = own if own is not None else before if before >= 0 else after
        return [
            PREFETCH if opcode.startswith("prefetch") else one
            for opcode, one in zip(program.opcodes, found, strict=True)
        ]

    def absolute(self, buffer: str, lo: int, hi: int) -> tuple[str, tuple[int, int]]:
        """Bytes of a buffer; where it is shared, of all dynamic shared memory."""
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
                if role.first <= warp < role.first + role.count:
                    yield Visit(node, self.places[id(node)], loops, warp - role.first)
            elif node.count is None:
                for k in range(self.tokens):
                    yield from self._walk(node.body, loops | {node.var: k, "n": k, "t": k}, warp)
            else:
                for k in range(node.count):
                    yield from self._walk(node.body, loops | {node.var: k}, warp)

    def env(self, worker: int, visit: Visit) -> Env:
        position = self.positions[visit.loops["n"]]
        return Env(loops=visit.loops, worker=worker, agent=visit.agent, pos=position, tables=self.tables)

    def declared(self, worker: int, visit: Visit) -> Touched:
        """The bytes of the op's `accesses`."""
        declared: Touched = defaultdict(list)
        for access in visit.op.accesses(self.env(worker, visit), self.geometry):
            buffer, span = self.absolute(access.buffer, access.lo, access.hi)
            declared[access.kind == "write", buffer].append(span)
        return declared

    def buffer(self, lo: int, hi: int, worker: int) -> tuple[str | None, tuple[int, int]]:
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
