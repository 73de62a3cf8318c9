"""The flat system: every warp of every worker is an agent, every access at its real position.

Weight streams are taken whole: by the stream lemma a private self-refilled ring adds no edges between agents, so its
chunks are never enumerated (`obligations` proves the lemma's conditions and has the system with every copy as an
event).

Edges: `block` and `wait` have every wait; `word` leaves out what orders nothing but itself (hints, relaxed
operations: their signals still count, from an agent without a past); `fence` leaves out flag words too. See
`two_levels`. Tagged words make single events wait for single events, see `word_events`.

A step that touches flag words is up to three events of a warp: its waits and the words that it writes, all else that it
does, the words that it reads and its signals. Lanes of a warp store and find words one by one, so in `word` and `wait`
whoever has found a word knows that the first of these has run, and only what follows its own last one knows that. In
`block` the first waits for the words that are read and the last announces those that were written: there the step runs
as a whole.

Numbering: agent = worker * warps + warp. Buffers: those of the schedule, then shared memory of each worker. Counters:
instances, then 16 barriers per worker. event_tag = local event of the worker's trace.

Initial content: the launch state, and cache rows below the first position. Final content: outputs, state, last
logits, and every cache row up to the last position.

Where steps accept guesses, how far one moves on is a choice of the data: a system is that of one choice, the same for
every step but the last, after which nothing depends on it. Two steps have one such choice, so all are covered by a
system for each (`Schedule.advances`).

A system of more than `WHOLE` events is made without those that nobody can notice if it may be (see `compact`).

Errors: `TooLarge` beyond `MAX_EVENTS` events, those left out not counted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from amk.schedule_ir.memory import ITEM_BYTES
from amk.schedule_ir.schedule import Schedule
from amk.validator.evidence.compact import GONE, compact
from amk.validator.evidence.word_events import MISSING, join_nodes
from amk.validator.memory.composition import boundary_content
from amk.validator.memory.position_abstraction import steps_with_data
from amk.validator.order.two_levels import Edges, NotComposable
from amk.validator.program.footprint import CACHED, Footprints, code, flat_rows
from amk.validator.program.handoffs import CounterEvents, Instances, tag_of, words
from amk.validator.program.system import I64, WRITE, Bools, System, assemble
from amk.validator.program.trace import BARRIERS, Item, TooLarge, Trace, trace

MAX_EVENTS: Final = 2_500_000
WHOLE: Final = 250_000
"""Events up to which a system has all of them, whoever asks."""
MAX_LISTED: Final = 6_000_000
"""Events that are numbered, whether or not they are left out."""


@dataclass(frozen=True, eq=False)
class Flat:
    """The system with the maps back: event_id[group][worker - first, local event], `GONE` if it is left out; begun and
    ended: the same of the events for the words that it writes and reads.

    accesses [n, 7]: (event before renumbering, buffer, lo, hi, kind, value, delta) of listed workers at position `pos`.
    advance: positions by which a step moves on.
    """

    schedule: Schedule
    pos: int
    advance: int
    accesses: I64
    system: System
    traces: list[Trace]
    event_id: list[I64]
    begun: list[I64]
    ended: list[I64]
    instances: Instances
    footprints: Footprints

    def owner(self, event: int) -> tuple[Trace, int, int]:
        """(trace, worker, local event) of a flat event."""
        for trace_, ids in zip(self.traces, self.event_id, strict=True):
            worker = int(self.system.agent_of[event]) // trace_.warps - trace_.program.first
            if 0 <= worker < len(ids):
                return trace_, worker + trace_.program.first, int(self.system.event_tag[event])
        raise IndexError(event)

    def events_of(self, worker: int, local: I64) -> I64:
        """Flat events of local ones of a worker, `GONE` where they are left out."""
        found: I64 = self.parts_of(worker, local)[1]
        return found

    def parts_of(self, worker: int, local: I64) -> I64:
        """[3, n]: what of local events comes first, in between, and last; `GONE` where there is nothing."""
        programs = [t.program for t in self.traces]
        group = next(g for g, p in enumerate(programs) if p.first <= worker < p.first + p.count)
        parts = (ids[group][worker - programs[group].first, local] for ids in (self.begun, self.event_id, self.ended))
        return np.stack([*parts])

    def waiter(self, event: int, counter: int) -> tuple[Trace, int, int]:
        """`owner` of a flat event's wait for this counter: an event that became one with the next one, or that one."""
        trace_, worker, last = self.owner(event)
        before = (
            int(self.system.event_tag[event - 1])
            if self.system.index_of[event]
            else int(trace_.first[trace_.warp_of[last]]) - 1
        )
        rows = CounterEvents(self.schedule, trace_, self.instances).waits
        rows = rows[(rows[:, 0] == worker) & (rows[:, 2] == counter)][:, 1]
        barrier = counter - self.instances.total - BARRIERS * worker
        if 0 <= barrier < BARRIERS:
            rows = trace_.barrier_waits[trace_.barrier_waits[:, 1] == barrier, 0]
        return trace_, worker, int(min(rows[(rows > before) & (rows <= last)], default=last))


