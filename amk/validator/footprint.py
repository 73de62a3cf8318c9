"""Byte footprints of steps, evaluated once per distinct environment.

`accesses` is a pure function of what it reads from its environment (loop variables, tables, worker, position). The
probe records those reads; a later call whose environment agrees on all of them has the same result, so it is looked up.
That makes 132 nearly identical workers cost little more than one.

Rows are (buffer, kind, lo, hi, value, delta): global buffers are numbered as in the schedule, shared memory is buffer
-1 and addressed by absolute byte, so that overlapping shared buffers are seen to overlap. value packs (family, index);
`with_token` adds the token. delta = logical offset - byte address.

Cache rows keep one value for all tokens: what a token appends is what later tokens read. Reads of `constant` buffers
are dropped, because nothing may write them (checked in `memory_model`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from amk.schedule_ir.expr import Env, IntArray, Value
from amk.schedule_ir.ops import Access, Geometry
from amk.schedule_ir.schedule import Schedule
from amk.validator.system import DONT_CARE, I64, READ, WRITE
from amk.validator.trace import Item

SHARED: Final = -1
TOKEN_BITS: Final = 21
INDEX_BITS: Final = 20
CACHED: Final = frozenset({"k", "v"})
COLUMNS: Final = 6

Row = tuple[int, int, int, int, int, int]


class _Seen(dict[str, int]):
    """Loop variables that remember which of them were asked for."""

    def __init__(self, values: Mapping[str, int], log: dict[str, int]) -> None:
        super().__init__(values)
        self._log = log

    def __getitem__(self, name: str) -> int:
        value = super().__getitem__(name)
        self._log[name] = value
        return value


class Probe(Env):
    """An environment of one (worker, agent) that records what is read from it in `log`."""

    log: dict[str, int]

    def __init__(
        self, loops: Mapping[str, int], worker: int, agent: int, pos: int, tables: Mapping[str, IntArray]
    ) -> None:
        log: dict[str, int] = {}
        # the fields `worker` and `pos` are properties here, so the dataclass must not set them
        self.__dict__.update(loops=_Seen(loops, log), agent=agent, tables=tables, log=log, _worker=worker, _pos=pos)

    @property
    def worker(self) -> int:
        self.log["worker"] = self.__dict__["_worker"]
        return self.__dict__["_worker"]  # type: ignore[no-any-return]

    @property
    def pos(self) -> int:
        self.log["pos"] = self.__dict__["_pos"]
        return self.__dict__["_pos"]  # type: ignore[no-any-return]

    def symbol(self, name: str) -> Value:
        if name in ("1", "agent", "worker") or name in self.loops:
            return super().symbol(name)
        value = int(self.tables[name][self.__dict__["_worker"]])
        self.log[name] = value
        return value


@dataclass(frozen=True, eq=False)
class Footprint:
    """Rows [n, 6] of one evaluation, coalesced; `number` identifies equal evaluations of one store."""

    number: int
    rows: I64


Known = dict[tuple[str, ...], dict[tuple[int, ...], Footprint]]
"""Evaluations of one (step, agent): by the names that were read, then by their values."""


class Footprints:
    """Evaluates and remembers footprints of one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.geometry: Geometry = schedule.geometry()
        self.tables = {name: np.array(column, dtype=np.int64) for name, column in schedule.tables.items()}
        self.number = {b.name: i for i, b in enumerate(schedule.buffers)}
        self.families: dict[str, int] = {}
        self._codes: dict[tuple[str, int], int] = {}
        self.evaluations = 0
        self.written_constants: set[str] = set()
        self.outside: dict[tuple[str | int, ...], str] = {}
        self._bytes = {b.name: b.bytes for b in schedule.buffers}
        self._constant = {b.name for b in schedule.buffers if b.role == "constant"}
        self._shared = {b.name: b.offset or 0 for b in schedule.buffers if b.space == "shared"}
        self._lists = {name: list(column) for name, column in schedule.tables.items()}
        self._known: dict[tuple[int, int, int], Known] = {}

    def of(self, program: int, item: Item, worker: int, agent: int, pos: int) -> Footprint:
        """What agent `agent` (index in the step's role) of `worker` touches in `item` at position `pos`."""
        return self.of_workers(program, item, agent, range(worker, worker + 1), [pos])[0]

    def of_workers(self, program: int, item: Item, agent: int, workers: range, pos: Sequence[int]) -> list[Footprint]:
        """`of` for consecutive workers, `pos` giving each one's position."""
        known = self._known.setdefault((program, item.site.number, agent), {})
        if () in known:
            return [known[()][()]] * len(workers)
        keys: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
        found: list[Footprint] = []
        for i, worker in enumerate(workers):
            # looked up anew for every worker: what one of them evaluates mostly serves those behind it
            for names in known:
                if names not in keys:
                    columns = [self._column(n, item, workers, pos) for n in names]
                    keys[names] = list(zip(*columns, strict=True)) if columns else [()] * len(workers)
                if (footprint := known[names].get(keys[names][i])) is not None:
                    break
            else:
                footprint = self._fresh(known, item, worker, agent, pos[i])
            found.append(footprint)
        return found

    def positional(self, program: int, item: Item, agent: int) -> bool:
        """Does what was evaluated so far for this step depend on the position?"""
        return any("pos" in names for names in self._known.get((program, item.site.number, agent), {}))

    def _fresh(self, known: Known, item: Item, worker: int, agent: int, pos: int) -> Footprint:
        """The evaluation, kept under the values of the names that it read."""
        env = Probe(item.loops, worker, agent, pos, self.tables)
        accesses = item.step.op.accesses(env, self.geometry)
        self._note(item, worker, accesses)
        log = env.log
        names = tuple(sorted(log))
        by_values = known.setdefault(names, {})
        key = tuple(log[n] for n in names)
        if key not in by_values:
            self.evaluations += 1
            rows = np.array(list(self._coalesced(accesses)), dtype=np.int64).reshape(-1, COLUMNS)
            by_values[key] = Footprint(self.evaluations, rows)
        return by_values[key]

    def _note(self, item: Item, worker: int, accesses: list[Access]) -> None:
        """Remember accesses outside their buffer, by step, and writes to constants."""
        for access in accesses:
            if access.lo < 0 or access.hi > self._bytes[access.buffer]:
                message = (
                    f"{item.step.op.op} of worker {worker} touches bytes {access.lo:,}..{access.hi - 1:,} of "
                    f"'{access.buffer}', which has {self._bytes[access.buffer]:,}"
                )
                self.outside.setdefault((*item.site.path, "op"), message)
            if access.kind == "write" and access.buffer in self._constant:
                self.written_constants.add(access.buffer)

    def _column(self, name: str, item: Item, workers: range, pos: Sequence[int]) -> Sequence[int]:
        if name in self._lists:
            return self._lists[name][workers.start : workers.stop]
        if name in ("worker", "pos"):
            return workers if name == "worker" else pos
        return [item.loops.get(name, -1)] * len(workers)

    def code(self, family: str, index: int) -> int:
        """The packed value without a token; -1 stays the value nobody asks for."""
        known = self._codes.get((family, index))
        if known is None:
            number = self.families.setdefault(family.removesuffix(".past"), len(self.families))
            known = self._codes[family, index] = (number << INDEX_BITS | index) << TOKEN_BITS
        return known

    def _row(self, access: Access) -> Row:
        shared = access.buffer in self._shared
        base = self._shared[access.buffer] if shared else 0
        value = DONT_CARE if access.value is None else self.code(*access.value)
        kind = READ if access.kind == "read" else WRITE
        lo, hi = base + access.lo, base + access.hi
        return (SHARED if shared else self.number[access.buffer], kind, lo, hi, value, access.origin - lo)

    def _coalesced(self, accesses: list[Access]) -> Iterator[Row]:
        """Rows with touching neighbours of the same content merged."""
        last: Row | None = None
        for access in accesses:
            if access.kind == "read" and access.buffer in self._constant:
                continue
            row = self._row(access)
            if last and last[3] == row[2] and (last[0], last[1], last[4], last[5]) == (row[0], row[1], row[4], row[5]):
                last = (*last[:3], row[3], *last[4:])
                continue
            if last:
                yield last
            last = row
        if last:
            yield last

    def family_name(self, value: int) -> str:
        """For people: `h[3] of token 1`."""
        if value == DONT_CARE:
            return "unnamed content"
        token, rest = value & ((1 << TOKEN_BITS) - 1), value >> TOKEN_BITS
        family, index = rest >> INDEX_BITS, rest & ((1 << INDEX_BITS) - 1)
        name = next(n for n, k in self.families.items() if k == family)
        return f"{name}[{index}]" + (f" of token {token - 1}" if token else "")


def with_token(values: I64, token: int, tokenless: I64) -> I64:
    """Values of a step run for `token` (negative: outside the token loop); families in `tokenless` keep theirs."""
    if token < 0:
        return values
    family = values >> (TOKEN_BITS + INDEX_BITS)
    plain = (values == DONT_CARE) | np.isin(family, tokenless)
    return np.where(plain, values, values + token + 1)
