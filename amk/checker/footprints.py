"""The byte accesses of every step of every warp, as columns.

`accesses` of an op is a pure function of what it reads from its environment, so one evaluation serves all warps that
agree on that. Accesses may depend on the position: they are evaluated at a few positions (first, last, one that the
worker's split owns, one that another split owns), and a row says at which of them it happens.

Columns: worker, item, warp, buffer, lo, hi, kind (0 read, 1 write), value, delta, at (bit set of positions), tag.
Global buffers are numbered as in the schedule, then each worker's shared memory, then each worker's part of the caches,
one unit per layer (`_layers` checks that the rows are its own). Reads of constants are left out; nothing writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from amk.checker.programs import CREW, Item, Program, require
from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops import Access, BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.ops.select import Selection
from amk.schedule_ir.schedule import Schedule

I64 = npt.NDArray[np.int64]
COLUMNS: Final = ("worker", "item", "warp", "buffer", "lo", "hi", "kind", "value", "delta", "at", "tag")
READ, WRITE, DONT_CARE = 0, 1, -1
TOKENS: Final = 1 << 20
"""Values are (family, index, token) packed: token below this, index below it too."""
TIMELESS: Final = frozenset({"k", "v"})
"""Cache rows: what one token appends is what later ones read."""
EVERYWHERE: Final = 15
Entry = tuple[int, int, int, int, int, int]
Known = dict[tuple[str, ...], dict[tuple[int, ...], npt.NDArray[np.int64]]]


class _Logged(dict[str, int]):
    def __init__(self, values: Mapping[str, int], log: dict[str, int]) -> None:
        super().__init__(values)
        self.log = log

    def __getitem__(self, name: str) -> int:
        self.log[name] = super().__getitem__(name)
        return self.log[name]


class _Recorder(Env):
    """An environment that remembers what was read from it."""

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name in ("worker", "pos"):
            object.__getattribute__(self, "loops").log[name] = value
        return value

    def symbol(self, name: str) -> Any:
        if name in ("1", "agent") or name in self.loops:
            return super().symbol(name)
        log = object.__getattribute__(self, "loops").log
        table = object.__getattribute__(self, "tables")
        log[name] = int(table[name][object.__getattribute__(self, "worker")]) if name in table else self.worker
        return log[name]


class Footprints:
    """Evaluates one schedule; `rows()` [n, 11] are the columns above. only: four positions for all."""

    def __init__(self, schedule: Schedule, programs: list[Program], only: list[int] | None = None) -> None:
        self.schedule, self.programs, self.geometry = schedule, programs, schedule.geometry()
        self.only = only
        self.number = {b.name: i for i, b in enumerate(schedule.buffers)}
        self.shared = {b.name: b.offset or 0 for b in schedule.buffers if b.space == "shared"}
        self.constant = {b.name for b in schedule.buffers if b.role == "constant"}
        self.bytes = {b.name: b.bytes for b in schedule.buffers}
        self.tables = {name: np.array(column, np.int64) for name, column in schedule.tables.items()}
        self.families: dict[str, int] = {}
        self.caches = _cache_names(programs)
        self.lists = {name: list(column) for name, column in schedule.tables.items()}
        self._known: dict[tuple[int, int, int], Known] = {}

    def places(self, worker: int) -> list[int]:
        """First, last, in the worker's first block, in another split's."""
        if self.only is not None:
            return self.only
        kv, last = self.schedule.kv, self.schedule.kv.context - 1
        split = int(self.tables["attn.split"][worker]) if "attn.split" in self.tables else 0
        own, other = (split + 1) * kv.block - 1, 0 if split else kv.block
        return [0, last, own if own <= last else last, other if kv.splits > 1 and other <= last else 0]

    def rows_of_splits(self) -> list[I64]:
        """Of every split that owns a position, what happens at its first (first bit) and at its last (second bit)."""
        kv = self.schedule.kv
        blocks = [range(0, kv.context, kv.block)[split :: kv.splits] for split in range(kv.splits)]
        ends = [(mine[0], min(mine[-1] + kv.block, kv.context) - 1) for mine in blocks if mine]
        return [Footprints(self.schedule, self.programs, [*end, *end]).rows() for end in ends]

    def rows(self) -> I64:
        parts: list[I64] = []
        for g, program in enumerate(self.programs):
            for j, item in enumerate(program.items):
                if not isinstance(item.step.op, BarrierOp | WaitOp | SignalOp):
                    tag = self._tag_of(item)
                    for agent, warp in enumerate(program.roles[j]):
                        parts.append(self._table(g, j, item, program.workers, agent, warp, tag))
        table = np.concatenate(parts) if parts else np.zeros((0, len(COLUMNS)), np.int64)
        return self._placed(table)

    def _table(self, g: int, j: int, item: Item, workers: range, agent: int, warp: int, tag: I64) -> I64:
        """Rows of one step on one warp of every worker of a program."""
        found = self._of(g, item, workers, agent)
        count = [len(f) for f in found]
        entry = np.concatenate(found)
        made = np.empty((len(entry), len(COLUMNS)), np.int64)
        made[:, 0], made[:, 1], made[:, 2], made[:, 3:10] = np.repeat(workers, count), j, warp, entry
        made[:, 10] = tag[made[:, 3]]
        made[:, 7] += np.where(made[:, 7] >= 0, item.token + 1, 0)
        if isinstance(item.step.op, Selection):
            made[:, 9] &= ~2  # a given token is taken without a look at the candidates
        return made

    def _of(self, g: int, item: Item, workers: range, agent: int) -> list[I64]:
        known = self._known.setdefault((g, item.number, agent), {})
        found: list[I64 | None] = [None] * len(workers)
        for names, by_value in known.items():
            columns = [self._column(name, item, workers) for name in names]
            keys = list(zip(*columns, strict=True)) if names else [()] * len(found)
            found = [f if f is not None else by_value.get(key) for f, key in zip(found, keys, strict=True)]
        for i, worker in enumerate(workers):
            if found[i] is None:
                found[i] = self._looked_up(known, item, worker) if i else None
            if found[i] is None:
                found[i] = self._fresh(known, item, worker, agent)
        return [f for f in found if f is not None]

    def _looked_up(self, known: Known, item: Item, worker: int) -> I64 | None:
        """What a neighbour has just evaluated."""
        one = range(worker, worker + 1)
        for names, by_value in known.items():
            found = by_value.get(tuple(self._column(name, item, one)[0] for name in names))
            if found is not None:
                return found
        return None

    def _fresh(self, known: Known, item: Item, worker: int, agent: int) -> I64:
        """Entries (buffer, lo, hi, kind, value, delta, at) at the worker's places; known by what was read for them."""
        log: dict[str, int] = {}
        bits: dict[Entry, int] = {}
        for n, pos in enumerate(self.places(worker)):
            env = _Recorder(loops=_Logged(item.loops, log), worker=worker, agent=agent, pos=pos, tables=self.tables)
            accesses = item.step.op.accesses(env, self.geometry)
            require(not self._clash(accesses), f"aliases: in {item.step.op.op}")
            for access in accesses:
                if self._counts(access, worker):
                    entry = self._entry(access)
                    bits[entry] = bits.get(entry, 0) | 1 << n
            if "pos" not in log:
                bits = dict.fromkeys(bits, EVERYWHERE)
                break
        if log.pop("pos", None) is not None:
            log["attn.split"] = int(self.tables["attn.split"][worker])
        names = tuple(sorted(log))
        made = np.array(list(_joined(bits)), np.int64).reshape(-1, 7)
        return known.setdefault(names, {}).setdefault(tuple(log[name] for name in names), made)

    def _clash(self, accesses: list[Access]) -> bool:
        """Do two shared arrays meet where one is written? A warp orders only what it does to one array."""
        spans = [
            (self.shared[a.buffer] + a.lo, self.shared[a.buffer] + a.hi, a) for a in accesses if a.buffer in self.shared
        ]
        reach: dict[tuple[str, str], int] = {}
        for lo, hi, a in sorted(spans, key=lambda span: span[0]):
            for (name, kind), end in reach.items():
                if name != a.buffer and end > lo and "write" in (kind, a.kind):
                    return True
            reach[a.buffer, a.kind] = max(hi, reach.get((a.buffer, a.kind), 0))
        return False

    def _column(self, name: str, item: Item, workers: range) -> Sequence[int]:
        if name == "worker":
            return workers
        return (
            [item.loops[name]] * len(workers) if name in item.loops else self.lists[name][workers.start : workers.stop]
        )

    def _counts(self, access: Access, worker: int) -> bool:
        inside = 0 <= access.lo < access.hi <= self.bytes[access.buffer]
        require(inside, f"bounds: worker {worker} leaves '{access.buffer}'")
        if access.buffer in self.constant:
            require(access.kind == "read", f"constants: '{access.buffer}' is written")
            return False
        return True

    def code(self, family: str, index: int) -> int:
        require(0 <= index < TOKENS, "values: index too large")
        number = self.families.setdefault(family.removesuffix(".past"), len(self.families))
        return (number * TOKENS + index) * TOKENS

    def _entry(self, access: Access) -> Entry:
        value = DONT_CARE if access.value is None else self.code(*access.value)
        if value != DONT_CARE and access.value is not None and access.value[0].removesuffix(".past") in TIMELESS:
            value = -2 - value
        kind = READ if access.kind == "read" else WRITE
        return self.number[access.buffer], access.lo, access.hi, kind, value, access.origin - access.lo

    def _placed(self, rows: I64) -> I64:
        """Private memory numbered per worker: shared memory by its offset, caches by layer."""
        count, workers = len(self.schedule.buffers), self.schedule.launch.workers
        for name, base in self.shared.items():
            at = rows[:, 3] == self.number[name]
            rows[at, 4:6] += base
            rows[at, 8] -= base
            rows[at, 3] = count + rows[at, 0]
        for name, which in self.caches.items():
            at = rows[:, 3] == self.number[name]
            rows[at, 4] = self._layers(self.number[name], rows[at])
            rows[at, 5], rows[at, 8], rows[at, 3] = rows[at, 4] + 1, 0, count + workers * which + rows[at, 0]
        return rows

    def _layers(self, buffer: int, rows: I64) -> I64:
        """The layer of each run of cache rows, all of them rows of the worker's head and split."""
        model, kv = self.schedule.model, self.schedule.kv
        size = model.head_dim * self.schedule.buffers[buffer].item_bytes
        first, last = rows[:, 4] // size, (rows[:, 5] - 1) // size
        layer, head = np.divmod(first // kv.context, self.schedule.caches)
        block = first % kv.context // kv.block
        mine = (first // kv.context == last // kv.context) & (
            (block == last % kv.context // kv.block) | (kv.splits == 1)
        )
        mine &= (head == self.tables["attn.head"][rows[:, 0]]) & (
            block % kv.splits == self.tables["attn.split"][rows[:, 0]]
        )
        require(mine.all(), "cache: a worker touches rows of another head or split")
        return layer

    def _tag_of(self, item: Item) -> I64:
        """[buffers] the tag that the item's words carry, 0 where there is none."""
        used = {value for _, value in item.step.op if isinstance(value, str)}
        tags = np.zeros(len(self.schedule.buffers), np.int64)
        for n, buffer in enumerate(self.schedule.buffers):
            if buffer.tag is not None and buffer.name in used:
                scope = isinstance(buffer.tag, dict) and set(buffer.tag) <= {"1", *({"t", "l"} & set(item.loops))}
                require(scope, "tags: not in scope")
                tags[n] = Env(loops=item.loops, worker=0).eval_int(buffer.tag)
        return tags


def _cache_names(programs: list[Program]) -> dict[str, int]:
    names: dict[str, int] = {}
    for program in programs:
        for item in program.items:
            for field in ("k_cache", "v_cache"):
                if hasattr(item.step.op, field):
                    names.setdefault(getattr(item.step.op, field), len(names) + 1)
    return names


def _joined(bits: dict[Entry, int]) -> Iterator[tuple[int, ...]]:
    """Touching entries of one event with equal content merged."""
    key = None
    lo = hi = 0
    for entry, at in sorted(bits.items(), key=lambda pair: (pair[0][0], pair[0][3:], pair[1], pair[0][1])):
        mine = (entry[0], *entry[3:], at)
        if mine == key and entry[1] <= hi:
            hi = max(hi, entry[2])
            continue
        if key is not None:
            yield (key[0], lo, hi, *key[1:])
        key, lo, hi = mine, entry[1], entry[2]
    if key is not None:
        yield (key[0], lo, hi, *key[1:])


def crewed(rows: I64, private: int) -> I64:
    """Reads of the same global bytes by several warps of a step as one by all of them, which asks for more order."""
    reads = np.flatnonzero((rows[:, 6] == READ) & (rows[:, 3] < private))
    key = rows[reads][:, [0, 1, 3, 4, 5, 7, 8, 9, 10]]
    order = np.lexsort(key.T)
    same = (key[order][1:] == key[order][:-1]).all(axis=1)
    twice = np.concatenate(([False], same)) | np.concatenate((same, [False]))
    first = np.concatenate(([True], ~same))
    crew = rows[reads[order[twice & first]]]
    crew[:, 2] = CREW
    return np.concatenate((np.delete(rows, reads[order[twice]], axis=0), crew))
