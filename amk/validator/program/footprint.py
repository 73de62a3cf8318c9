"""Byte footprints of steps: what every warp touches on every worker in every iteration.

`accesses` of an op is a pure function of what it reads from its environment, so it is evaluated once for all runs of a
step that it treats alike (`per_run`): 132 nearly identical workers and all layers cost little more than one.

Rows are (buffer, kind, lo, hi, value, delta, times, step, turn): global buffers are numbered as in the schedule, shared
memory is buffer -1 and addressed by absolute byte, so that overlapping shared buffers are seen to overlap. value says
what bytes hold: dtype, family, index and token packed into one number, in this order, here without the token. The dtype
is that of shared memory, because an element that is written in one form and read in another is another number; families
have numbers that follow from their names alone, so rows mean the same in every schedule. delta = logical offset - byte
address. Folded footprints say what a step does to a row of each sequence once: `times` times, each `step` bytes on and
with a delta that is larger by `turn`.

A read without a value of a `constant` buffer is dropped: nothing may write it (`memory_model`), and `owners` says which
constant it is. A read of a constant where the op needs what a step computes stays, and finds that no step wrote it.

An op orders what it does to one buffer (its reads before its writes of the same elements). Among different buffers it
reads and writes as it likes, some of its values per worker and iterations ahead of others. So a warp that uses a byte
by way of two shared buffers in one step, one use a write, leaves open what is there, whatever waits there are
(`check_clashes`: AMK301 if both are writes, AMK302 otherwise). Between steps and warps the usual orders decide.

Runs. An op that is evaluated for several runs of a step at once computes with the integers of all of them. A *run* of a
step is one of its warps, on one worker, in one iteration. A `PerRun` holds an integer for each run and stands where the
op expects one. Arithmetic is done for each of them. Where the op decides by one (a comparison, a range, a key), all of
them must decide alike; otherwise `Differ` says who does what, and the caller evaluates the op again for each of these
groups. Integers that all runs share, hence those of a single run, are plain ones. So what is found for a run is what
the op says of it alone, whatever the op computes: nothing is assumed about how bytes follow from workers, warps or
layers. Python's integers have no end: a result that might leave 62 bits parts the runs too."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from typing import Any, Final, cast
from zlib import crc32

import numpy as np

from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.schedule_ir.expr import Env, Expr, Value
from amk.schedule_ir.memory import ITEM_BYTES, Buffer
from amk.schedule_ir.ops import Access, Op
from amk.schedule_ir.schedule import Schedule
from amk.validator.program.system import DONT_CARE, I64, READ, WRITE, Bools
from amk.validator.program.trace import Item

LIMIT: Final = 1 << 62


class Differ(Exception):
    """labels [n]: equal for those runs that go the same way; at least two are different."""

    def __init__(self, labels: I64 | Bools) -> None:
        super().__init__()
        self.labels = labels


class PerRun:
    """values [n], n at least 2, all of them in low..high."""

    __slots__ = ("high", "low", "values")

    def __init__(self, values: I64, low: int, high: int) -> None:
        self.values, self.low, self.high = values, low, high

    def __add__(self, other: PerRun | int) -> PerRun:
        low, high = _ends(other)
        return self._combine(np.add, other, self.low + low, self.high + high)

    __radd__ = __add__

    def __neg__(self) -> PerRun:
        return PerRun(-self.values, -self.high, -self.low)

    def __sub__(self, other: PerRun | int) -> PerRun:
        return self + -other

    def __rsub__(self, other: int) -> PerRun:
        return -self + other

    def __mul__(self, other: PerRun | int) -> PerRun:
        low, high = _ends(other)
        ends = self.low * low, self.low * high, self.high * low, self.high * high
        return self._combine(np.multiply, other, min(ends), max(ends))

    __rmul__ = __mul__

    def __floordiv__(self, other: PerRun | int) -> PerRun | int:
        if isinstance(other, PerRun) or other <= 0:
            return int(self) // int(other)
        return self._combine(np.floor_divide, other, self.low // other, self.high // other)

    def __mod__(self, other: PerRun | int) -> PerRun | int:
        if isinstance(other, PerRun) or other <= 0:
            return int(self) % int(other)
        return self._combine(np.remainder, other, 0, other - 1)

    def __divmod__(self, other: PerRun | int) -> tuple[PerRun | int, PerRun | int]:
        return self // other, self % other

    def __rfloordiv__(self, other: int) -> int:
        return other // int(self)

    def __rmod__(self, other: int) -> int:
        return other % int(self)

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        return divmod(other, int(self))

    def __lt__(self, other: PerRun | int) -> bool:
        return self._decided(operator.lt, other)

    def __le__(self, other: PerRun | int) -> bool:
        return self._decided(operator.le, other)

    def __gt__(self, other: PerRun | int) -> bool:
        return self._decided(operator.gt, other)

    def __ge__(self, other: PerRun | int) -> bool:
        return self._decided(operator.ge, other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerRun | int) and self._decided(operator.eq, other)

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        """Also `int`, and what ranges and `gcd` ask for."""
        first = int(self.values[0])
        if (self.values != first).any():
            raise Differ(self.values)
        return first

    def __hash__(self) -> int:
        return hash(int(self))

    def _combine(self, function: Callable[..., I64], other: PerRun | int, low: int, high: int) -> PerRun:
        if min(low, _ends(other)[0]) < -LIMIT or max(high, _ends(other)[1]) > LIMIT:
            raise Differ(np.arange(len(self.values)))
        return PerRun(function(self.values, other.values if isinstance(other, PerRun) else other), low, high)

    def _decided(self, compare: Callable[[Any, Any], Any], other: PerRun | int) -> bool:
        truth = compare(self.values, other.values if isinstance(other, PerRun) else other)
        if truth.all():
            return True
        if truth.any():
            raise Differ(truth)
        return False


def _ends(number: PerRun | int) -> tuple[int, int]:
    return (number.low, number.high) if isinstance(number, PerRun) else (number, number)


def per_run(values: I64) -> int:
    """What stands for these integers of several runs: a plain one if they are equal."""
    low, high = int(values.min()), int(values.max())
    return low if low == high else cast(int, PerRun(values, low, high))


def unfolded(numbers: Sequence[Sequence[int]], count: int) -> I64:
    """[count, n, columns] the integers of all runs that the [n][columns] `numbers` stand for."""
    cells: list[list[object]] = [list(row) for row in numbers]
    plain = [[0 if isinstance(cell, PerRun) else cell for cell in row] for row in cells]
    out = np.repeat(np.array([plain], np.int64), count, axis=0)
    for n, row in enumerate(cells):
        for column, cell in enumerate(row):
            if isinstance(cell, PerRun):
                out[:, n, column] = cell.values
    return out


def at(number: int, run: int) -> int:
    """The integer of one run."""
    values: object = number
    return int(values.values[run]) if isinstance(values, PerRun) else number


TOKEN_BITS: Final = 21
INDEX_BITS: Final = 20
FAMILY_SHIFT: Final = TOKEN_BITS + INDEX_BITS
FAMILIES: Final = 65_521
FAMILY_BITS: Final = 16
DTYPES: Final = (None, *ITEM_BYTES)
CACHED: Final = frozenset({"k", "v"})

_NAMES: dict[int, str] = {}


@cache
def family_number(family: str) -> int:
    """Below 2^16 - 1; `family_name` inverts it."""
    number = crc32(family.encode()) % FAMILIES
    if _NAMES.setdefault(number, family) != family:
        raise ValueError(f"the value families '{family}' and '{_NAMES[number]}' have the same number; rename one")
    return number


def code(family: str, index: int, dtype: str | None = None) -> int:
    """The packed value without a token; -1 stays the value nobody asks for. dtype: of the array that the bytes are
    used as, where arrays of several may have bytes in common."""
    number = DTYPES.index(dtype) << FAMILY_BITS | family_number(family.removesuffix(".past"))
    return ((number << INDEX_BITS) + index) * (1 << TOKEN_BITS)


def index_of(values: I64) -> I64:
    """The indices of packed values."""
    found: I64 = values >> TOKEN_BITS & ((1 << INDEX_BITS) - 1)
    return found


def family_name(value: int) -> str:
    """For people: `h[3] of token 1`, `xn[2] of token 1, as digits`."""
    if value == DONT_CARE:
        return "unnamed content"
    token, rest = value & ((1 << TOKEN_BITS) - 1), value >> TOKEN_BITS
    (dtype, family), index = divmod(rest >> INDEX_BITS, 1 << FAMILY_BITS), rest & ((1 << INDEX_BITS) - 1)
    name = f"{_NAMES[family]}[{index}]" + (f" of token {token - 1}" if token else "")
    return name + (f", as {DTYPES[dtype]}" if dtype else "")


def with_token(values: I64, token: I64 | int, timeless: bool = False) -> I64:
    """Values of steps run for a token each (negative: outside the token loop). timeless: those of the caches keep
    theirs, because what a token appends is what later tokens read."""
    named = values != DONT_CARE
    if timeless:
        named &= ~np.isin(values >> FAMILY_SHIFT, [family_number(family) for family in CACHED])
    return values + np.where(named, token + 1, 0)


Clash = tuple[Access, Access]
Meeting = tuple[str, str, int]
"""Two buffers, and bytes from the start of one to the start of the other."""


def aliased(buffers: Mapping[str, Buffer]) -> list[Meeting]:
    """Shared buffers that meet; in plans no op has any."""
    spans = {name: (b.offset or 0, (b.offset or 0) + b.bytes) for name, b in buffers.items() if b.space == "shared"}
    return [
        (one, two, spans[two][0] - spans[one][0])
        for one, two in combinations(spans, 2)
        if spans[one][0] < spans[two][1] and spans[two][0] < spans[one][1]
    ]


def clash_of(accesses: list[Access], pairs: list[Meeting]) -> Clash | None:
    """Two accesses of a byte by way of two buffers, one of them a write."""
    for one, two, gap in pairs:
        by = [[a for a in accesses if a.buffer == name] for name in (one, two)]
        for a, b in product(*by):
            if "write" in (a.kind, b.kind) and a.lo < b.hi + gap and b.lo + gap < a.hi:
                return a, b
    return None


def check_clashes(clashes: Mapping[tuple[str | int, ...], Clash]) -> Iterator[Diagnostic]:
    """One finding per op of the schedule, by its path."""
    for path, (a, b) in clashes.items():
        code = "AMK301" if a.kind == b.kind else "AMK302"
        message = f"a warp {a.kind}s '{a.buffer}' and {b.kind}s '{b.buffer}' in one step, and they have bytes in common"
        yield finding(code, message, path, "an op orders its accesses of one buffer, not those of two")


SHARED: Final = -1
COLUMNS: Final = 9
MANY: Final = 16

Row = tuple[int, int, int, int, int, int, int, int, int]


@dataclass(frozen=True, eq=False)
class Footprint:
    """Rows [n, 9] of the runs of a step, run by run. item, worker, agent [n]: which of the items that were asked for,
    the worker, the warp counted from the first of the step's role. positional, timed: does what some run touches depend
    on the position, or on the token's number within the launch?"""

    rows: I64
    item: I64
    worker: I64
    agent: I64
    positional: bool
    timed: bool


