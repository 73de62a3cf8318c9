"""Who waits for whom: events on global counters, and flag words read as counters.

Counters. Waits and signals on global counters, evaluated for every worker of a program at once.

A counter instance is one cell of a counter family; instances of all families are numbered in schedule order. Rows are
(worker, local event, instance, threshold or amount, weak): weak marks operations that order no memory but their own
word - relaxed ones, and those on hints.

Only steps that wait or signal are visited; expressions are evaluated on arrays over the workers.

Flag words. A read of them re-reads until every word carries the reader's tag. Words of one buffer written by one worker
are one single-owner counter: it counts the worker's steps that write the buffer, and tag v is the k-th of them. This
reading (`>=` in place of `==`) is right if no word is overwritten while a reader may still look for its old tag; that
is the write-after-read check on the buffer, which `compose` makes with these edges and those of hints.

Conditions, AMK513 otherwise: tags are in scope, positive, and grow from one writing step of a worker to the next, so
that no tag repeats and the zeroed memory of a first launch matches none; a word has one writing worker.

A *need* says: warp group `item` of `worker` reads words of a buffer owned by certain writers, with a certain tag.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Buffer, Counter
from amk.schedule_ir.schedule import Schedule, Signal, Wait
from amk.validator.program.system import I64, WRITE, Bools
from amk.validator.program.trace import Item, Path, Trace

ROW = 5


@dataclass(frozen=True, eq=False)
class Instances:
    """Numbering of counter instances: instance = base[family] + row-major index."""

    counters: tuple[Counter, ...]

    @cached_property
    def base(self) -> dict[str, int]:
        ends = np.cumsum([0, *(c.count for c in self.counters)]).tolist()
        return {c.name: int(b) for c, b in zip(self.counters, ends, strict=False)}

    @cached_property
    def by_name(self) -> dict[str, Counter]:
        return {c.name: c for c in self.counters}

    @cached_property
    def total(self) -> int:
        return sum(c.count for c in self.counters)

    def init(self) -> I64:
        return np.repeat([c.init for c in self.counters], [c.count for c in self.counters]).astype(np.int64)

    def family(self, instance: int) -> tuple[Counter, tuple[int, ...]]:
        """(counter, index) of an instance."""
        for counter in self.counters:
            offset = instance - self.base[counter.name]
            if 0 <= offset < counter.count:
                return counter, tuple(int(i) for i in np.unravel_index(offset, counter.shape))
        raise IndexError(instance)

    def name(self, instance: int) -> str:
        counter, index = self.family(instance)
        return f"{counter.name}[{','.join(map(str, index))}]"


class CounterEvents:
    """Evaluates the waits and signals of one trace for workers [first, first + count)."""

    def __init__(self, schedule: Schedule, trace: Trace, instances: Instances) -> None:
        self.schedule, self.trace, self.instances = schedule, trace, instances
        program = trace.program
        self.workers = np.arange(program.first, program.first + program.count)
        self.tables = {name: np.array(column, dtype=np.int64) for name, column in schedule.tables.items()}

    @cached_property
    def waits(self) -> I64:
        """[n, 5] (worker, event, instance, threshold, weak)."""
        return self._rows(waiting=True)

    @cached_property
    def signals(self) -> I64:
        """[n, 5] (worker, event, instance, amount, weak); amount 0 is left out."""
        rows = self._rows(waiting=False)
        kept: I64 = rows[rows[:, 3] != 0]
        return kept

    def _rows(self, waiting: bool) -> I64:
        found: list[I64] = []
        for i, item in enumerate(self.trace.items):
            entries: tuple[Wait, ...] | tuple[Signal, ...] = item.step.waits if waiting else item.step.signals
            if not entries:
                continue
            role = self.trace.roles[item.step.op.role]
            for warp in role:
                event = int(self.trace.event_of[i, warp])
                if not waiting and event + 1 < self.trace.events and self.trace.leave[event + 1]:
                    event += 1
                found += [self._row(entry, event, item.loops, warp - role.start) for entry in entries]
        return np.concatenate(found) if found else np.zeros((0, ROW), np.int64)

    def _row(self, entry: Wait | Signal, event: int, loops: dict[str, int], agent: int) -> I64:
        env = Env(loops=loops, worker=self.workers, agent=agent, tables=self.tables)
        waiting = isinstance(entry, Wait)
        amount = entry.at_least if isinstance(entry, Wait) else entry.add
        strong = entry.order == ("acquire" if waiting else "release")
        rows = np.empty((len(self.workers), ROW), np.int64)
        rows[:, 0], rows[:, 1] = self.workers, event
        rows[:, 2] = self._instance(entry, env)
        rows[:, 3] = env.eval(amount)
        rows[:, 4] = not strong or self.instances.by_name[entry.counter].handoff == "hint"
        return rows

    def _instance(self, entry: Wait | Signal, env: Env) -> I64:
        counter = self.instances.by_name[entry.counter]
        flat = np.zeros(len(self.workers), np.int64)
        for dim, expr in zip(counter.shape, entry.index, strict=True):
            flat = flat * dim + env.eval(expr)
        flat += self.instances.base[entry.counter]
        return flat


POISON: Final = 2**32 - 1
"""The tag that words have when the host has poisoned them; memory that is new has 0."""


@dataclass(frozen=True, eq=False)
class FlagWords:
    """writes: (group, worker, item, counter) rows, one per writing step; join_nodes: writer counters of each
    distinct set.

    needs: (group, worker, item, join node, rank) rows, one per reading warp_group: its set of writers, and which of
    the targets of that join node it waits for. Rank r of a join node means: its writers have finished the steps in
    row r of its targets (k per writer counter).
    """

    writes: I64
    needs: I64
    counters: int
    join_nodes: list[I64]
    targets: list[I64]
    never: list[Diagnostic]

    @cached_property
    def empty(self) -> bool:
        return not len(self.writes) and not len(self.needs)


def words(schedule: Schedule, items: list[list[Item]], rows: I64) -> FlagWords:
    """Counters and needs from the global rows (group, worker, item, buffer, kind, lo, hi) on tagged buffers."""
    parts = [FlagWords(np.zeros((0, 4), np.int64), np.zeros((0, 5), np.int64), 0, [], [], [])]
    rows = rows[np.argsort(rows[:, 3], kind="stable")]
    for mine in np.split(rows, np.flatnonzero(np.diff(rows[:, 3])) + 1) if len(rows) else ():
        parts.append(_OfBuffer(schedule, items, int(mine[0, 3])).words(mine))
    return _together(parts)


def _together(parts: list[FlagWords]) -> FlagWords:
    """The words of several buffers, counters and join nodes numbered through."""
    writes, needs, members = [], [], []
    counters = join_nodes = 0
    for part in parts:
        writes.append(part.writes + np.array([0, 0, 0, counters]))
        needs.append(part.needs + np.array([0, 0, 0, join_nodes, 0]))
        members += [join_node + counters for join_node in part.join_nodes]
        counters, join_nodes = counters + part.counters, join_nodes + len(part.join_nodes)
    targets = [target for part in parts for target in part.targets]
    never = [finding for part in parts for finding in part.never]
    return FlagWords(np.concatenate(writes), np.concatenate(needs), counters, members, targets, never)


class _OfBuffer:
    """The words of one buffer, and what is wrong with them."""

    def __init__(self, schedule: Schedule, items: list[list[Item]], buffer: int) -> None:
        self.buffer, self.tag, self.items = buffer, schedule.buffers[buffer].tag or 0, items
        self.name = schedule.buffers[buffer].name
        self.join_nodes: list[I64] = []
        self.targets: list[I64] = []
        self.never: list[Diagnostic] = []

    def words(self, rows: I64) -> FlagWords:
        written, reading = rows[rows[:, 4] == WRITE], rows[rows[:, 4] != WRITE]
        writes, ranks = self._count(written)
        owned = self._spans(written)
        reading = reading.take(np.argsort(_warp_groups(reading), kind="stable"), axis=0)
        first = np.flatnonzero(np.diff(_warp_groups(reading), prepend=-1))
        print_of, prints = _prints(reading, np.append(first, len(reading)))
        covers = [owned.covering(spans) for spans in prints]
        needs = self._need(ranks, reading[first, :3], print_of, covers)
        return FlagWords(writes, needs, len(ranks.workers), self.join_nodes, self.targets, self.never)

    def _tags(self, steps: I64) -> I64:
        """What the steps (group, worker, item) write, or look for."""
        places, which = np.unique(steps[:, 0] << 32 | steps[:, 2], return_inverse=True)
        tags = [tag_of(self.tag, self.items[place >> 32][place & 0xFFFFFFFF]) for place in places.tolist()]
        found: I64 = np.array(tags, np.int64)[which.reshape(-1)]
        return found

    def _path(self, step: I64) -> Path:
        return self.items[int(step[0])][int(step[2])].site.path

    def _count(self, written: I64) -> tuple[I64, _Ranks]:
        """One counter per writing worker; its writing steps in program order, with growing tags."""
        steps = written[np.unique(_warp_groups(written), return_index=True)[1], :3]
        worker, tag = steps[:, 1], self._tags(steps)
        fresh = np.diff(worker, prepend=-1) != 0
        bad = tag <= np.where(fresh, 0, np.concatenate(([0], tag[:-1]))) if len(tag) else fresh
        for at in np.flatnonzero(bad).tolist():
            before = 0 if fresh[at] else tag[at - 1]
            held = f"words that tag {before} was written to" if before else "memory that begins as zeros"
            message = f"'{self.name}' gets tag {tag[at]} over {held}: tags must grow"
            why = "a reader could take an old word for the one it waits for"
            self.never.append(finding("AMK513", message, self._path(steps[at]), why))
        ranks = _Ranks(worker, tag, fresh)
        return np.concatenate((steps, ranks.counter[:, None]), axis=1), ranks

    def _spans(self, written: I64) -> _Owned:
        spans = _distinct_rows(written[:, [5, 6, 1]])
        overlap = np.flatnonzero((spans[1:, 0] < spans[:-1, 1]) & (spans[1:, 2] != spans[:-1, 2]))
        if len(overlap):
            one, other = spans[overlap[0] : overlap[0] + 2, 2].tolist()
            message = f"workers {one} and {other} write the same words of '{self.name}'"
            self.never.append(finding("AMK513", message, ("buffers", self.buffer), "a flag word has one owner"))
        return _Owned(spans[:, 0], np.maximum.accumulate(spans[:, 1]) if len(spans) else spans[:, 1], spans[:, 2])

    def _need(self, ranks: _Ranks, warp_groups: I64, print_of: I64, covers: list[I64 | None]) -> I64:
        """What every reading warp group waits for; warp_groups: (group, worker, item)."""
        number: dict[bytes, int] = {}
        members = [cover for cover in covers if cover is not None]
        set_of = np.array([-1 if c is None else number.setdefault(c.tobytes(), len(number)) for c in covers], np.int64)
        sets = {number[cover.tobytes()]: cover for cover in members}
        tag = self._tags(warp_groups)
        which = set_of[print_of]
        join_node, rank = np.full(len(warp_groups), -1, np.int64), np.zeros(len(warp_groups), np.int64)
        for one in range(len(sets)):
            at = np.flatnonzero(which == one)
            found, row_of = ranks.targets(sets[one], tag[at])
            join_node[at] = np.where(row_of >= 0, len(self.join_nodes), -1)
            rank[at] = row_of
            if len(found):
                self.join_nodes.append(np.searchsorted(ranks.workers, sets[one]))
                self.targets.append(found)
        for lost in np.flatnonzero(join_node < 0).tolist():
            reader = f"worker {warp_groups[lost, 1]} waits for words of '{self.name}'"
            message = f"{reader} with tag {tag[lost]} that no step writes"
            self.never.append(finding("AMK202", message, self._path(warp_groups[lost])))
        needs = np.concatenate((warp_groups, join_node[:, None], rank[:, None]), axis=1)
        kept: I64 = needs[join_node >= 0]
        return kept


class _Ranks:
    """Which tags the workers write to one buffer, and as their how-manieth step.

    worker, tag: of all writing steps, by worker in program order; fresh: a worker's first.
    """

    def __init__(self, worker: I64, tag: I64, fresh: Bools) -> None:
        self.workers = worker[fresh]
        self.counter = owner = np.cumsum(fresh) - 1
        self.tags = np.unique(tag)
        self.table = np.zeros((len(self.workers), len(self.tags)), np.int64)
        self.table[owner, np.searchsorted(self.tags, tag)] = np.arange(len(tag)) - np.flatnonzero(fresh)[owner] + 1

    def targets(self, workers: I64, tag: I64) -> tuple[I64, I64]:
        """(steps [n, workers] that write each tag wanted, in the order of tags; which of them serves each of `tag`).

        A tag that one of the workers never writes has none: -1.
        """
        column = np.minimum(np.searchsorted(self.tags, tag), len(self.tags) - 1)
        table = self.table[np.searchsorted(self.workers, workers)]
        known = (self.tags[column] == tag) & (table.min(axis=0, initial=1)[column] > 0)
        there = np.bincount(column[known], minlength=len(self.tags)) > 0
        place = np.where(known, (np.cumsum(there) - 1)[column], -1)
        return table[:, there].T, place


def _distinct_rows(rows: I64) -> I64:
    """In ascending order. As `np.unique`, which compares whole rows byte by byte, in a fraction of its time."""
    rows = rows[np.lexsort(rows.T[::-1])]
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return rows[fresh]


def _warp_groups(rows: I64) -> I64:
    """(group, worker, item) of each row as one number."""
    return rows[:, 0] << 50 | rows[:, 1] << 25 | rows[:, 2]


def _prints(rows: I64, bounds: I64) -> tuple[I64, list[I64]]:
    """Rows bounds[k]..bounds[k+1]-1 belong to warp group k: the number of the set of spans it reads, and the sets."""
    size = np.diff(bounds)
    print_of = np.empty(len(size), np.int64)
    sets: list[I64] = []
    for count in np.unique(size).tolist():
        at = np.flatnonzero(size == count)
        spans = rows[bounds[at][:, None] + np.arange(count), 5:7].reshape(len(at), -1)
        texts = [row.tobytes() for row in spans]
        first = {text: n for n, text in reversed([*enumerate(texts)])}
        distinct, which = np.unique(spans[[*first.values()]], axis=0, return_inverse=True)
        rank = dict(zip(first, which.reshape(-1).tolist(), strict=True))
        print_of[at] = len(sets) + np.array([rank[text] for text in texts])
        sets += list(distinct.reshape(len(distinct), count, 2))
    return print_of, sets


class _Owned:
    """Disjoint byte spans in order with the worker that owns each."""

    def __init__(self, start: I64, end: I64, owner: I64) -> None:
        self.start, self.end, self.owner = start, end, owner
        self.gaps = np.concatenate(([0], np.cumsum(start[1:] > end[:-1])))

    def covering(self, spans: I64) -> I64 | None:
        """Workers that own bytes of the spans; None if some byte has no owner."""
        lo, hi = spans[:, 0], spans[:, 1]
        first, last = np.searchsorted(self.end, lo, side="right"), np.searchsorted(self.start, hi, side="left")
        if (first >= last).any() or (self.start[first] > lo).any() or (self.end[last - 1] < hi).any():
            return None
        # no gap between one owned span and the next, where a read reaches over both
        if (self.gaps[last - 1] > self.gaps[first]).any():
            return None
        size = len(self.owner) + 1
        inside = np.cumsum(np.bincount(first, minlength=size) - np.bincount(last, minlength=size))
        found: I64 = np.unique(self.owner[inside[:-1] > 0])
        return found


def tag_of(tag: Expr, item: Item) -> int:
    return Env(loops=item.loops, worker=0).eval_int(tag)


def check_tags(schedule: Schedule, items: list[list[Item]]) -> Iterator[Diagnostic]:
    """M13 conditions that do not depend on the worker, of every buffer that a step uses."""
    layers = max((item.loops.get("l", 0) + 1 for group in items for item in group), default=1)
    tagged = {b.name for b in schedule.buffers if b.tagged or b.tag is not None}
    found = {id(item.site): item for group in items for item in group}
    named = {
        key: {v for f, v in item.step.op if isinstance(v, str) and v in tagged and f != "op"}
        for key, item in found.items()
    }
    uses = [(item, named[id(item.site)]) for group in items for item in group if named[id(item.site)]]
    used = {name for _, names in uses for name in names}
    for number, buffer in enumerate(schedule.buffers):
        if buffer.name in used and (problem := _tag_problem(buffer, layers, schedule.launch.max_tokens)):
            yield finding("AMK513", problem, ("buffers", number), f"a token has {layers} layers")
    tags = {b.name: {"t", *(b.tag if isinstance(b.tag, dict) else ())} - {"1"} for b in schedule.buffers if b.tagged}
    for item, names in uses:
        if any(tags[name] - set(item.loops) for name in names if name in tags):
            yield finding("AMK513", "a tagged buffer is used where its tag has no value", (*item.site.path, "op"))


def _tag_problem(buffer: Buffer, layers: int, tokens: int) -> str | None:
    """Why the buffer's tags cannot work in a launch of so many tokens, whoever uses them."""
    if buffer.tagged != (buffer.tag is not None):
        return "a tagged buffer has a tag, others have none"
    if buffer.tag is None:
        return None
    if buffer.space == "shared":
        return "flag words cross workers, this buffer is shared memory"
    if buffer.role != "scratch":
        return "flag words are scratch: what survives a launch would carry an old tag"
    if not isinstance(buffer.tag, dict) or set(buffer.tag) - {"t", "l", "1"} or buffer.tag.get("t", 0) <= 0:
        return "the tag must grow with the token t and name nothing but t and l"
    if not 0 <= buffer.tag.get("l", 0) * (layers - 1) < buffer.tag["t"]:
        return "tags of one token reach into those of the next"
    least = buffer.tag.get("1", 0)
    if not (least > 0 and least + buffer.tag["t"] * tokens <= POISON):
        return f"the tags of {tokens:,} tokens do not all lie in 1..2^32 - 2, but a word has 32 bits for its tag"
    return None
