"""Shared memory of a worker in three dimensions: pipeline stage x buffer lifetime x K-split.

A *stage* is a step of the program. A shared array is *live* at a stage if it holds something there that a later stage
reads: from the stage that writes it to the last one that reads it, around the loops. A ring holds copies in flight and
is live at every stage; its bytes are agents x slots x chunk, and a chunk is 1/k_split of a row group's columns.

    peak = max over stages of  rings + sum of live arrays

Arrays that are live at different stages may lie on the same bytes. Whether they may in a given schedule is decided by
the race check, which addresses shared memory by byte; planner and validator hold `extent` to the target's limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from amk.schedule_ir.expr import Env, IntArray
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.schedule import Loop, Node, Program, Schedule, Step


@dataclass(frozen=True)
class Stage:
    """One step: the shared arrays that are live there, rings included, and their bytes."""

    step: str
    live: tuple[str, ...]
    bytes: int


def extent(buffers: Iterable[Buffer]) -> int:
    """One past the last byte that a shared buffer takes."""
    return max(((b.offset or 0) + b.bytes for b in buffers if b.space == "shared"), default=0)


def peak(schedule: Schedule) -> int:
    """The most bytes that are live at once in any worker."""
    return max((s.bytes for n in range(len(schedule.programs)) for s in stages(schedule, n)), default=0)


def stages(schedule: Schedule, program: int = 0) -> list[Stage]:
    """The stages of a program in textual order."""
    shared = {b.name: b for b in schedule.buffers if b.space == "shared"}
    always = {name for s in schedule.streams for name in (s.ring, s.full) if name is not None}
    steps, follows = _graph(schedule.programs[program])
    touched = [_touched(schedule, schedule.programs[program], step, set(shared) - always) for step in steps]
    live = _live(touched, follows)
    found = []
    for step, names in zip(steps, live, strict=True):
        held = tuple(sorted(names | always))
        found.append(Stage(step.op.op, held, sum(shared[n].bytes for n in held)))
    return found


def _graph(program: Program) -> tuple[list[Step], list[set[int]]]:
    """Steps in textual order, and which may follow each: the next one, and a loop's first after its last."""
    steps: list[Step] = []
    back: list[tuple[int, int]] = []

    def walk(body: tuple[Node, ...]) -> None:
        for node in body:
            if isinstance(node, Loop):
                first = len(steps)
                walk(node.body)
                if len(steps) > first:
                    back.append((len(steps) - 1, first))
            else:
                steps.append(node)

    walk(program.body)
    follows = [{i + 1} if i + 1 < len(steps) else set() for i in range(len(steps))]
    for last, first in back:
        follows[last].add(first)
    return steps, follows


def _touched(schedule: Schedule, program: Program, step: Step, names: set[str]) -> tuple[set[str], set[str]]:
    """(read, written) shared arrays of a step, by the first and the last agent of a few workers."""
    geometry = schedule.geometry()
    tables: dict[str, IntArray] = {n: np.array(c, np.int64) for n, c in schedule.tables.items()}
    last = program.first + program.count - 1
    read, written = set[str](), set[str]()
    for worker in {program.first, (program.first + last) // 2, last}:
        for agent in {0, geometry.role_size[step.op.role] - 1}:
            env = Env(loops={"t": 0, "n": 0, "l": 0}, worker=worker, agent=agent, tables=tables)
            for access in step.op.accesses(env, geometry):
                if access.buffer in names:
                    (read if access.kind == "read" else written).add(access.buffer)
    return read, written


def _live(uses: Sequence[tuple[set[str], set[str]]], follows: Sequence[set[int]]) -> list[set[str]]:
    """Live at a stage: touched there, or written before and read after. The greatest backward fixpoint of
    before(s) = reads(s) + (after(s) - writes(s)), after(s) = union of before over what follows."""
    before: list[set[str]] = [set() for _ in uses]
    changed = True
    while changed:
        changed = False
        for i in range(len(uses) - 1, -1, -1):
            read, written = uses[i]
            after = set().union(*(before[j] for j in follows[i]))
            new = read | (after - written)
            if new != before[i]:
                before[i], changed = new, True
    return [
        read | written | (before[i] & set().union(*(before[j] for j in follows[i])))
        for i, (read, written) in enumerate(uses)
    ]