class _Loops(dict[str, Any]):
    """Loop variables that remember which of them were asked for."""

    def __init__(self, values: dict[str, Any], read: set[str]) -> None:
        super().__init__(values)
        self._read = read

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return super().__getitem__(name)


class _Together(Env):
    """The environment of several runs, whose numbers are `per_run`. read: loop variables and `pos`, if asked for."""

    read: set[str]

    def __init__(self, loops: dict[str, Any], workers: I64, agent: I64, pos: I64, tables: dict[str, I64]) -> None:
        read: set[str] = set()
        # the field `pos` is a property here, so the dataclass must not set it
        self.__dict__.update(
            loops=_Loops(loops, read), worker=per_run(workers), agent=per_run(agent), tables=tables, read=read,
            _workers=workers, _pos=per_run(pos),
        )  # fmt: skip

    @property
    def pos(self) -> int:
        self.read.add("pos")
        return cast(int, self.__dict__["_pos"])

    def symbol(self, name: str) -> Value:
        if name in ("1", "agent", "worker") or name in self.loops:
            return super().symbol(name)
        return per_run(self.tables[name][self.__dict__["_workers"]])

    def number(self, name: str) -> int:
        return cast(int, self.symbol(name))

    def eval_int(self, expr: Expr) -> int:
        return cast(int, self.eval(expr))