def expand(
    schedule: Schedule,
    pos: int,
    tokens: int,
    edges: Edges = "block",
    touching: Collection[int] | None = None,
    like: Flat | None = None,
    sure: bool = False,
    brief: bool = False,
    advance: int | None = None,
) -> Flat:
    """The flat system of a launch of `tokens` tokens that starts at position `pos`, epoch 0.

    touching: only these workers' accesses are listed (all events stay), for witnesses of large schedules; those of
    the others are evaluated where they may touch flag words, because these make waits. like: a flat system of the same
    schedule and number of tokens, whose parts are used again. sure: without the waits of reads that may not happen
    (`Op.perhaps`), for what must be ordered whatever the data say. brief: if there are more than `WHOLE` events, only
    those that matter (see `compact`). advance: positions by which each step moves on; None: by all of its rows.
    """
    advance = schedule.rows if advance is None else advance
    return _Expansion(schedule, pos, tokens, edges, touching, like, sure, brief, advance).build()


def left_at_most(schedule: Schedule, trace: Trace, signalling: I64, listed: int) -> int:
    """Events of a program's workers in a brief system, at most; signalling: local events that signal; listed: workers
    whose accesses are listed."""
    tagged = {b.name for b in schedule.buffers if b.tagged}
    steps = {item.site.number: item for item in trace.items}
    there = {number for number, item in steps.items() if names(item, tagged)}
    heavy = np.array([item.site.number in there for item in trace.items], bool)[trace.item]
    heavy[trace.barrier_signals[:, 0]] = heavy[signalling] = True
    count = trace.program.count
    return min(count * trace.events, count * (int(heavy.sum()) + trace.warps) + listed * trace.events)


def names(item: Item, buffers: Collection[str]) -> bool:
    """Does the step name one of these buffers?"""
    return not {value for _, value in item.step.op if isinstance(value, str)}.isdisjoint(buffers)


