"""A schedule spelled out: every warp of every worker as a list of segments.

A *segment* is a stretch of one warp's program with all its waits at the start and all its signals at the end, so that
nothing can happen between its accesses that another warp could notice. Written from the definitions in `schedule_ir`
alone.

Edges of three strengths are kept apart, because the questions differ:
    block   every wait and signal: what can stop an agent, and what cannot happen without what
    word    fenced counters with release and acquire, barriers, tagged words: what a plain read is over before
    fence   the same without tagged words: what makes a write visible, or keeps a second write behind the first
A signal that is too weak for an edge still counts, but promises nothing about what came before it: it may land first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from amk.schedule_ir.expr import Env, IntArray
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.schedule import Loop, Node, Schedule, Signal, Step, Wait

Edges = Literal["block", "word", "fence"]
Cell = tuple[str, tuple[int, ...]]
"""A counter instance; barriers are ("barrier <id>", (worker,))."""


@dataclass(frozen=True, eq=False)
class Visit:
    """One step run by one warp; agent counts within the role. token is -1 outside the token loop. Warps of the same
    number share it.
    """

    step: Step
    loops: dict[str, int]
    token: int
    agent: int


@dataclass
class Segment:
    """waits and signals: (cell, amount, strong)."""

    worker: int
    warp: int
    waits: list[tuple[Cell, int, bool]] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    signals: list[tuple[Cell, int, bool]] = field(default_factory=list)


Numbered = list[list[tuple[int, int]]]
"""Per segment (cell number, amount)."""
Listed = tuple[Numbered, Numbered, list[int]]
"""Waits, signals, and what the cells start with."""


@dataclass(frozen=True, eq=False)
class Spelled:
    """agents: segments of every (worker, warp) in program order, as numbers into `segments`."""

    schedule: Schedule
    tokens: int
    segments: list[Segment]
    agents: list[range]
    init: dict[Cell, int]
    walks: list[range]
    """Of the warps of each program's first worker, as in `agents`: all others of a program visit the same."""
    listed: dict[bool, Listed] = field(default_factory=dict)
    """What `order.system_of` made of waits and signals, whatever is read of tagged words."""

    @cached_property
    def weak(self) -> bool:
        """Is there a wait or a signal that orders nothing?"""
        return not all(strong for s in self.segments for *_, strong in (*s.waits, *s.signals))

    @cached_property
    def agent_of(self) -> IntArray:
        return np.repeat(np.arange(len(self.agents)), [len(r) for r in self.agents])


class TooBig(RuntimeError):
    """More segments or bytes than the judge is willing to spell out."""


MAX_SEGMENTS = 40_000


def visits(body: tuple[Node, ...], tokens: int, loops: dict[str, int]) -> Iterator[tuple[Step, dict[str, int]]]:
    """The steps of a program as run, loops unrolled."""
    for node in body:
        if isinstance(node, Step):
            yield node, loops
        else:
            yield from _rounds(node, tokens, loops)


def _rounds(loop: Loop, tokens: int, loops: dict[str, int]) -> Iterator[tuple[Step, dict[str, int]]]:
    for k in range(tokens if loop.count is None else loop.count):
        inner = {**loops, loop.var: k}
        if loop.var == "t":
            inner["n"] = k
        yield from visits(loop.body, tokens, inner)


class _Warp:
    """Collects the segments of one warp."""

    def __init__(self, spell: _Speller, worker: int, warp: int) -> None:
        self.spell, self.worker, self.warp = spell, worker, warp
        self.rounds: dict[int, int] = {}
        self.done: list[Segment] = []
        self.open = Segment(worker, warp)

    def cut(self) -> None:
        if self.open.waits or self.open.visits or self.open.signals:
            self.done.append(self.open)
            self.open = Segment(self.worker, self.warp)

    def run(self, visit: Visit, silent: bool) -> None:
        """silent: it neither waits nor signals nor meets anybody."""
        if silent:
            self.open.visits.append(visit)
            return
        step = visit.step
        waits, signals = self.spell.entries(step, visit.loops, self.worker, visit.agent)
        if waits:
            self.cut()
            self.open.waits += waits
        if isinstance(step.op, BarrierOp):
            if waits:
                self.open.visits.append(visit)
            self.meet(step.op)
        elif self.spell.names_words(step):
            self.cut_around(waits, visit)
        else:
            self.open.visits.append(visit)
        if signals:
            self.open.signals += signals
            self.cut()

    def cut_around(self, waits: list[tuple[Cell, int, bool]], visit: Visit) -> None:
        """Words are waits and signals too: what reads or writes them is a segment of its own."""
        if not waits:
            self.cut()
        self.open.visits.append(visit)
        if not visit.step.signals:
            self.cut()

    def meet(self, op: BarrierOp) -> None:
        cell = (f"barrier {op.id}", (self.worker,))
        self.rounds[op.id] = self.rounds.get(op.id, 0) + 1
        self.open.signals.append((cell, 1, True))
        self.cut()
        self.open.waits.append((cell, op.agents * self.rounds[op.id], True))


