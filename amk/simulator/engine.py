"""The event loop: groups of workers run their steps, wait for each other's signals and words, and share the memory.

A group's warps have a clock each. Steps without memory traffic advance the clocks at once; a gemv and the reads of the
cache go through `Supply`, and a wait blocks until the signals it needs were given. A wait for signals of everybody is
exact; one for some of them counts signals by their time among those known when it is met.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import ulp
from typing import Literal, NamedTuple

import numpy as np

from amk.schedule_ir.in_flight import blocks_together
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.prefetch_cache import PrefetchCacheOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.simulator.acts import Act, acts
from amk.simulator.constants import Constants
from amk.simulator.program import Group, Window
from amk.simulator.signals import Cell
from amk.simulator.supply import NEVER, Supply
from amk.simulator.words import Words

ROUND_BYTES = 512
KIB = 1024
BF16_ROWS = 16
"""Bytes of a column of a bf16 chunk: 8 rows."""
SPANS_PER_TRIP = 2
"""Keys and values of so many blocks as attention holds at a time are fetched together, and the next ones after them."""
LATE = 1e-9

Part = Literal["memory", "drain", "cache", "waiting", "hand-off", "staging", "arithmetic", "barrier"]
PARTS: tuple[Part, ...] = ("memory", "drain", "cache", "waiting", "hand-off", "staging", "arithmetic", "barrier")


class Span(NamedTuple):
    """What the first warp of a group does from `start` to `end`, microseconds; item: index in the program."""

    group: int
    item: int
    part: Part
    start: float
    end: float


class Arrow(NamedTuple):
    """The signal that ended a wait: given by a group at a time, seen by another."""

    source: int
    signal_time: float
    group: int
    wait_time: float


class Stuck(Exception):
    """The schedule waits for something that is never signalled."""


@dataclass
class _State:
    """One group: next item, the item whose waits hold, refills that a warp held back, clock of each warp, when its
    steps of the layers ended."""

    group: Group
    number: int
    clocks: list[float]
    next: int = 0
    ready_item: int = -1
    held_back: int = 0
    began: float = 0.0
    finished: bool = False
    layer_ends: list[float] = field(default_factory=list)


class Engine:
    """One run over a window. `times[group][layer]` are the ends of layers, `spans` what the groups did."""

    def __init__(self, window: Window, constants: Constants, words: Words, traced: bool = True) -> None:
        """traced: keep spans and arrows, which takes time."""
        self.traced = traced
        self.window, self.constants, self.words = window, constants, words
        schedule = window.schedule
        self.roles = {r.name: range(r.first, r.first + r.count) for r in schedule.roles}
        self.streams = {s.name: s for s in schedule.streams}
        self.chunk_bytes = {s.name: s.chunk_bytes for s in schedule.streams}
        self.chunk_us: dict[tuple[str, str, str, int], float] = {}
        self.spans: list[Span] = []
        self.arrows: list[Arrow] = []
        warps = schedule.launch.warps
        self.states = [_State(g, n, [0.0] * warps) for n, g in enumerate(window.groups)]
        self.cells: dict[int, Cell] = {}
        for counter in schedule.counters:
            if counter.init:
                base = window.instances.base[counter.name]
                for cell in range(base, base + counter.count):
                    self.cells[cell] = Cell([(0.0, counter.init, -1, 1)], counter.init)
        self.acts = tuple(acts(items, self.roles) for items in window.items)
        self.prefetched = tuple(any(isinstance(i.step.op, PrefetchCacheOp) for i in items) for items in window.items)
        self.supply = self._supply()
        self.heap: list[tuple[float, int, int]] = []
        self.order = 0
        self.now = 0.0
        self.ready = list(range(len(self.states)))

    def _supply(self) -> Supply:
        c, schedule = self.constants, self.window.schedule
        stream = schedule.streams[0]
        ring = float(len(self.roles[stream.role]) * stream.slots * stream.chunk_bytes)
        useful = stream.chunk_bytes / (stream.chunk_bytes + c.copy_overhead)
        groups, sms = self.window.groups, schedule.target.sms
        fast = c.fast_sms if any(g.fast for g in groups) else 0.0
        weights = np.array([(1 - fast) * sms, fast * c.fast_gain * sms])
        supply = Supply(
            np.array([len(g.workers) for g in groups], float), np.array([int(g.fast) for g in groups], np.int64),
            c.read_gbps * 1e3 * useful * weights / sms, c.sm_gbps * 1e3 * useful, c.copy_us,
        )  # fmt: skip
        for n in range(len(groups)):
            supply.ring(n, ring, stream.run_ahead, ring / c.copy_us if c.copy_us else NEVER)
        return supply

    def run(self) -> float:
        """Until every group has finished; returns when the last one did."""
        while True:
            while self.ready:
                self._go(self.states[self.ready.pop()])
            step, event = self.supply.horizon(), self.heap[0][0] if self.heap else NEVER
            if step == NEVER and event == NEVER:
                break
            # A step too short for the clock to show would be taken for ever.
            target = min(self.now + max(step, LATE, ulp(self.now)), event)
            drained, read = self.supply.advance(max(0.0, target - self.now))
            self.now = target
            for n in drained:
                self._drained(self.states[n])
            for n in read:
                self._read(self.states[n])
            while self.heap and self.heap[0][0] <= self.now + LATE:
                self._begin(self.states[heapq.heappop(self.heap)[2]])
        if not all(s.finished for s in self.states):
            raise Stuck
        return max(max(s.clocks) for s in self.states)

    def _act(self, state: _State) -> Act:
        return self.acts[state.group.program][state.next]

    def _go(self, state: _State) -> None:
        """Run steps until something blocks."""
        acts = self.acts[state.group.program]
        count = len(acts)
        while state.next < count:
            act = acts[state.next]
            if not self._step(state, act):
                return
            self._ended(state, act)
        state.finished = True

    def _ended(self, state: _State, act: Act) -> None:
        state.next += 1
        if act.ends_layer:
            state.layer_ends.append(max(state.clocks))

    def _step(self, state: _State, act: Act) -> bool:
        """Run one step; False if it has to wait, and will be run again or ended by an event."""
        role = act.role
        if state.next in state.group.waits and state.ready_item != state.next:
            if not self._wait(state, role):
                return False
            state.ready_item = state.next
        if act.kind == "meet":
            self._meet(state, role)
        elif act.kind == "gemv":
            start = self._ready(state, role)
            self._advance(state, role, start, "barrier")
            state.began = start
            self._at(start, state)
            return False
        elif act.kind == "work" and not self._work(state, act):
            return False
        if state.next in state.group.signals:
            self._signal(state, act)
        return True

    def _at(self, time: float, state: _State) -> None:
        self.order += 1
        heapq.heappush(self.heap, (max(time, self.now), self.order, state.number))

    def _advance(self, state: _State, role: range, until: float, part: Part) -> None:
        """Clocks of the role's warps not before `until`; the first warp's time is accounted."""
        clocks = state.clocks
        if self.traced and role.start == 0 and until > clocks[0]:
            self.spans.append(Span(state.number, state.next, part, clocks[0], until))
        for w in role:
            if clocks[w] < until:
                clocks[w] = until

    def _spend(self, state: _State, role: range, time: float, part: Part) -> None:
        clocks = state.clocks
        if self.traced and role.start == 0 and time > 0:
            self.spans.append(Span(state.number, state.next, part, clocks[0], clocks[0] + time))
        for w in role:
            clocks[w] += time

    def _meet(self, state: _State, role: range) -> None:
        c = self.constants
        ready, time = self._ready(state, role), c.barrier_us + c.barrier_warp_us * len(role)
        if self.traced:
            self._advance(state, role, ready, "barrier")
            self._spend(state, role, time, "barrier")
        else:
            state.clocks[role.start : role.stop] = [ready + time] * len(role)

    def _wait(self, state: _State, role: range) -> bool:
        c = self.constants
        until, source, last = 0.0, -1, 0.0
        for cell, threshold in state.group.waits[state.next]:
            counter = self.cells.setdefault(cell, Cell())
            if counter.total < threshold:
                counter.waiters.append((state.number, threshold))
                return False
            time, by, late = counter.reached(threshold, c.skew_us)
            last = max(last, late)
            if time > until:
                until, source = time, by
        if self.traced and until > state.clocks[role.start]:
            self.arrows.append(Arrow(source, until, state.number, until + c.hop_us + c.l2_us))
        self._advance(state, role, until, "waiting")
        polls = len(role) * self.window.schedule.launch.workers
        self._advance(state, role, last + c.hop_us + c.poll_us * polls, "hand-off")
        self._spend(state, role, self._l2_us(state, role) * len(state.group.waits[state.next]), "hand-off")
        return True

    def _l2_us(self, state: _State, role: range) -> float:
        """A round trip to the L2 that begins at the warps' own time."""
        return self.constants.l2_us + self._queue_us(state, self._ready(state, role))

    def _queue_us(self, state: _State, at: float) -> float:
        """What a load waits for at that time: requests of the ring that are not answered by then stand before it."""
        return self.constants.queue_us_per_kib * self.supply.outstanding(state.number, at - self.now) / KIB

    def _ready(self, state: _State, role: range) -> float:
        """When the last of the warps is there."""
        return max(state.clocks[role.start : role.stop])

    def _signal(self, state: _State, act: Act) -> None:
        """Lanes give a step's signals in turn, and each looks its amount up first if it stands in a table."""
        signals, role = state.group.signals[state.next], act.role
        if not signals:
            return
        c = self.constants
        if act.release:
            flying = self.supply.outstanding(state.number, self._ready(state, role) - self.now) / KIB
            self._spend(state, role, c.fence_us + c.fence_us_per_kib * flying, "hand-off")
        if act.lookups:
            self._spend(state, role, c.l2_us * act.lookups, "hand-off")
        at = self._ready(state, role)
        workers = len(state.group.workers)
        for cell, amount in signals:
            counter = self.cells.setdefault(cell, Cell())
            self.ready += counter.post(at, amount * len(role), state.number, workers)

    def _work(self, state: _State, act: Act) -> bool:
        """An op other than a gemv. Reads of tagged words wait for their writers, the cache's share the memory."""
        c, op, role = self.constants, act.op, act.role
        share = state.group.shares[act.site]
        fresh = self.words.fresh(state.number, state.next)
        if fresh is None:
            self.words.wait(state.number, state.next)
            return False
        if share.near:
            self._advance(state, role, fresh, "waiting")
            trips = -(-share.work.near // op.in_flight)
            self._spend(state, role, self._l2_us(state, role) * trips + share.near / (c.l2_gbps * 1e3), "staging")
        if share.far or isinstance(op, RefillOp):
            start = self._ready(state, role)
            self._advance(state, role, start, "cache" if share.far else "barrier")
            state.began = start
            self._at(start, state)
            return False
        rounds = share.work.handled / ROUND_BYTES
        self._spend(state, role, c.step_us + c.round_us * rounds, "arithmetic")
        self._written(state)
        return True

    def _refill(self, state: _State, op: RefillOp, act: Act) -> None:
        """Some of the copies that the last product held back are asked for, or all that are left: at the warps' own
        time, until which the memory may have nothing to do.
        """
        count = min(op.most, state.held_back)
        state.held_back -= count
        size = float(count * len(act.role) * self.chunk_bytes[op.stream])
        self.supply.refill(state.number, size if state.held_back else NEVER)
        self._spend(state, act.role, self.constants.step_us + self.constants.issue_us * count, "arithmetic")
        self._resume(state, act)

    def _written(self, state: _State) -> None:
        self.ready += self.words.written(state.number, state.next, max(state.clocks))

    def _begin(self, state: _State) -> None:
        """Memory traffic of the next step starts now."""
        act = self._act(state)
        share = state.group.shares[act.site]
        c, op = self.constants, act.op
        if isinstance(op, RefillOp):
            self._refill(state, op, act)
            return
        if not isinstance(op, GemvOp):
            together = blocks_together(self.window.schedule, len(act.role)) if isinstance(op, AttendOp) else 1
            trips = max(1, -(-share.work.spans // (SPANS_PER_TRIP * together)))
            # Rows of the cache that nobody asked for ahead come from memory, which takes longer than from the L2.
            missed = isinstance(op, AttendOp) and not self.prefetched[state.group.program]
            state.began += c.miss_us * missed
            latency = trips * (c.copy_us + self._queue_us(state, self.now)) + c.miss_us * missed
            self.supply.begin_direct(state.number, float(share.far), share.far / max(latency, LATE))
            return
        most = max(share.chunks, default=0)
        if not most:
            self._drained(state)
            return
        size, each = self.chunk_bytes[op.stream], self.chunk_time(op, act.layer)
        amount, owed = float(sum(share.chunks) * size), state.held_back
        more = max(0, op.deferred - owed)
        state.held_back += min(most, more)
        held = float(sum(min(n, more) for n in share.chunks) * size)
        rate = amount / (most * each)
        before = float(owed * len(act.role) * size)
        self.supply.begin_drain(state.number, amount, rate, c.copy_us, each, held, before)

    def chunk_time(self, op: GemvOp, layer: int) -> float:
        """Microseconds of a warp: narrow formats have as many columns to multiply as their chunk is wide."""
        key = op.role, op.stream, op.matrix, layer
        us = self.chunk_us.get(key)
        if us is None:
            us = self.chunk_us[key] = self._chunk_us(op, layer)
        return us

    def _chunk_us(self, op: GemvOp, layer: int) -> float:
        c, stream = self.constants, self.streams[op.stream]
        handled = max(self.chunk_bytes[op.stream], BF16_ROWS * stream.chunk(op.matrix, layer).columns)
        shared = len(self.roles[op.role]) * self.chunk_bytes[op.stream] / (c.drain_gbps * 1e3)
        return c.chunk_us + shared + handled / (c.chunk_gbps * 1e3) + c.refill_fence_us * stream.refill_fence

    def _drained(self, state: _State) -> None:
        """The gemv has ended: what its warps could not have done faster is draining, the rest waited for memory.

        Where memory was late, its last bytes are the last of a chunk, which is drained as a whole.
        """
        act = self._act(state)
        op, role, share = act.op, act.role, state.group.shares[act.site]
        assert isinstance(op, GemvOp)
        self.supply.end_drain(state.number)
        each = self.chunk_time(op, act.layer)
        free = state.began + max(share.chunks, default=0) * each
        late = max(0.0, self.now - free) if any(share.chunks) else 0.0
        self._advance(state, role, min(free, self.now), "drain")
        self._advance(state, role, self.now, "memory")
        self._spend(state, role, self.constants.step_us + self.constants.gemv_us + min(late, each), "drain")
        self._resume(state, act)

    def _read(self, state: _State) -> None:
        """The cache has been read; what the warps do with it takes at least its time."""
        act = self._act(state)
        role, share = act.role, state.group.shares[act.site]
        c = self.constants
        self._advance(state, role, self.now, "cache")
        busy = state.began + c.far_us_per_kib * share.work.far / KIB
        self._advance(state, role, busy, "arithmetic")
        rest = share.work.handled - share.work.far
        self._spend(state, role, c.step_us + c.round_us * rest / ROUND_BYTES, "arithmetic")
        self._written(state)
        self._resume(state, act)

    def _resume(self, state: _State, act: Act) -> None:
        if state.next in state.group.signals:
            self._signal(state, act)
        self._ended(state, act)
        self.ready.append(state.number)
