"""The flat system: every warp of every worker is an agent, every access at its real position.

Weight streams are taken whole: by the stream lemma a private self-refilled ring adds no edges between agents, so its
chunks are never enumerated (`rings` proves the lemma's conditions and has the system with every copy as an event).

Numbering: agent = worker * warps + warp. Buffers: those of the schedule, then shared memory of each worker. Counters:
instances, then 16 barriers per worker. event_tag = local event of the worker's trace.

Initial content: the launch state, and cache rows below the first position. Final content: outputs, state, last logits,
and every cache row up to the last position.

Errors: `TooLarge` beyond `MAX_EVENTS` events.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from amk.schedule_ir.schedule import Schedule
from amk.validator.builder import assemble
from amk.validator.compose import boundary_content
from amk.validator.counter_events import CounterEvents, Instances
from amk.validator.envelope import FAMILY_SHIFT, NO_DATA
from amk.validator.footprint import CACHED, SHARED, Footprints, with_token
from amk.validator.system import I64, System
from amk.validator.trace import TooLarge, Trace, trace

MAX_EVENTS: Final = 4_000_000
BARRIERS: Final = 16


@dataclass(frozen=True, eq=False)
class Flat:
    """The system with the maps back: event_id[group][worker - first, local event]."""

    schedule: Schedule
    system: System
    traces: list[Trace]
    event_id: list[I64]
    instances: Instances
    footprints: Footprints

    def owner(self, event: int) -> tuple[Trace, int, int]:
        """(trace, worker, local event) of a flat event."""
        for trace_, ids in zip(self.traces, self.event_id, strict=True):
            worker = int(self.system.agent_of[event]) // trace_.warps - trace_.program.first
            if 0 <= worker < len(ids):
                return trace_, worker + trace_.program.first, int(self.system.event_tag[event])
        raise IndexError(event)


def expand(schedule: Schedule, pos: int, tokens: int, touching: Collection[int] | None = None) -> Flat:
    """The flat system of a launch of `tokens` tokens that starts at position `pos`, epoch 0.

    touching: only these workers' accesses are listed (all events stay), for witnesses of large schedules.
    """
    return _Expansion(schedule, pos, tokens, touching).build()


class _Expansion:
    """Rows of all tables, gathered group by group."""

    def __init__(self, schedule: Schedule, pos: int, tokens: int, touching: Collection[int] | None) -> None:
        self.schedule, self.pos, self.tokens = schedule, pos, tokens
        self.instances = Instances(schedule.counters)
        self.footprints = Footprints(schedule)
        self.traces = [trace(schedule, n, tokens) for n in range(len(schedule.programs))]
        self.touching = None if touching is None else sorted(touching)
        self.agent: list[I64] = []
        self.waits: list[I64] = []
        self.signals: list[I64] = []
        self.accesses: list[I64] = [np.zeros((0, 7), np.int64)]

    def build(self) -> Flat:
        total = sum(t.events * t.program.count for t in self.traces)
        if total > MAX_EVENTS:
            raise TooLarge(f"{total:,} flat events, at most {MAX_EVENTS:,}")
        base, numbers, tags = 0, [], []
        for number, trace_ in enumerate(self.traces):
            count = trace_.program.count
            numbers.append(base + np.arange(count * trace_.events).reshape(count, trace_.events))
            tags.append(np.tile(np.arange(trace_.events), count))
            self._group_events(trace_, base)
            self._group_accesses(number, trace_, base)
            base += count * trace_.events
        launch = self.schedule.launch
        initial, final = self._boundary()
        init = [*self.instances.init().tolist(), *([0] * (BARRIERS * launch.workers))]
        names = {
            "agent_names": tuple(f"worker {w} warp {a}" for w in range(launch.workers) for a in range(launch.warps)),
            "counter_names": self._counter_names(),
            "buffer_names": self._buffer_names(),
        }
        system, ids = assemble(
            launch.workers * launch.warps, np.concatenate(self.agent), init, np.concatenate(self.waits),
            np.concatenate(self.signals), np.concatenate(self.accesses), initial, final, np.concatenate(tags), names,
        )  # fmt: skip
        return Flat(self.schedule, system, self.traces, [ids[n] for n in numbers], self.instances, self.footprints)

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
        events = CounterEvents(self.schedule, trace_, self.instances)
        for table, rows in ((self.waits, events.waits), (self.signals, events.signals)):
            event = base + (rows[:, 0] - program.first) * size + rows[:, 1]
            table.append(np.stack((event, rows[:, 2], np.maximum(rows[:, 3], 0)), axis=1))

    def _group_accesses(self, number: int, trace_: Trace, base: int) -> None:
        program = trace_.program
        tokenless = np.array([self.footprints.code(family, 0) >> FAMILY_SHIFT for family in CACHED])
        span = range(program.first, program.first + program.count)
        for i, item in enumerate(trace_.items):
            if isinstance(item.step.op, NO_DATA):
                continue
            pos = [self.pos + max(item.token, 0)] * len(span)
            role = trace_.roles[item.step.op.role]
            for warp in role:
                prints = self.footprints.of_workers(number, item, warp - role.start, span, pos)
                rows = np.concatenate([f.rows for f in prints])
                worker = np.repeat(np.arange(span.start, span.stop), [len(f.rows) for f in prints])
                event = base + (worker - span.start) * trace_.events + trace_.event_of[i, warp]
                buffer = np.where(rows[:, 0] == SHARED, len(self.schedule.buffers) + worker, rows[:, 0])
                value = with_token(rows[:, 4], item.token, tokenless)
                made = np.stack((event, buffer, rows[:, 2], rows[:, 3], rows[:, 1], value, rows[:, 5]), axis=1)
                self.accesses.append(made if self.touching is None else made[np.isin(worker, self.touching)])

    def _boundary(self) -> tuple[I64, I64]:
        initial, final = boundary_content(self.schedule, self.footprints, self.tokens)
        return (
            np.concatenate((initial, self._cache_rows(self.pos))),
            np.concatenate((final, self._cache_rows(self.pos + self.tokens))),
        )

    def _cache_rows(self, upto: int) -> I64:
        """Positions [0, upto) of every layer and head hold what was appended for them."""
        schedule = self.schedule
        row = schedule.model.head_dim * 2
        found = []
        for family in sorted(CACHED) if upto else ():
            number = self.footprints.number[f"{family}_cache"]
            for layer in range(schedule.model.layers):
                for head in range(schedule.model.kv_heads):
                    start = (layer * schedule.model.kv_heads + head) * schedule.kv.context * row
                    value = self.footprints.code(family, layer)
                    found.append((number, start, start + upto * row, value, 0))
        return np.array(found, np.int64).reshape(-1, 5)

    def _buffer_names(self) -> tuple[str, ...]:
        workers = self.schedule.launch.workers
        return (*(b.name for b in self.schedule.buffers), *(f"shared memory of worker {w}" for w in range(workers)))

    def _counter_names(self) -> tuple[str, ...]:
        barriers = (f"barrier {b} of worker {w}" for w in range(self.schedule.launch.workers) for b in range(BARRIERS))
        return (*(self.instances.name(i) for i in range(self.instances.total)), *barriers)