@dataclass(frozen=True, eq=False)
class _Evaluated:
    """What an op says of runs that it treats alike. runs: their numbers."""

    runs: I64
    rows: list[Row]
    beyond: Access | None
    clash: Clash | None
    read: set[str]


class Footprints:
    """Footprints of one schedule, folded or with all rows of all sequences. outside, clashes: by step, what lies
    outside its buffer, and bytes used by way of two buffers; written_constants: their names."""

    def __init__(self, schedule: Schedule, folded: bool = False) -> None:
        self.schedule, self.geometry = schedule, replace(schedule.geometry(), folded=folded)
        self.number = {b.name: i for i, b in enumerate(schedule.buffers)}
        self.written_constants: set[str] = set()
        self.outside: dict[tuple[str | int, ...], str] = {}
        self.clashes: dict[tuple[str | int, ...], Clash] = {}
        self.tables = {name: np.array(column, np.int64) for name, column in schedule.tables.items()}
        buffers = self.geometry.buffers
        self._start = {n: (b.offset or 0) if b.space == "shared" else 0 for n, b in buffers.items()}
        self._place = {n: SHARED if b.space == "shared" else self.number[n] for n, b in buffers.items()}
        self._dtype = {n: b.dtype for n, b in buffers.items() if b.space == "shared"}
        self._constant = {name for name, b in buffers.items() if b.role == "constant"}

    def of(self, items: list[Item], workers: I64, pos: I64) -> Footprint:
        """What each warp of a step touches. items: iterations of one step; pos [items, workers]: where workers are."""
        op = items[0].step.op
        agents = self.geometry.role_size[op.role]
        item, worker, agent = (n.reshape(-1) for n in np.indices((len(items), len(workers), agents)))
        loops = {name: np.array([one.loops[name] for one in items], np.int64) for name in items[0].loops}
        meeting = self._meeting(op)
        parts: list[_Evaluated] = []
        left = [np.arange(len(agent))] if len(workers) else []
        while left:
            some = left.pop()
            own = {name: per_run(values[item[some]]) for name, values in loops.items()}
            env = _Together(own, workers[worker[some]], agent[some], pos[item[some], worker[some]], self.tables)
            try:
                parts.append(self._alike(op, env, some, meeting))
            except Differ as differ:
                left += [some[differ.labels == label] for label in np.unique(differ.labels)]
        parts.sort(key=lambda part: int(part.runs[0]))
        self._note(items[0], parts, workers[worker])
        rows = [np.zeros((0, COLUMNS), np.int64), *(unfolded(p.rows, len(p.runs)).reshape(-1, COLUMNS) for p in parts)]
        runs = np.concatenate([np.zeros(0, np.int64), *(np.repeat(p.runs, len(p.rows)) for p in parts)])
        order, read = np.argsort(runs, kind="stable"), set[str]().union(*(part.read for part in parts))
        runs = runs[order]
        return Footprint(
            np.concatenate(rows)[order], item[runs], workers[worker[runs]], agent[runs],
            positional="pos" in read, timed=not read.isdisjoint(("t", "n")),
        )  # fmt: skip

    def _meeting(self, op: Op) -> list[Meeting]:
        named = {value for _, value in op if isinstance(value, str)}
        return aliased({name: b for name, b in self.geometry.buffers.items() if name in named})

    def _alike(self, op: Op, env: _Together, runs: I64, meeting: list[Meeting]) -> _Evaluated:
        accesses = op.accesses(env, self.geometry)
        rows = list(self._coalesced(accesses))
        beyond = next((a for a in accesses if a.lo < 0 or _end(a) > self.geometry.buffers[a.buffer].bytes), None)
        self.written_constants |= {a.buffer for a in accesses if a.kind == "write" and a.buffer in self._constant}
        clash = clash_of([*_each(accesses)], meeting) if meeting else None
        return _Evaluated(runs, rows, beyond, clash, env.read)

    def _row(self, access: Access) -> Row:
        value = DONT_CARE if access.value is None else self._content(access.buffer, *access.value)
        start, kind = self._start[access.buffer], READ if access.kind == "read" else WRITE
        lo = access.lo + start
        again = access.times, access.step, access.shift - access.step
        return self._place[access.buffer], kind, lo, access.hi + start, value, access.origin - lo, *again

    def _content(self, buffer: str, family: str, index: int) -> int:
        """Of bytes of shared memory, with the dtype that the value has there: arrays of two dtypes may share them."""
        return code(family, index, self._dtype.get(buffer))

    def _coalesced(self, accesses: list[Access]) -> Iterator[Row]:
        """Rows with touching neighbours of the same content merged; of many, those that touch in the first run stand
        together, because ops go piece by piece."""
        kept = [a for a in accesses if a.kind != "read" or a.value is not None or a.buffer not in self._constant]
        rows = [self._row(access) for access in kept]
        if len(rows) > MANY:
            rows.sort(key=lambda row: [at(row[column], 0) for column in (0, 1, 6, 5, 4, 2)])
        last: Row | None = None
        for row in rows:
            if last and last[3] == row[2] and last[:2] == row[:2] and last[4:] == row[4:]:
                last = (*last[:3], row[3], *last[4:])
                continue
            if last:
                yield last
            last = row
        if last:
            yield last

    def _note(self, item: Item, parts: list[_Evaluated], worker: I64) -> None:
        """Remember the first access outside its buffer, and the first use of a byte by way of two, by step."""
        path = (*item.site.path, "op")
        for part in parts:
            if part.clash is not None:
                self.clashes.setdefault(path, part.clash)
            if part.beyond is not None and path not in self.outside:
                name = part.beyond.buffer
                lo, hi = at(part.beyond.lo, 0), at(_end(part.beyond), 0)
                self.outside[path] = (
                    f"{item.step.op.op} of worker {worker[part.runs[0]]} touches bytes {lo:,}..{hi - 1:,} of "
                    f"'{name}', which has {self.geometry.buffers[name].bytes:,}"
                )


def _end(access: Access) -> int:
    """Behind the last byte of all times."""
    return access.hi + (access.times - 1) * access.step


def _each(accesses: list[Access]) -> Iterator[Access]:
    """Every time by itself."""
    for a in accesses:
        for k in range(a.times):
            lo, hi, origin = a.lo + k * a.step, a.hi + k * a.step, a.origin + k * a.shift
            yield a._replace(lo=lo, hi=hi, origin=origin, times=1)


def flat_rows(footprints: Footprints, items: list[Item], footprint: Footprint) -> I64:
    """(buffer, lo, hi, kind, value, delta) in the buffers of the flat system: those of the schedule, then the shared
    memory of each worker; with the token in the values."""
    rows = footprint.rows[:, [0, 2, 3, 1, 4, 5]]
    own = rows[:, 0] == SHARED
    rows[own, 0] = len(footprints.schedule.buffers) + footprint.worker[own]
    token = np.array([item.token for item in items], np.int64)[footprint.item]
    rows[:, 4] = with_token(rows[:, 4], token, timeless=True)
    return rows