class _Expansion:
    """Rows of all tables, gathered group by group."""

    def __init__(
        self,
        schedule: Schedule,
        pos: int,
        tokens: int,
        edges: Edges,
        touching: Collection[int] | None,
        like: Flat | None,
        sure: bool,
        brief: bool,
        advance: int,
    ) -> None:
        self.sure, self.brief, self.advance = sure, brief, advance
        self.footprints = like.footprints if like else Footprints(schedule)
        self.schedule, self.pos, self.tokens, self.edges = schedule, pos, tokens, edges
        self.instances = like.instances if like else Instances(schedule.counters)
        self.traces = like.traces if like else [trace(schedule, n, tokens) for n in range(len(schedule.programs))]
        self.known = like.accesses if like and (like.pos, like.advance) == (pos, advance) else None
        self.touching = None if touching is None else sorted(touching)
        self.tagged_names = {b.name for b in schedule.buffers if b.tagged}
        self.tagged = [i for i, b in enumerate(schedule.buffers) if b.tagged]
        self.agents = schedule.launch.workers * schedule.launch.warps
        self.extra = 0
        self.counters: dict[int, CounterEvents] = {}
        self.base = np.cumsum([0, *(t.program.count * t.events for t in self.traces)]).tolist()
        self.loose: list[I64] = [np.zeros((0, 3), np.int64)]
        self.agent: list[I64] = []
        self.waits: list[I64] = []
        self.signals: list[I64] = []
        self.parts: list[I64] = [np.zeros((0, 7), np.int64)]

    def build(self) -> Flat:
        self._check_size()
        base, numbers, tags = 0, [], []
        for trace_ in self.traces:
            count = trace_.program.count
            numbers.append(base + np.arange(count * trace_.events).reshape(count, trace_.events))
            tags.append(np.tile(np.arange(trace_.events), count))
            self._group_events(trace_, base)
            if self.known is None:
                self._group_accesses(trace_, base)
            base += count * trace_.events
        self.accesses = np.concatenate(self.parts) if self.known is None else self.known
        self.parts.clear()
        launch = self.schedule.launch
        init = [*self.instances.init().tolist(), *([0] * (BARRIERS * launch.workers))]
        self.extra, self.begun, self.ended = base, np.full(base, GONE), np.full(base, GONE)
        self._split(tags)
        self._add_void(tags)
        self._add_words(tags, init)
        split = self._on_parts(self._touched(self.accesses))
        self.accesses = self._touched(self.accesses)
        initial, final = self._boundary()
        called = {
            "agent_names": self._agent_names(),
            "counter_names": self._counter_names(len(init)),
            "buffer_names": self._buffer_names(),
        }
        place = self._in_turn()
        agent, tag = (np.concatenate(parts)[np.argsort(place)] for parts in (self.agent, tags))
        waits, signals, accesses = (
            np.column_stack((place[table[:, 0]], table[:, 1:]))
            for table in (np.concatenate(self.waits), np.concatenate(self.signals), split)
        )
        for parts in (self.agent, self.waits, self.signals):
            parts.clear()
        left = compact(agent, waits, signals, accesses) if self.brief else None
        if left is not None:
            agent, tag = agent[left.events], tag[left.events]
            waits, signals, accesses = map(left.rows, (waits, signals, accesses))
        system, ids = assemble(self.agents, agent, init, waits, signals, accesses, initial, final, tag, called)
        ids = ids if left is None else np.append(ids, GONE)[left.into]
        ids = np.append(ids[place], GONE)
        parts_of = ([ids[part[n]] for n in numbers] for part in (self.begun, np.arange(base), self.ended))
        begun, event_id, ended = parts_of
        return Flat(
            self.schedule, self.pos, self.advance, self.accesses, system, self.traces, event_id, begun, ended,
            self.instances, self.footprints,
        )  # fmt: skip

    def _split(self, tags: list[I64]) -> None:
        """Give steps that touch flag words their further events."""
        agent, tag, words = np.concatenate(self.agent), np.concatenate(tags), self._words()
        for part, writing, table in ((self.begun, True, self.waits), (self.ended, False, self.signals)):
            events = np.unique(words[(words[:, 4] == WRITE) == writing, 0])
            part[events] = self.extra + np.arange(len(events))
            self.extra += len(events)
            self.agent.append(agent[events])
            tags.append(tag[events])
            table[:] = [np.column_stack((_either(part, rows[:, 0]), rows[:, 1:])) for rows in table]

    def _words(self) -> I64:
        """The accesses to flag words."""
        return self.accesses[np.isin(self.accesses[:, 1], self.tagged)]

    def _on_parts(self, accesses: I64) -> I64:
        """Those to flag words by the events that make them."""
        found = accesses.copy()
        words = np.isin(found[:, 1], self.tagged)
        for part, mine in ((self.begun, found[:, 4] == WRITE), (self.ended, found[:, 4] != WRITE)):
            found[words & mine, 0] = part[found[words & mine, 0]]
        return found

    def _in_turn(self) -> I64:
        """Where each event stands if those of an agent are listed in their order."""
        if not self.tagged:
            return np.arange(self.extra)
        turn = 3 * np.arange(self.extra) + 1
        for part, behind in ((self.begun, -1), (self.ended, 1)):
            there = np.flatnonzero(part != GONE)
            turn[part[there]] = turn[there] + behind
        place = np.empty(self.extra, np.int64)
        place[np.argsort(turn)] = np.arange(self.extra)
        return place

    def _check_size(self) -> None:
        total = sum(t.events * t.program.count for t in self.traces)
        self.brief &= total > WHOLE
        if self.brief and total <= MAX_LISTED:
            signalling = [self._counters(t).signals[:, 1] for t in self.traces]
            parts = zip(self.traces, signalling, strict=True)
            total = sum(left_at_most(self.schedule, t, events, self._listed(t)) for t, events in parts)
        if total > MAX_EVENTS:
            raise TooLarge(f"{total:,} flat events, at most {MAX_EVENTS:,}")

    def _counters(self, trace_: Trace) -> CounterEvents:
        """The waits and signals of a program, evaluated once."""
        number = trace_.program.first
        if number not in self.counters:
            self.counters[number] = CounterEvents(self.schedule, trace_, self.instances)
        return self.counters[number]

    def _listed(self, trace_: Trace) -> int:
        """Workers of the program whose accesses are listed."""
        program = trace_.program
        span = range(program.first, program.first + program.count)
        return program.count if self.touching is None else sum(w in span for w in self.touching)

    def _group_events(self, trace_: Trace, base: int) -> None:
        program, size = trace_.program, trace_.events
        workers = np.arange(program.first, program.first + program.count)
        self.agent.append((workers[:, None] * trace_.warps + trace_.warp_of).reshape(-1))
        bars = self.instances.total + BARRIERS * workers
        for table, rows in ((self.waits, trace_.barrier_waits), (self.signals, trace_.barrier_signals)):
            event = base + (workers - program.first)[:, None] * size + rows[:, 0]
            amount = np.broadcast_to(rows[:, 2], event.shape)
            columns = (event, bars[:, None] + rows[:, 1], amount)
            table.append(np.stack([column.reshape(-1) for column in columns], axis=1))
        events = self._counters(trace_)
        for table, rows in ((self.waits, events.waits), (self.signals, events.signals)):
            weak = rows[:, 4] != 0 if self.edges in ("word", "fence") else np.zeros(len(rows), bool)
            event = base + (rows[:, 0] - program.first) * size + rows[:, 1]
            triples = np.stack((event, rows[:, 2], np.maximum(rows[:, 3], 0)), axis=1)
            table.append(triples[~weak])
            if table is self.signals:
                self.loose.append(triples[weak])

    def _add_void(self, tags: list[I64]) -> None:
        """Weak signals count, but come from an agent that knows nothing."""
        loose = np.concatenate(self.loose)
        loose[:, 0] = self.extra + np.arange(len(loose))
        self.extra += len(loose)
        self.agent.append(np.full(len(loose), self.agents))
        tags.append(np.full(len(loose), -1))
        self.signals.append(loose)
        self.agents += 1

    def _add_words(self, tags: list[I64], init: list[int]) -> None:
        """One counter per writing event and per join node, which waits for its writers; readers wait for it."""
        if self.edges == "fence" or not self.tagged:
            return
        table = self._words()
        group, worker, item = self._place(table[:, 0])
        rows = np.stack((group, worker, item, *table[:, [1, 4, 2, 3]].T), axis=1)
        warp_groups = words(self.schedule, [t.items for t in self.traces], rows)
        if order := [d for d in warp_groups.never if d.code != "AMK202"]:
            raise NotComposable(order[0].message)
        if self.sure:
            always = ~self._perhaps(table, group, item)
            table, group, item = table[always], group[always], item[always]
        tag = self._tags(group, item, table[:, 1])
        found = join_nodes(np.stack((table[:, 0], table[:, 1], tag, *table[:, [4, 2, 3]].T), axis=1))
        writers = sorted({w for join_node in found.writers for w in join_node} - {MISSING})
        counter = {w: len(init) + i for i, w in enumerate(writers)} | {MISSING: len(init) + len(writers)}
        base = len(init) + len(counter)
        init += [0] * (len(counter) + len(found.writers))
        written, read = (self.ended, self.begun) if self.edges == "block" else (self.begun, self.ended)
        signals, asked = (
            np.array(rows, np.int64).reshape(-1, 3)
            for rows in ([(w, counter[w], 1) for w in writers], [(e, base + j, 1) for e, j in found.readers])
        )
        self.signals.append(np.column_stack((_either(written, signals[:, 0]), signals[:, 1:])))
        self.waits.append(np.column_stack((_either(read, asked[:, 0]), asked[:, 1:])))
        first, count = self.extra, len(found.writers)
        self.extra += count
        self.agent.append(self.agents + np.arange(count))
        self.agents += count
        tags.append(np.full(count, -1))
        needs = [(first + j, counter[w], 1) for j, members in enumerate(found.writers) for w in members]
        self.waits.append(np.array(needs, np.int64).reshape(-1, 3))
        self.signals.append(np.array([(first + j, base + j, 1) for j in range(count)], np.int64).reshape(-1, 3))

    def _perhaps(self, table: I64, group: I64, item: I64) -> Bools:
        """Reads that the data may make unnecessary."""
        steps = [[bool(i.step.op.perhaps) for i in t.items] for t in self.traces]
        found: Bools = np.array([steps[g][i] for g, i in zip(group.tolist(), item.tolist(), strict=True)], bool)
        found &= table[:, 4] != WRITE
        return found

    def _tags(self, group: I64, item: I64, buffer: I64) -> I64:
        """The tag that each access writes or looks for."""
        key, which = np.unique(np.stack((group, item, buffer), axis=1), axis=0, return_inverse=True)
        value = [tag_of(self.schedule.buffers[b].tag or 0, self.traces[g].items[i]) for g, i, b in key.tolist()]
        tags: I64 = np.array(value, np.int64)[which.reshape(-1)]
        return tags

    def _place(self, event: I64) -> tuple[I64, I64, I64]:
        """(group, worker, item) of events in the order of listing."""
        group = np.searchsorted(np.array(self.base[1:]), event, side="right")
        worker, item = np.empty_like(event), np.empty_like(event)
        for g, trace_ in enumerate(self.traces):
            at = group == g
            worker[at], local = np.divmod(event[at] - self.base[g], trace_.events)
            worker[at] += trace_.program.first
            item[at] = trace_.item[local]
        return group, worker, item

    def _touched(self, rows: I64) -> I64:
        if self.touching is None:
            return rows
        return rows[np.isin(self._place(rows[:, 0])[1], self.touching)]

    def _group_accesses(self, trace_: Trace, base: int) -> None:
        program = trace_.program
        every = np.arange(program.first, program.first + program.count)
        few = every if self.touching is None else every[np.isin(every, self.touching)]
        for numbers in steps_with_data(trace_):
            items = [trace_.items[n] for n in numbers.reshape(-1).tolist()]
            workers = every if self._on_words(items[0]) else few
            here = np.array([[self.pos + self.advance * max(item.token, 0)] for item in items], np.int64)
            found = self.footprints.of(items, workers, np.repeat(here, len(workers), axis=1))
            rows, warp = (
                flat_rows(self.footprints, items, found),
                trace_.roles[items[0].step.op.role].start + found.agent,
            )
            event = base + (found.worker - program.first) * trace_.events
            event += trace_.event_of[numbers.reshape(-1)[found.item], warp]
            accesses = np.column_stack((event, rows))
            if self.touching is not None and workers is every:
                # of workers that are not listed, only words matter
                accesses = accesses[np.isin(rows[:, 0], self.tagged) | np.isin(found.worker, self.touching)]
            self.parts.append(accesses)

    def _on_words(self, item: Item) -> bool:
        """Does the step name a tagged buffer, where these matter?"""
        return self.edges != "fence" and names(item, self.tagged_names)

    def _boundary(self) -> tuple[I64, I64]:
        initial, final = boundary_content(self.schedule, self.tokens)
        end = self.pos + (self.tokens - 1) * self.advance + self.schedule.rows
        return (
            np.concatenate((initial, self._cache_rows(self.pos))),
            np.concatenate((final, self._cache_rows(end))),
        )

    def _cache_rows(self, upto: int) -> I64:
        """Positions [0, upto) of every layer and head hold what was appended for them."""
        schedule = self.schedule
        row = schedule.model.head_dim * ITEM_BYTES[schedule.kv.dtype]
        found = []
        for family in sorted(CACHED) if upto and schedule.model.layers else ():
            number = self.footprints.number[f"{family}_cache"]
            for layer in range(schedule.model.layers):
                for head in range(schedule.caches):
                    start = (layer * schedule.caches + head) * schedule.kv.context * row
                    value = code(family, layer)
                    found.append((number, start, start + upto * row, value, 0))
        return np.array(found, np.int64).reshape(-1, 5)

    def _buffer_names(self) -> tuple[str, ...]:
        workers = self.schedule.launch.workers
        return (*(b.name for b in self.schedule.buffers), *(f"shared memory of worker {w}" for w in range(workers)))

    def _agent_names(self) -> tuple[str, ...]:
        launch = self.schedule.launch
        warps = [f"worker {w} warp {a}" for w in range(launch.workers) for a in range(launch.warps)]
        others = ["weak signals", *(f"words {j}" for j in range(self.agents - len(warps) - 1))]
        return (*warps, *others)

    def _counter_names(self, total: int) -> tuple[str, ...]:
        names = [self.instances.name(i) for i in range(self.instances.total)]
        names += [f"barrier {b} of worker {w}" for w in range(self.schedule.launch.workers) for b in range(BARRIERS)]
        return (*names, *(f"words {i}" for i in range(total - len(names))))


def _either(part: I64, events: I64) -> I64:
    """Of each event the part that it has, or itself."""
    found: I64 = np.where(part[events] == GONE, events, part[events])
    return found
