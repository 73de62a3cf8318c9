"""What a spelled-out schedule touches at given positions, as columns.

Content is named by (family, index, token): what a step of token t writes belongs to token t, except the rows of the KV
cache, which later tokens read as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amk.adversary.oracle.flatten import Spelled, Visit
from amk.schedule_ir.expr import Env, IntArray
from amk.schedule_ir.ops import Access

CACHED = frozenset({"k", "v"})
UNNAMED = -1
POSITIONAL = frozenset({"rope_append", "attend", "merge", "combine"})
"""Ops whose footprint depends on the position; all others are evaluated once."""
COUNTING = frozenset({"select"})
"""Ops whose footprint depends on the token's number within the launch."""
Bools = np.ndarray


@dataclass(frozen=True, eq=False)
class Touched:
    """Rows of accesses in program order of each segment: columns [n].

    space: buffer number, or number of buffers + worker for shared memory (absolute bytes). content: code of what it
    holds, -1 if nobody cares; shift: logical minus physical byte. tag: of tagged words, 0 otherwise.
    """

    segment: IntArray
    space: IntArray
    write: np.ndarray
    lo: IntArray
    hi: IntArray
    content: IntArray
    shift: IntArray
    tag: IntArray
    outside: tuple[str, ...]
    written_constants: tuple[str, ...]


class Toucher:
    """Evaluates footprints of one spelled schedule; content codes stay the same over all positions."""

    def __init__(self, spelled: Spelled) -> None:
        self.spelled, schedule = spelled, spelled.schedule
        self.geometry = schedule.geometry()
        self.tables = {name: np.array(column, np.int64) for name, column in schedule.tables.items()}
        self.number = {b.name: i for i, b in enumerate(schedule.buffers)}
        self.by_name = {b.name: b for b in schedule.buffers}
        self.codes: dict[tuple[str, int, int], int] = {}
        self.known: dict[tuple[int, ...], list[Access]] = {}
        self.outside: set[str] = set()
        self.constants: set[str] = set()

    def code(self, family: str, index: int, token: int) -> int:
        family = family.removesuffix(".past")
        return self.codes.setdefault((family, index, -1 if family in CACHED else token), len(self.codes))

    def at(self, pos: int) -> Touched:
        rows: list[tuple[int, ...]] = []
        for number, segment in enumerate(self.spelled.segments):
            for visit in segment.visits:
                for access in self._accesses(visit, segment.worker, pos + max(visit.token, 0)):
                    rows.append((number, *self._row(access, visit, segment.worker)))
        table = np.array(rows, np.int64).reshape(-1, 8)
        return Touched(
            table[:, 0], table[:, 1], table[:, 2] == 1, table[:, 3], table[:, 4], table[:, 5], table[:, 6],
            table[:, 7], tuple(sorted(self.outside)), tuple(sorted(self.constants)),
        )  # fmt: skip

    def _accesses(self, visit: Visit, worker: int, pos: int) -> list[Access]:
        op, loops = visit.step.op.op, visit.loops
        where, turn = (pos if op in POSITIONAL else 0), (loops.get("n", -1) if op in COUNTING else 0)
        key = (id(visit.step), loops.get("l", -1), turn, worker, visit.agent, where)
        if key not in self.known:
            env = Env(loops=loops, worker=worker, agent=visit.agent, pos=pos, tables=self.tables)
            found = [a for a in visit.step.op.accesses(env, self.geometry) if self._matters(a)]
            self.known[key] = sorted(found, key=lambda a: a.kind == "write")
        return self.known[key]

    def _matters(self, access: Access) -> bool:
        buffer = self.by_name[access.buffer]
        if access.lo < 0 or access.hi > buffer.bytes:
            self.outside.add(access.buffer)
        if buffer.role == "constant" and access.kind == "write":
            self.constants.add(access.buffer)
        return buffer.role != "constant" or access.kind == "write"

    def _row(self, access: Access, visit: Visit, worker: int) -> tuple[int, ...]:
        buffer = self.by_name[access.buffer]
        base, space = 0, self.number[access.buffer]
        if buffer.space == "shared":
            base, space = buffer.offset or 0, len(self.number) + worker
        content = UNNAMED if access.value is None else self.code(*access.value, visit.token)
        tag = 0
        if buffer.tagged and buffer.tag is not None:
            tag = Env(loops=visit.loops, worker=0).eval_int(buffer.tag)
        lo, hi = base + access.lo, base + access.hi
        return space, int(access.kind == "write"), lo, hi, content, access.origin - lo, tag
