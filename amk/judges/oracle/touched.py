"""What a spelled-out schedule touches at given positions, as columns.

Content is named by (family, index, token): what a step of token t writes belongs to token t, except the rows of the KV
cache, which later tokens read as they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate, pairwise, product

import numpy as np

from amk.judges.oracle.flatten import Spelled, Visit
from amk.schedule_ir.expr import Env, IntArray
from amk.schedule_ir.ops import Access
from amk.schedule_ir.ops.base import ValueKey
from amk.schedule_ir.schedule import Schedule

CACHED = frozenset({"k", "v"})
UNNAMED = -1
POSITIONAL = frozenset({"rope_append", "attend", "merge", "combine", "reduce_splits"})
"""Ops whose footprint depends on the position; all others are evaluated once."""
COUNTING = frozenset({"select", "select_draw", "advance", "give_hidden", "give_logits"})
"""Ops that end a token; the footprint of those that choose one depends on its number within the launch."""
Key = tuple[str | int | tuple[str, str], ...]
Place = int | tuple[int, ...]
"""A position, or that of each sequence."""
Numbered = tuple[int, int, Visit, int]
"""(number, segment, visit, worker)"""
MOST_KNOWN = 300_000
"""Footprints that are kept, some 500 bytes each."""
VALUES: dict[ValueKey, int] = {}
"""What bytes mean, numbered as they come up."""
_EVALUATED: OrderedDict[str, dict[Key, Evaluated]] = OrderedDict()
"""By what ops see of a schedule besides their own fields: mutants of one plan mostly agree on that."""


@dataclass(frozen=True)
class Evaluated:
    """One step of one warp: its accesses, and names of what is wrong with them by themselves.

    rows: [n, 7], reads before writes: (space, writes, lo, hi, number in `VALUES` or -1, shift, buffer if tagged or -1).
    """

    rows: IntArray
    outside: frozenset[str]
    constants: frozenset[str]
    clashes: bool


def place_of(pos: Place, sequence: int) -> int:
    """The position of a sequence."""
    return pos if isinstance(pos, int) else pos[sequence]


def ways(schedule: Schedule, tokens: int) -> list[tuple[int, ...]]:
    """Everything that can come of the guesses of a launch: how far each step is behind the first one. The last way is
    that all are right."""
    each = range(1, schedule.rows + 1) if schedule.accepts else [schedule.rows]
    return [(0, *accumulate(counts)) for counts in product(each, repeat=tokens - 1)]


def evaluated(schedule: Schedule) -> dict[Key, Evaluated]:
    """What was found for schedules with this environment; it is added to."""
    left_out = {"name", "plan", "target", "launch", "counters", "programs"}
    key = f"{schedule.launch.workers} {schedule.model_dump_json(exclude=left_out)}"
    known = _EVALUATED.setdefault(key, {})
    _EVALUATED.move_to_end(key)
    while len(_EVALUATED) > 1 and sum(map(len, _EVALUATED.values())) > MOST_KNOWN:
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

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        return (self.segment, self.space, self.write, self.lo, self.hi, self.content, self.shift, self.tag)

    def within(self, spaces: Collection[int]) -> Touched:
        """The accesses to these spaces alone."""
        if set(self.space.tolist()) <= set(spaces):
            return self
        rows = np.isin(self.space, list(spaces))
        return Touched(
            self.segment[rows], self.space[rows], self.write[rows], self.lo[rows], self.hi[rows], self.content[rows],
            self.shift[rows], self.tag[rows], self.outside, self.written_constants,
        )  # fmt: skip

    def by_space(self) -> dict[int, bytes]:
        """All that tells the accesses to one space from others."""
        along = np.argsort(self.space, kind="stable")
        table = np.stack([column[along] for column in self.columns], axis=1)
        cuts = np.flatnonzero(np.diff(table[:, 1])) + 1
        return {int(part[0, 1]): part.tobytes() for part in np.split(table, cuts) if len(part)}


class Toucher:
    """Evaluates footprints of one spelled schedule; content codes stay the same over all positions."""

    def __init__(self, spelled: Spelled) -> None:
        self.spelled, schedule = spelled, spelled.schedule
        self.geometry, self.sequences = schedule.geometry(), schedule.sequences
        self.moved = ways(schedule, spelled.tokens)[-1]
        """How far behind the launch's first position each step is: one of the `ways`."""
        self.tables = {name: np.array(column, np.int64) for name, column in schedule.tables.items()}
        self.number = {b.name: i for i, b in enumerate(schedule.buffers)}
        self.by_name = {b.name: b for b in schedule.buffers}
        self.codes: dict[tuple[str, int, int], int] = {}
        self.extent = {b.name: (b.bytes, b.role) for b in schedule.buffers}
        self.known = evaluated(schedule)
        self.texts: dict[int, tuple[str, str]] = {}
        self.still: list[Numbered] = []
        self.moving: list[Numbered] = []
        self._visits()
        self.fixed: IntArray | None = None
        self.stamps: dict[tuple[int, int], int] = {}
        self.outside: set[str] = set()
        self.clashing: set[str] = set()
        """Ops that write bytes of one array while they use them as another."""
        self.constants: set[str] = set()

    def code(self, family: str, index: int, token: int) -> int:
        family = family.removesuffix(".past")
        return self.codes.setdefault((family, index, -1 if family in CACHED else token), len(self.codes))

    def at(self, pos: Place) -> Touched:
        if self.fixed is None:
            self.fixed = self._table(self.still, 0)
        table = np.concatenate((self.fixed, self._table(self.moving, pos)))
        table = table[np.argsort(table[:, 0], kind="stable")]
        return Touched(
            table[:, 1], table[:, 2], table[:, 3] == 1, table[:, 4], table[:, 5], table[:, 6], table[:, 7],
            table[:, 8], tuple(sorted(self.outside)), tuple(sorted(self.constants)),
        )  # fmt: skip

    def _visits(self) -> None:
        """In program order of each segment."""
        number = 0
        for n, segment in enumerate(self.spelled.segments):
            for visit in segment.visits:
                kept = self.moving if visit.step.op.op in POSITIONAL else self.still
                kept.append((number, n, visit, segment.worker))
                number += 1

    def _table(self, visits: list[Numbered], pos: Place) -> IntArray:
        found = [
            self._evaluated(visit, worker, place_of(pos, self.sequences[worker]) + self.moved[max(visit.token, 0)])
            for _, _, visit, worker in visits
        ]
        count = [len(rows) for rows in found]
        rows = np.concatenate([np.zeros((0, 7), np.int64), *found])
        of = np.repeat(np.arange(len(visits)), count)
        number = np.array([(i, segment, visit.token) for i, segment, visit, _ in visits], np.int64).reshape(-1, 3)[of]
        table = np.concatenate((number[:, :2], rows, np.zeros((len(rows), 1), np.int64)), axis=1)
        table[:, 6] = self._contents(rows[:, 4], number[:, 2])
        tagged = np.flatnonzero(rows[:, 6] >= 0)
        for row, visit, buffer in zip(tagged.tolist(), of[tagged].tolist(), rows[tagged, 6].tolist(), strict=True):
            table[row, 8] = self._stamp(visits[visit][2].loops, buffer)
        return table[:, :9]

    def _contents(self, values: IntArray, tokens: IntArray) -> IntArray:
        """Codes of what is numbered in `VALUES`, of these tokens."""
        pairs, where = np.unique((values + 1) << 32 | (tokens + 1), return_inverse=True)
        codes, names = [], [(UNNAMED, 0), *VALUES]
        for pair in pairs.tolist():
            (family, index), token = names[pair >> 32], (pair & (1 << 32) - 1) - 1
            codes.append(self.code(family, index, token) if isinstance(family, str) else UNNAMED)
        found: IntArray = np.array(codes, np.int64)[where.reshape(-1)]
        return found

    def _stamp(self, loops: dict[str, int], buffer: int) -> int:
        """The tag that this buffer's words have in these rounds, which are one object for all that run in them."""
        key = id(loops), buffer
        if key not in self.stamps:
            tag = self.spelled.schedule.buffers[buffer].tag
            self.stamps[key] = 0 if tag is None else Env(loops=loops, worker=0).eval_int(tag)
        return self.stamps[key]

    def _evaluated(self, visit: Visit, worker: int, pos: int) -> IntArray:
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
        return found.rows

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
            if role != "constant" or access.kind == "write" or access.value is not None:
                found.append(access)
        listed = [self._row(a, worker) for a in sorted(found, key=lambda a: a.kind == "write")]
        rows = np.array(listed, np.int64).reshape(-1, 7)
        return Evaluated(rows, frozenset(outside), frozenset(constants), self._clash(found))

    def _clash(self, accesses: list[Access]) -> bool:
        """Is a byte used as part of two arrays, one of them written? A step orders only what it does to one array."""
        names = sorted({a.buffer for a in accesses if self.by_name[a.buffer].space == "shared"})
        spans = sorted((b.offset or 0, (b.offset or 0) + b.bytes) for b in map(self.by_name.__getitem__, names))
        if all(one[1] <= two[0] for one, two in pairwise(spans)):
            return False
        room = max(end for _, end in spans)
        users, writers = np.zeros((2, room), np.int64)
        for name in names:
            base, used = self.by_name[name].offset or 0, np.zeros((2, room), bool)
            for access in accesses:
                if access.buffer == name:
                    used[:, base + access.lo : base + access.hi] |= [[True], [access.kind == "write"]]
            users += used[0]
            writers += used[1]
        return bool(((users > 1) & (writers > 0)).any())

    def _row(self, access: Access, worker: int) -> tuple[int, ...]:
        buffer, number = self.by_name[access.buffer], self.number[access.buffer]
        base, space = 0, number
        if buffer.space == "shared":
            base, space = buffer.offset or 0, len(self.number) + worker
        lo, hi = base + access.lo, base + access.hi
        meant = access.value
        if meant is not None and buffer.space == "shared":
            meant = f"{meant[0]}, {buffer.dtype}", meant[1]  # the same number has other bits as another dtype
        value = -1 if meant is None else VALUES.setdefault(meant, len(VALUES))
        tagged = number if buffer.tagged and buffer.tag is not None else -1
        return space, int(access.kind == "write"), lo, hi, value, access.origin - lo, tagged
