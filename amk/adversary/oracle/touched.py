"""What a spelled-out schedule touches at given positions, as columns.

Content is named by (family, index, token): what a step of token t writes belongs to token t, except the rows of the KV
cache, which later tokens read as they are.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from amk.adversary.oracle.flatten import Spelled, Visit
from amk.schedule_ir.expr import Env, Expr, IntArray
from amk.schedule_ir.ops import Access
from amk.schedule_ir.ops.base import ValueKey
from amk.schedule_ir.schedule import Schedule

CACHED = frozenset({"k", "v"})
UNNAMED = -1
POSITIONAL = frozenset({"rope_append", "attend", "merge", "combine", "reduce_splits"})
"""Ops whose footprint depends on the position; all others are evaluated once."""
COUNTING = frozenset({"select"})
"""Ops whose footprint depends on the token's number within the launch."""
Shape = tuple[int, int, int, int, ValueKey | None, int, Expr | None]
"""(space, writes, lo, hi, value, shift, tag)."""
Key = tuple[str | int, ...]
SURROUNDINGS = 24
_EVALUATED: OrderedDict[str, dict[Key, Evaluated]] = OrderedDict()
"""By what ops see of a schedule besides their own fields: mutants of one plan mostly agree on that."""


@dataclass(frozen=True)
class Evaluated:
    """One step of one warp: its accesses, and names of what is wrong with them by themselves."""

    shapes: list[Shape]
    outside: frozenset[str]
    constants: frozenset[str]
    clashes: bool


def evaluated(schedule: Schedule) -> dict[Key, Evaluated]:
    """What was found for schedules with these surroundings; it is added to."""
    left_out = {"name", "plan", "target", "launch", "counters", "programs"}
    key = f"{schedule.launch.workers} {schedule.model_dump_json(exclude=left_out)}"
    known = _EVALUATED.setdefault(key, {})
    _EVALUATED.move_to_end(key)
    while len(_EVALUATED) > SURROUNDINGS:
        _EVALUATED.popitem(last=False)
    return known


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
        self.extent = {b.name: (b.bytes, b.role) for b in schedule.buffers}
        self.known = evaluated(schedule)
        self.texts: dict[int, tuple[str, str]] = {}
        self.moving = [v for v in self._visits() if v[2].step.op.op in POSITIONAL]
        self.fixed: IntArray | None = None
        self.outside: set[str] = set()
        self.clashing: set[str] = set()
        """Ops that write bytes of one array while they use them as another."""
        self.constants: set[str] = set()

    def code(self, family: str, index: int, token: int) -> int:
        family = family.removesuffix(".past")
        return self.codes.setdefault((family, index, -1 if family in CACHED else token), len(self.codes))

    def at(self, pos: int) -> Touched:
        if self.fixed is None:
            self.fixed = self._table([v for v in self._visits() if v[2].step.op.op not in POSITIONAL], 0)
        table = np.concatenate((self.fixed, self._table(self.moving, pos)))
        table = table[np.argsort(table[:, 0], kind="stable")]
        return Touched(
            table[:, 1], table[:, 2], table[:, 3] == 1, table[:, 4], table[:, 5], table[:, 6], table[:, 7],
            table[:, 8], tuple(sorted(self.outside)), tuple(sorted(self.constants)),
        )  # fmt: skip

    def _visits(self) -> list[tuple[int, int, Visit, int]]:
        """(number, segment, visit, worker) in program order of each segment."""
        found = [(n, v, s.worker) for n, s in enumerate(self.spelled.segments) for v in s.visits]
        return [(i, n, visit, worker) for i, (n, visit, worker) in enumerate(found)]

    def _table(self, visits: list[tuple[int, int, Visit, int]], pos: int) -> IntArray:
        rows: list[tuple[int, ...]] = []
        for number, segment, visit, worker in visits:
            for space, write, lo, hi, value, shift, tag in self._shapes(visit, worker, pos + max(visit.token, 0)):
                content = UNNAMED if value is None else self.code(*value, visit.token)
                stamp = 0 if tag is None else Env(loops=visit.loops, worker=0).eval_int(tag)
                rows.append((number, segment, space, write, lo, hi, content, shift, stamp))
        return np.array(rows, np.int64).reshape(-1, 9)

    def _shapes(self, visit: Visit, worker: int, pos: int) -> list[Shape]:
        """Accesses without what depends on the token; reads before writes."""
        (op, text), loops = self._text(visit), visit.loops
        where, turn = (pos if op in POSITIONAL else 0), (loops.get("n", -1) if op in COUNTING else 0)
        key = (text, loops.get("l", -1), turn, worker, visit.agent, where)
        found = self.known.get(key)
        if found is None:
            env = Env(loops=loops, worker=worker, agent=visit.agent, pos=pos, tables=self.tables)
            found = self.known[key] = self._evaluate(visit.step.op.accesses(env, self.geometry), worker)
        if found.outside or found.constants or found.clashes:
            self.outside |= found.outside
            self.constants |= found.constants
            self.clashing |= {op} if found.clashes else set()
        return found.shapes

    def _text(self, visit: Visit) -> tuple[str, str]:
        """Name of the step's op, and all its fields."""
        found = self.texts.get(id(visit.step))
        if found is None:
            found = self.texts[id(visit.step)] = visit.step.op.op, visit.step.op.model_dump_json()
        return found

    def _evaluate(self, accesses: list[Access], worker: int) -> Evaluated:
        outside, constants, found = set(), set(), []
        for access in accesses:
            size, role = self.extent[access.buffer]
            if access.lo < 0 or access.hi > size:
                outside.add(access.buffer)
            if role == "constant" and access.kind == "write":
                constants.add(access.buffer)
            if role != "constant" or access.kind == "write":
                found.append(access)
        shapes = [self._shape(a, worker) for a in sorted(found, key=lambda a: a.kind == "write")]
        return Evaluated(shapes, frozenset(outside), frozenset(constants), self._clash(found))

    def _clash(self, found: list[Access]) -> bool:
        """Is a byte used as part of two arrays, one of them written? A step orders only what it does to one array."""
        names = sorted({a.buffer for a in found if self.by_name[a.buffer].space == "shared"})
        spans = sorted((b.offset or 0, (b.offset or 0) + b.bytes) for b in map(self.by_name.__getitem__, names))
        if all(one[1] <= two[0] for one, two in pairwise(spans)):
            return False
        room = max(end for _, end in spans)
        users, writers = np.zeros((2, room), np.int64)
        for name in names:
            base, used = self.by_name[name].offset or 0, np.zeros((2, room), bool)
            for access in found:
                if access.buffer == name:
                    used[:, base + access.lo : base + access.hi] |= [[True], [access.kind == "write"]]
            users += used[0]
            writers += used[1]
        return bool(((users > 1) & (writers > 0)).any())

    def _shape(self, access: Access, worker: int) -> Shape:
        buffer = self.by_name[access.buffer]
        base, space = 0, self.number[access.buffer]
        if buffer.space == "shared":
            base, space = buffer.offset or 0, len(self.number) + worker
        lo, hi = base + access.lo, base + access.hi
        tag = buffer.tag if buffer.tagged else None
        return space, int(access.kind == "write"), lo, hi, access.value, access.origin - lo, tag
