"""The byte accesses of every step of every warp, as columns.

`accesses` of an op is a pure function of what it asks of its environment, so one evaluation serves all warps that agree
on that. It may ask for the position: it is evaluated at the first, the last, one that the worker's split owns and one
that another owns, and a row says at which of them it happens.

Global buffers are numbered as in the schedule, then each worker's shared memory, then each worker's part of the caches,
one unit per layer (`_layers` checks that the rows are its own). Reads of constants are left out: nothing writes them,
and they are where an op means the constant that its field is named after (`references`, `launch_needs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from amk.checker.programs import Item, Program, Rejected, require
from amk.schedule_ir.expr import AGENT, CONST, WORKER, Env
from amk.schedule_ir.ops import Access
from amk.schedule_ir.ops.base import Op
from amk.schedule_ir.schedule import Schedule

I64 = npt.NDArray[np.int64]
PLACE: Final = [0, 1, 2, 11]
"""Columns of a row: worker, item, warp, buffer, lo, hi, kind, value, displacement, positions (bits), tag, array."""
READ, WRITE, DONT_CARE = 0, 1, -1
LIMIT: Final = 1 << 20
"""Values are (family, index, token) packed: token and index lie below this."""
TIMELESS: Final = frozenset({"k", "v"})
"""Cache rows: what one token appends is what later ones read."""
EVERYWHERE: Final = 15


class _Asked(Env):
    """An environment that writes down what is asked of it, by name; the agent is no question."""

    env: Env
    log: dict[str, int]

    def __init__(self, env: Env, log: dict[str, int]) -> None:
        self.__dict__.update(env=env, log=log, agent=env.agent)

    worker: Any = property(lambda self: self._told({"worker": self.env.worker}, self.env.worker))
    pos: Any = property(lambda self: self._told({"pos": self.env.pos}, self.env.pos))
    tables: Any = property(lambda self: self._told({"worker": self.env.worker}, self.env.tables))
    loops: Any = property(lambda self: self._told(self.env.loops, self.env.loops))

    def _told(self, asked: Mapping[str, Any], answer: Any) -> Any:
        self.log.update(asked)
        return answer

    def symbol(self, name: str) -> Any:
        value = self.env.symbol(name)
        return value if name in (CONST, AGENT) else self._told({name: value}, value)


class Footprints:
    """Evaluates one schedule. only: four positions for all workers."""

    def __init__(self, schedule: Schedule, programs: list[Program], only: list[int] | None = None) -> None:
        self.schedule, self.programs, self.geometry, self.only = schedule, programs, schedule.geometry(), only
        self.number = {b.name: i for i, b in enumerate(schedule.buffers)}
        self.bytes = {b.name: b.bytes for b in schedule.buffers}
        self.constants = {b.name for b in schedule.buffers if b.role == "constant"}
        self.tables = {name: np.array(column, np.int64) for name, column in schedule.tables.items()}
        self.columns = schedule.tables | {WORKER: range(schedule.launch.workers)}
        self.families: dict[str, int] = {}
        self.contents: dict[tuple[str, int] | None, int] = {}
        self._known: dict[tuple[int, int], dict[tuple[str, ...], dict[tuple[int, ...], I64]]] = {}
        self._together: dict[tuple[int, int, int], list[tuple[dict[str, int], tuple[I64, I64]]]] = {}

    def places(self, worker: int) -> list[int]:
        """First, last, in the worker's first block, in another split's."""
        if self.only is not None:
            return self.only
        kv, last = self.schedule.kv, self.schedule.kv.context - 1
        split = int(self.tables["attn.split"][worker]) if "attn.split" in self.tables else 0
        own, other = (split + 1) * kv.block - 1, 0 if split else kv.block
        return [0, last, min(own, last), other if kv.splits > 1 and other <= last else 0]

    def rows_of_splits(self) -> list[I64]:
        """Of every split that owns a position, what happens at its first (first bit) and at its last (second bit)."""
        kv = self.schedule.kv
        blocks = [range(0, kv.context, kv.block)[split :: kv.splits] for split in range(kv.splits)]
        ends = [(mine[0], min(mine[-1] + kv.block, kv.context) - 1) for mine in blocks if mine]
        return [Footprints(self.schedule, self.programs, [*end, *end]).rows() for end in ends]

    def rows(self) -> I64:
        """[n, 12]"""
        parts = [np.zeros((0, 12), np.int64)]
        for program in self.programs:
            for j, item in enumerate(program.items):
                if type(item.step.op).accesses is Op.accesses:
                    continue
                tag = self._tag_of(item)
                for agent, warp in enumerate(program.roles[j]):
                    worker, entries = self._of_program(item, program, agent)
                    if len(entries):
                        made = np.empty((len(entries), 12), np.int64)
                        made[:, 0] = worker
                        made[:, 1], made[:, 2], made[:, 3:10], made[:, 11] = j, warp, entries, entries[:, 0]
                        made[:, 10] = tag[made[:, 3]]
                        made[:, 7] += np.where(made[:, 7] >= 0, item.token + 1, 0)
                        if item.step.op.perhaps:
                            made[:, 9] &= ~2  # a given token is taken without a look at the candidates
                        parts.append(made)
        return self._placed(np.concatenate(parts))

    def _of_program(self, item: Item, program: Program, agent: int) -> tuple[I64, I64]:
        """(worker, entry) of all workers; known from an earlier iteration that differs in nothing that was asked."""
        step, loops = (id(item.step), agent), item.loops
        known = self._together.setdefault((*step, program.workers.start), [])
        for asked, found in known:
            if all(loops[name] == value for name, value in asked.items()):
                return found
        each = [self._of(item, worker, agent) for worker in program.workers]
        asked = {name: loops[name] for names in self._known[step] for name in names if name in loops}
        made = np.repeat(program.workers, [len(entries) for entries in each]), np.concatenate(each)
        known.append((asked, made))
        return made

    def _of(self, item: Item, worker: int, agent: int) -> I64:
        """Entries (buffer, lo, hi, kind, value, displacement, positions), known from an evaluation that asked the same
        or evaluated."""
        known, loops, columns = self._known.setdefault((id(item.step), agent), {}), item.loops, self.columns
        for names, entries in known.items():
            found = entries.get(tuple([loops[name] if name in loops else columns[name][worker] for name in names]))
            if found is not None:
                return found
        log: dict[str, int] = {}
        bits: dict[tuple[int, ...], int] = {}
        places = self.places(worker)
        for pos in dict.fromkeys(places):
            here = sum(1 << n for n, place in enumerate(places) if place == pos)
            env = _Asked(Env(loops, worker, agent, pos, self.tables), log)
            for access in item.step.op.accesses(env, self.geometry):
                entry = self._entry(access, worker)
                bits[entry] = bits.get(entry, 0) | here
            if "pos" not in log:
                bits = dict.fromkeys(bits, EVERYWHERE)
                break
        if log.pop("pos", None) is not None:
            log["attn.split"] = int(self.tables["attn.split"][worker])
        bits.pop((), None)
        return known.setdefault(tuple(log), {}).setdefault(tuple(log.values()), _joined(bits))

    def _entry(self, access: Access, worker: int) -> tuple[int, ...]:
        """Empty for constants."""
        name, kind, lo, hi, value, origin = access
        if not 0 <= lo < hi <= self.bytes[name]:
            raise Rejected(f"bounds: worker {worker} leaves '{name}'")
        if name in self.constants:
            require(kind == "read", f"constants: '{name}' is written")
            require(value is None, f"constants: '{name}' is read for something else")
            return ()
        require(kind == "write" or value is not None, f"constants: '{name}' is read for one")
        if value not in self.contents:
            self.contents[value] = DONT_CARE if value is None else self.code(*value)
        content = self.contents[value]
        return self.number[name], lo, hi, READ if kind == "read" else WRITE, content, origin - lo

    def code(self, family: str, index: int) -> int:
        """Timeless ones below `DONT_CARE`, which no token is added to."""
        require(0 <= index < LIMIT, "values: index too large")
        name = family.removesuffix(".past")
        code = (self.families.setdefault(name, len(self.families)) * LIMIT + index) * LIMIT
        return -2 - code if name in TIMELESS else code

    def _placed(self, rows: I64) -> I64:
        """Private memory numbered per worker: shared memory by its offset, caches by layer."""
        count, workers, caches = len(self.schedule.buffers), self.schedule.launch.workers, self._caches()
        for number, buffer in enumerate(self.schedule.buffers):
            at = rows[:, 11] == number
            if buffer.space == "shared":
                rows[at, 4:6] += buffer.offset or 0
                rows[at, 8] -= buffer.offset or 0
                rows[at, 3] = count + rows[at, 0]
            elif number in caches:
                rows[at, 4] = self._layers(number, rows[at])
                rows[at, 5], rows[at, 8] = rows[at, 4] + 1, 0
                rows[at, 3] = count + workers * (1 + caches.index(number)) + rows[at, 0]
        return rows

    def _caches(self) -> list[int]:
        ops = {id(item.step): item.step.op for program in self.programs for item in program.items}.values()
        fields = [(op, name) for op in ops for name in ("k_cache", "v_cache") if name in type(op).model_fields]
        names = {getattr(op, name) for op, name in fields}
        return sorted(self.number[name] for name in names)

    def _layers(self, buffer: int, rows: I64) -> I64:
        """The layer of each run of cache rows, all of them rows of the worker's head and split."""
        kv, size = self.schedule.kv, self.schedule.model.head_dim * self.schedule.buffers[buffer].item_bytes
        first, last = rows[:, 4] // size, (rows[:, 5] - 1) // size
        layer, head = np.divmod(first // kv.context, self.schedule.caches)
        block = first % kv.context // kv.block
        mine = (block == last % kv.context // kv.block) | (kv.splits == 1)
        mine &= (first // kv.context == last // kv.context) & (head == self.tables["attn.head"][rows[:, 0]])
        mine &= block % kv.splits == self.tables["attn.split"][rows[:, 0]]
        require(mine.all(), "cache: a worker touches rows of another head or split")
        return layer

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


def _joined(bits: dict[tuple[int, ...], int]) -> I64:
    """Touching bytes with equal content as one entry."""
    spans: dict[tuple[int, ...], list[list[int]]] = {}
    for (buffer, lo, hi, *content), at in sorted(bits.items()):
        known = spans.setdefault((buffer, *content, at), [[lo, lo]])
        if lo <= known[-1][1]:
            known[-1][1] = max(hi, known[-1][1])
        else:
            known.append([lo, hi])
    found = [(key[0], lo, hi, *key[1:]) for key, known in spans.items() for lo, hi in known]
    return np.array(found, np.int64).reshape(-1, 7)
