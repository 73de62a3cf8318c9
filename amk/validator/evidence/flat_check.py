"""The check event by event, where the composed check cannot decompose a schedule or no run confirms its finding.

The composed check takes a step that touches flag words as one, whichever warps run it, and wants the writes of one
buffer wholly one after the other. Here every warp is an agent of its own, and the questions of `compose` are put to
the flat system at every position.

Property: as `compose`, for the launches of two tokens that start at one position, and where steps accept guesses, by
how many positions the first one moves on. `FlatCheck.positions` lists all positions, or some if there are too many.
Tokens beyond the second follow from `induction.tokens`, as there. A finding at one position is UNSAFE with its
witness; only no finding at all positions, and in all `advances`, is SAFE.

Cost: three or four flat systems and their clocks per position; `EVENTS` bounds what is done in all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from amk.schedule_ir.schedule import Schedule
from amk.validator.evidence.flat_system import Flat, expand
from amk.validator.memory.composition import LIMIT, TOKENS, Blocking, Composition, Start, accesses, groups_of
from amk.validator.memory.races import blocks, find_faults, touches_of
from amk.validator.order.clocks import Clocks, must_clocks
from amk.validator.order.greedy_run import Run, greedy
from amk.validator.order.two_levels import Edges, Group
from amk.validator.program.handoffs import Instances
from amk.validator.program.system import I64, Bools, System

EVENTS: Final = 120_000
"""Flat events times positions that are checked."""
LARGEST: Final = 30_000
"""Events of the largest system that is looked at."""
SAMPLED: Final = 6
"""Positions looked at when there are too many."""


SYNCHRONISATION: Final = (
    "agent_first", "wait_first", "wait_counter", "wait_threshold", "signal_first", "signal_counter", "signal_amount"
)  # fmt: skip


class FlatOrder:
    """Order of the flat events under one kind of edges (`Ordering`)."""

    def __init__(self, flat: Flat, groups: list[Group], cache: dict[bytes, Clocks]) -> None:
        """cache: clocks by the waits and signals that they follow from; most positions agree on these."""
        self.flat, self.groups = flat, groups
        self.system: System = flat.system
        key = b"".join(getattr(flat.system, name).tobytes() for name in SYNCHRONISATION)
        if key not in cache:
            cache[key] = must_clocks(greedy(flat.system))
        self.run: Run = replace(cache[key].run, system=flat.system)
        self.clocks = replace(cache[key], run=self.run)

    def placed(self, numbers: I64) -> I64:
        found: I64 = self.run.position[numbers]
        return found

    def precedes(self, before: I64, after: I64) -> Bools:
        return self.clocks.precedes(before, after)

    precedes_plainly = precedes

    def node(self, number: int) -> tuple[Group, int, int]:
        trace, worker, event = self.flat.owner(number)
        return next(g for g in self.groups if g.first == trace.program.first), worker, event

    def numbers(self, worker: I64, event: I64) -> I64:
        found = np.empty_like(worker)
        for group in self.groups:
            mine = (worker >= group.first) & (worker < group.first + group.count)
            found[mine] = self.flat.event_id[group.number][worker[mine] - group.first, event[mine]]
        return found


class FlatCheck:
    """The flat systems of launches of one schedule, position by position."""

    def __init__(self, schedule: Schedule, tokens: int = TOKENS) -> None:
        self.schedule, self.tokens = schedule, tokens
        self.instances = Instances(schedule.counters)
        self.groups = groups_of(schedule, tokens, self.instances)
        self.tagged = [i for i, b in enumerate(schedule.buffers) if b.tagged]
        self.known: Flat | None = None
        self._clocks: dict[bytes, Clocks] = {}

    def positions(self) -> tuple[list[int], bool]:
        """Where a launch may start, and whether these are all positions. Live sequences are tried side by side only, so
        what is wrong there is wrong, and nothing is proved; nor is it where the context has no room for the tokens."""
        last = self.schedule.kv.context - self.tokens * self.schedule.rows
        if last < 0:
            return [], False
        events = sum(g.count * g.order.trace.events for g in self.groups) * len(self.advances)
        room = EVENTS // events if events <= LARGEST * len(self.advances) else 0
        if room > last:
            return list(range(last + 1)), not self.schedule.live
        count = min(room, SAMPLED)
        return sorted({last * i // max(count - 1, 1) for i in range(count)}), False

    @property
    def advances(self) -> list[int]:
        """By how many positions the first step may move on, if another one follows it."""
        return [*self.schedule.advances] if self.tokens > 1 else [self.schedule.rows]

    def _flat(self, start: Start, edges: Edges, sure: bool = True) -> Flat:
        pos, advance = start
        self.known = expand(self.schedule, pos, self.tokens, edges, like=self.known, sure=sure, advance=advance)
        return self.known

    def _order(self, flat: Flat) -> FlatOrder:
        return FlatOrder(flat, self.groups, self._clocks)

    def at(self, pos: int, advance: int | None = None) -> Composition:
        """What `compose` answers, for launches that start at `pos` and whose steps move on by `advance`, or by all of
        their rows; nodes are flat events."""
        start = pos, self.schedule.rows if advance is None else advance
        block = self._flat(start, "block", sure=False)
        result = Composition(self.schedule, self.tokens, self.groups, self.instances, at=start)
        result.outside, result.clashes = block.footprints.outside, block.footprints.clashes
        result.written_constants = frozenset(block.footprints.written_constants)
        result.private, result.weak = ("shared memory",), True
        run = greedy(block.system)
        result.complete = run.complete
        if not result.complete:
            return result
        least, fence = (self._order(self._flat(start, edges)) for edges in ("word", "fence"))
        blocking = Blocking(least, lambda: self._order(self._flat(start, "wait")))
        result.order, result.dataflow = least, find_faults(blocks(touches_of(run)), LIMIT)
        rows, nothing = _rows(block.system), np.zeros((0, 5), np.int64)
        found = accesses(rows, run.position[rows[:, 0]], self.tagged, (nothing, nothing))
        result.races, result.unseen = found.unseen(least, fence)
        result.overwritten = found.overwritten(blocking)
        result.relaxed_waits, result.fence = blocking.with_relaxed_waits, fence
        return result


def _rows(system: System) -> I64:
    """(event, buffer, kind, lo, hi, value, delta) of every access."""
    event = np.repeat(np.arange(system.events), np.diff(system.access_first))
    columns = (
        event, system.access_buffer, system.access_kind, system.access_lo, system.access_hi, system.access_value,
        system.access_delta,
    )  # fmt: skip
    return np.stack([np.asarray(c, np.int64) for c in columns], axis=1)