class _Speller:
    def __init__(self, schedule: Schedule) -> None:
        self.tables = {name: np.array(column, np.int64) for name, column in schedule.tables.items()}
        self.fenced = {c.name for c in schedule.counters if c.handoff == "fenced"}
        self.names: dict[int, bool] = {}
        self.tagged = {b.name for b in schedule.buffers if b.tagged}

    def silent(self, step: Step) -> bool:
        """Is it part of whatever segment it falls into?"""
        apart = step.waits or step.signals or isinstance(step.op, BarrierOp)
        return not apart and not self.names_words(step)

    def names_words(self, step: Step) -> bool:
        known = self.names.get(id(step))
        if known is None:
            known = any(isinstance(value, str) and value in self.tagged for name, value in step.op if name != "op")
            self.names[id(step)] = known
        return known

    def entries(
        self, step: Step, loops: dict[str, int], worker: int, agent: int
    ) -> tuple[list[tuple[Cell, int, bool]], list[tuple[Cell, int, bool]]]:
        if not step.waits and not step.signals:
            return [], []
        env = Env(loops=loops, worker=worker, agent=agent, tables=self.tables)
        waits = [(self.cell(w, env), env.eval_int(w.at_least), self.strong(w)) for w in step.waits]
        signals = [(self.cell(s, env), env.eval_int(s.add), self.strong(s)) for s in step.signals]
        return waits, [s for s in signals if s[1]]

    def cell(self, entry: Wait | Signal, env: Env) -> Cell:
        return entry.counter, tuple(env.eval_int(e) for e in entry.index)

    def strong(self, entry: Wait | Signal) -> bool:
        return entry.counter in self.fenced and entry.order != "relaxed"


def _run_by(
    number: int, listed: list[tuple[Step, dict[str, int]]], roles: dict[str, tuple[int, int]], speller: _Speller
) -> list[tuple[Visit, bool]]:
    """What warps of this number run, and whether it is silent."""
    found = []
    for step, loops in listed:
        first, count = roles[step.op.role]
        if first <= number < first + count:
            found.append((Visit(step, loops, loops.get("t", -1), number - first), speller.silent(step)))
    return found


def spell(schedule: Schedule, tokens: int, most: int = MAX_SEGMENTS) -> Spelled:
    """Every warp's segments for a launch of `tokens` tokens on zeroed memory; raises `TooBig` beyond `most`."""
    speller = _Speller(schedule)
    roles = {r.name: (r.first, r.count) for r in schedule.roles}
    segments: list[Segment] = []
    agents: list[range] = []
    walks: list[range] = []
    for program in sorted(schedule.programs, key=lambda p: p.first):
        listed = list(visits(program.body, tokens, {}))
        runs = [_run_by(number, listed, roles, speller) for number in range(schedule.launch.warps)]
        for worker in range(program.first, program.first + program.count):
            for number, run in enumerate(runs):
                warp = _Warp(speller, worker, number)
                for visit, silent in run:
                    warp.run(visit, silent)
                warp.cut()
                agents.append(range(len(segments), len(segments) + len(warp.done)))
                segments += warp.done
                if len(segments) > most:
                    raise TooBig(f"more than {most:,} segments")
            walks += agents[-len(runs) :] if worker == program.first else []
    cells = {c.name: c.init for c in schedule.counters if c.init}
    used = {e[0] for s in segments for e in (*s.waits, *s.signals)}
    return Spelled(schedule, tokens, segments, agents, {c: cells.get(c[0], 0) for c in used}, walks)
