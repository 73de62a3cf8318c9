"""The byte accesses of every step of every warp, as columns.

`accesses` of an op is a pure function of what it asks of its environment. One evaluation serves all environments (a
worker in an iteration) in which it decides alike (`integers`). It may ask for the position: then it is evaluated at the
first, the last, one that the worker's split owns and one that another owns, and a row says at which of them it happens.

Global buffers are numbered as in the schedule, then each worker's part of the caches, one unit per layer and turn
(`_units` checks that the rows are its own), then its shared memory, arrays that overlap as one. Reads of constants are
left out: nothing writes them, and they are where an op means the constant that its field is named after
(`references`, `needs`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from amk.checker.integers import Diverged, columns, together
from amk.checker.parts import Parts
from amk.checker.programs import Item, Program, require
from amk.schedule_ir.expr import AGENT, CONST, WORKER, Env
from amk.schedule_ir.ops import Access
from amk.schedule_ir.ops.base import Op
from amk.schedule_ir.schedule import Schedule

I64 = npt.NDArray[np.int64]
PLACE: Final = [0, 1, 2, 11]
"""Columns of a row: worker, item, warp, buffer, lo, hi, kind, value, displacement, positions (bits), tag, array."""
AGAIN: Final = [12, 13, 14]
"""More of them, until equal parts are one (`parts`): times, step, turn."""
ALL: Final = 15
READ, WRITE, DONT_CARE = 0, 1, -1
ENTRIES: Final = 1 << 21
ROWS: Final = 1 << 24
"""What ops say that they touch, and that for all environments."""
LIMIT: Final = 1 << 20
"""Values are (family, index, token) packed: token and index lie below this."""
TIMELESS: Final = frozenset({"k", "v"})
"""Cache rows: what one token appends is what later ones read."""
EVERYWHERE: Final = 15


class _PositionNeeded(Exception):
    pass


class _Together(Env):
    """One agent in several environments, as `integers`. where [n, 4]: columns `_WORKER` to `_BITS`."""

    def __init__(self, items: list[Item], where: I64, agent: int, tables: dict[str, I64]) -> None:
        workers, used = where[:, _WORKER], items[0].loops
        loops = {name: together(np.array([i.loops[name] for i in items])[where[:, _ITEM]]) for name in used}
        self.__dict__.update(loops=loops, worker=together(workers), agent=agent, tables=tables, where=where)

    @property
    def pos(self) -> int:
        where: I64 = self.__dict__["where"]
        if where[0, _POS] < 0:
            raise _PositionNeeded
        return cast(int, together(where[:, _POS]))

    def symbol(self, name: str) -> Any:
        if name in (CONST, AGENT, WORKER) or name in self.loops:
            return super().symbol(name)
        return together(self.tables[name][self.__dict__["where"][:, _WORKER]])

    def number(self, name: str) -> Any:
        return self.symbol(name)

    def eval_int(self, expr: Any) -> Any:
        return self.eval(expr)


_WORKER, _ITEM, _POS, _BITS = range(4)


class Footprints:
    """Evaluates one schedule. only: four positions for all workers."""

    def __init__(self, schedule: Schedule, programs: list[Program], only: list[int] | None = None) -> None:
        self.schedule, self.programs, self.only = schedule, programs, only
        self.geometry, self.parts = replace(schedule.geometry(), folded=True), Parts(schedule)
        self.number = {b.name: i for i, b in enumerate(schedule.buffers)}
        self.bytes = {b.name: b.bytes for b in schedule.buffers}
        self.constants = {b.name for b in schedule.buffers if b.role == "constant"}
        self.tables = {name: np.array(column, np.int64) for name, column in schedule.tables.items()}
        self.forms = {b.name: b.dtype for b in schedule.buffers if b.space == "shared"}
        self.families: dict[tuple[str, str], int] = {}
        self.entries = self.row_count = 0

    def _at_positions(self, where: I64) -> I64:
        """The same environments at the first position, the last, one in the worker's first block, and one in another
        split's; the bits say which of these a position is."""
        kv, rows, count = self.schedule.kv, self.schedule.rows, len(where)
        last = kv.context - rows
        split = self.tables["attn.split"][where[:, _WORKER]] if "attn.split" in self.tables else np.zeros(count, int)
        own, other = np.minimum((split + 1) * kv.block - rows, last), np.where(split == 0, kv.block, 0)
        other = np.where((kv.splits > 1) & (other <= last), other, 0)
        places = np.stack((np.zeros_like(own), np.full_like(own, last), own, other), axis=1)
        if self.only is not None:
            places = np.tile(np.array(self.only, np.int64), (count, 1))
        same = places[:, :, None] == places[:, None, :]
        found = np.repeat(where[:, None], 4, axis=1)
        found[:, :, _POS], found[:, :, _BITS] = places, same @ (1, 2, 4, 8)
        first = np.argmax(same, axis=2) == np.arange(4)
        there: I64 = found[first]
        return there

    def rows_of_splits(self) -> list[I64]:
        """Of every split that owns a position, what happens at the first step that has a row there (first bit), at the
        last one (second bit), and at one that has all its rows there, if any has: of two splits, the other one has rows
        at both ends.
        """
        kv, rows, last = self.schedule.kv, self.schedule.rows, self.schedule.kv.context - self.schedule.rows
        blocks = [range(0, kv.context, kv.block)[split :: kv.splits] for split in range(kv.splits)]
        ends = [(max(mine[0] - rows + 1, 0), min(mine[-1] + kv.block - 1, last), mine[0]) for mine in blocks if mine]
        only = [[first, end, within if within <= last else end, end] for first, end, within in ends]
        return [Footprints(self.schedule, self.programs, places).rows() for places in only]

    def rows(self) -> I64:
        """[n, 12] of the bytes that accesses have differently (`parts`)."""
        return self.parts.different(self.placed())

    def placed(self, outside: I64 | None = None) -> I64:
        """[n, 15] of all accesses; outside: rows of what else is there."""
        parts = [np.zeros((0, ALL), np.int64)]
        for program in self.programs:
            runs: dict[int, list[int]] = {}
            for j, item in enumerate(program.items):
                if type(item.step.op).accesses is not Op.accesses:
                    runs.setdefault(id(item.step), []).append(j)
            for numbers in runs.values():
                role = program.roles[numbers[0]]
                parts += (self._of_step(program, numbers, agent, warp) for agent, warp in enumerate(role))
        placed = np.concatenate(parts)
        if outside is not None:
            placed = np.concatenate((placed, np.pad(outside, ((0, 0), (0, 3)))))
            placed[len(placed) - len(outside) :, AGAIN[0]] = 1
        self.parts.fit(placed)
        return placed

    def _of_step(self, program: Program, numbers: list[int], agent: int, warp: int) -> I64:
        """What one agent of every worker touches in the items of a step."""
        items = [program.items[j] for j in numbers]
        worker, item = np.meshgrid(program.workers, np.arange(len(items)), indexing="ij")
        every = np.full(worker.size, EVERYWHERE)
        left = [np.stack((worker.ravel(), item.ravel(), np.full_like(every, -1), every), axis=1)]
        parts = [np.zeros((0, ALL), np.int64)]
        while left:
            where = left.pop()
            try:
                env = _Together(items, where, agent, self.tables)
                entries = [self._entry(access) for access in items[0].step.op.accesses(env, self.geometry)]
            except _PositionNeeded:
                left.append(self._at_positions(where))
            except Diverged as diverged:
                left += [where[diverged.labels == label] for label in np.unique(diverged.labels)]
            else:
                accesses = [entry for entry in entries if entry]
                self.entries, self.row_count = self.entries + len(accesses), self.row_count + len(accesses) * len(where)
                require(self.entries <= ENTRIES and self.row_count <= ROWS, "schedule: too large")
                parts.append(self._columns(accesses, where))
        rows = _joined(np.concatenate(parts))
        item = rows[:, 1]
        rows[:, 2], rows[:, 11] = warp, rows[:, 3]
        rows[:, 10] = np.array([self._tag_of(i) for i in items])[item, rows[:, 3]]
        rows[:, 7] += np.where(rows[:, 7] >= 0, np.array([i.token + 1 for i in items])[item], 0)
        if items[0].step.op.perhaps:
            rows[:, 9] &= ~2  # a given token is taken without a look at the candidates
        rows[:, 1] = np.array(numbers)[item]
        return self._placed(rows)

    def _columns(self, entries: list[tuple[Any, ...]], where: I64) -> I64:
        """[n, 15] with what the evaluation says: worker, item of the step, buffer to positions, times, step, turn."""
        table = np.zeros((len(where), len(entries), ALL), np.int64)
        if entries:
            table[:, :, [0, 1, 9]] = where[:, None, [_WORKER, _ITEM, _BITS]]
            table[:, :, [*range(3, 9), *AGAIN]] = columns(entries, len(where))
        units = [e for e, entry in enumerate(entries) if entry[0] in self._caches]
        if units:
            table[:, units] = self._units(table[:, units].reshape(-1, ALL)).reshape(len(where), len(units), ALL)
            seen = {table[:, e, 3:9].tobytes(): e for e in reversed(units)}
            table = np.delete(table, sorted({*units} - {*seen.values()}), axis=1)
        return table.reshape(-1, ALL)

    def _entry(self, access: Access) -> tuple[Any, ...]:
        """(buffer, lo, hi, kind, value, displacement, times, step, turn); empty for constants."""
        name, kind, lo, hi, value, origin, times, step, shift = access
        require(0 <= lo < hi and hi + (times - 1) * step <= self.bytes[name], f"bounds: a worker leaves '{name}'")
        require(step >= 0, f"bounds: a worker goes backwards in '{name}'")
        if name in self.constants:
            require(kind == "read", f"constants: '{name}' is written")
            require(value is None, f"constants: '{name}' is read for something else")
            return ()
        require(kind == "write" or value is not None, f"constants: '{name}' is read for one")
        content = DONT_CARE if value is None else self.code(*value, self.forms.get(name, ""))
        again = times, step, shift - step
        return self.number[name], lo, hi, READ if kind == "read" else WRITE, content, origin - lo, *again

    def code(self, family: str, index: int, form: str = "") -> int:
        """Timeless ones below `DONT_CARE`, which no token is added to. form: how the numbers are written, where buffers
        that write them in several ways may share bytes."""
        require(0 <= index < LIMIT, "values: index too large")
        name = family.removesuffix(".past")
        code = (self.families.setdefault((name, form), len(self.families)) * LIMIT + index) * LIMIT
        return -2 - code if name in TIMELESS else code

    def _placed(self, rows: I64) -> I64:
        """Private memory numbered per worker, shared memory by its offset."""
        array = rows[:, 11]
        rows[:, 3] = np.where(self._memory[array] < 0, array, self._memory[array] + rows[:, 0])
        rows[:, 4:6] += self._offset[array, None]
        rows[:, 8] -= self._offset[array]
        return rows

    @cached_property
    def _offset(self) -> I64:
        """[buffers] where it begins in its memory."""
        return np.array([b.offset or 0 if b.space == "shared" else 0 for b in self.schedule.buffers], np.int64)

    @cached_property
    def _memory(self) -> I64:
        """[buffers] number of the first worker's memory that it lies in; -1 for what workers share."""
        count, workers = len(self.schedule.buffers), self.schedule.launch.workers
        found = np.full(count, -1)
        for n, arrays in enumerate((*([cache] for cache in self._caches), *self.parts.memories)):
            found[arrays] = count + workers * n
        return found

    @cached_property
    def _caches(self) -> list[int]:
        ops = {id(item.step): item.step.op for program in self.programs for item in program.items}.values()
        fields = [(op, name) for op in ops for name in ("k_cache", "v_cache") if name in type(op).model_fields]
        names = {getattr(op, name) for op, name in fields}
        return sorted(self.number[name] for name in names)

    def _units(self, rows: I64) -> I64:
        """Runs of cache rows as the layer and turn that they are of, all rows of a head of the worker and its split."""
        require((rows[:, AGAIN[0]] == 1).all(), "cache: rows of several sequences at once")
        kv, items = self.schedule.kv, np.array([b.item_bytes for b in self.schedule.buffers])
        size = self.schedule.model.head_dim * items[rows[:, 3]]
        first, last = rows[:, 4] // size, (rows[:, 5] - 1) // size
        layer, cache = np.divmod(first // kv.context, self.schedule.caches)
        turn, head = np.divmod(cache, self.schedule.turn_heads)
        block = first % kv.context // kv.block
        mine = (block == last % kv.context // kv.block) | (kv.splits == 1)
        mine &= (first // kv.context == last // kv.context) & (head == self.tables["attn.head"][rows[:, 0]])
        mine &= block % kv.splits == self.tables["attn.split"][rows[:, 0]]
        require(mine.all(), "cache: a worker touches rows of another head or split")
        rows[:, 4] = layer * kv.turns + turn
        rows[:, 5], rows[:, 8] = rows[:, 4] + 1, 0
        return rows

    def _tag_of(self, item: Item) -> I64:
        """[buffers] the tag that the item's words carry, 0 where there is none."""
        used = {value for _, value in item.step.op if isinstance(value, str)}
        tags = np.zeros(len(self.schedule.buffers), np.int64)
        for n, buffer in enumerate(self.schedule.buffers):
            if buffer.tag is not None and buffer.name in used:
                scope = isinstance(buffer.tag, dict) and set(buffer.tag) <= {CONST, *({"t", "l"} & set(item.loops))}
                require(scope, "tags: not in scope")
                tags[n] = Env(loops=item.loops, worker=0).eval_int(buffer.tag)
        return tags


def _joined(rows: I64) -> I64:
    """What happens at several positions as one row, and touching bytes with equal content as one."""
    same, place, bits = [0, 1, 3, 6, 7, 8, *AGAIN], [4, 5], [9]
    rows = rows[np.lexsort(rows[:, [*same, *place]].T[::-1])]
    at, rest = rows[:, 9], np.delete(rows, bits, axis=1)
    first = np.flatnonzero(np.append(True, (rest[1:] != rest[:-1]).any(axis=1))[: len(rows)])
    rows = rows[first]
    rows[:, 9] = np.bitwise_or.reduceat(at, first) if len(at) else at
    rows = rows[np.lexsort(rows[:, [*same, *bits, *place]].T[::-1])]
    rest = np.delete(rows, place, axis=1)
    apart = (rest[1:] != rest[:-1]).any(axis=1) | (rows[1:, 4] > rows[:-1, 5])
    first = np.flatnonzero(np.append(True, apart)[: len(rows)])
    found: I64 = rows[first]
    found[:, 5] = np.maximum.reduceat(rows[:, 5], first) if len(rows) else rows[:, 5]
    return found
