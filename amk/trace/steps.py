"""What an event of a flat system is in words: who runs which step of the schedule, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from amk.report.schema import json_pointer
from amk.report.timeline import Kind
from amk.schedule_ir.layout import StreamLayout, stream_layout
from amk.schedule_ir.memory import Stream
from amk.schedule_ir.ops import BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Schedule, Step
from amk.trace.logical import F64
from amk.validator.program.system import I64, System
from amk.validator.program.trace import Item, Trace

SYNC_LENGTH: Final = 0.25
UNIT: Final = "steps"
MEANING: Final = "A weight chunk or an op is one step, a wait, signal or barrier a quarter."


def kind_of(step: Step) -> Kind:
    if isinstance(step.op, GemvOp):
        return "weights"
    if isinstance(step.op, BarrierOp):
        return "barrier"
    return "signal" if isinstance(step.op, SignalOp) else "wait" if isinstance(step.op, WaitOp) else "compute"


def name_of(step: Step) -> str:
    """The op, with the matrix of a gemv, the id of a barrier, or the counters of a step that only synchronises."""
    op = step.op
    extra: list[str] = [getattr(op, "matrix", "")]
    if isinstance(op, BarrierOp):
        extra = [str(op.id)]
    elif isinstance(op, WaitOp | SignalOp):
        extra = [*(w.counter for w in step.waits), *(s.counter for s in step.signals)]
    return " ".join([op.op, *filter(None, extra)])


@dataclass(frozen=True, eq=False)
class Agents:
    """Which warps stand for which: warps with the same roles run the same steps."""

    schedule: Schedule

    def roles(self, warp: int) -> tuple[str, ...]:
        return tuple(r.name for r in self.schedule.roles if r.first <= warp < r.first + r.count)

    def representatives(self) -> list[int]:
        """The first warp of every distinct set of roles; a warp without a role runs nothing."""
        warps: dict[tuple[str, ...], int] = {}
        for warp in range(self.schedule.launch.warps):
            if roles := self.roles(warp):
                warps.setdefault(roles, warp)
        return list(warps.values())

    def label(self, warp: int, alone: bool) -> str:
        """alone: the track is of this warp only, not of all that are like it."""
        like = [w for w in range(self.schedule.launch.warps) if self.roles(w) == self.roles(warp)]
        who = f"warp {warp}" if alone or len(like) == 1 else f"warp {warp} of {like[0]}-{like[-1]}"
        return f"{who}  {', '.join(self.roles(warp))}"


class Steps:
    """Events of a flat system of `schedule` by name; `traces` are those the system was made of."""

    def __init__(self, schedule: Schedule, system: System, traces: Iterable[Trace]) -> None:
        self.schedule, self.system, self.traces = schedule, system, list(traces)
        self.warps = schedule.launch.warps
        self.streams: dict[str, tuple[Stream, StreamLayout]] = {
            s.name: (s, stream_layout(schedule, s)) for s in schedule.streams
        }

    def real(self, event: int) -> bool:
        """Not one of the agents that only stand for words or weak signals."""
        return int(self.system.event_tag[event]) >= 0

    def place(self, event: int) -> tuple[int, int]:
        """(worker, warp)."""
        return divmod(int(self.system.agent_of[event]), self.warps)

    def who(self, event: int) -> str:
        worker, warp = self.place(event)
        return f"worker {worker} warp {warp}"

    def trace(self, worker: int) -> Trace:
        return next(t for t in self.traces if t.program.first <= worker < t.program.first + t.program.count)

    def step(self, event: int) -> tuple[Step, dict[str, int], str, bool]:
        """(step, loop variables, JSON pointer, whether it is the leaving half of a barrier)."""
        trace = self.trace(self.place(event)[0])
        local = int(self.system.event_tag[event])
        item = trace.items[int(trace.item[local])]
        return item.step, item.loops, json_pointer(item.site.path), bool(trace.leave[local])

    def name(self, event: int) -> str:
        step, loops, _, _ = self.step(event)
        return name_of(step) + (f"  L{loops['l']}" if "l" in loops else "")

    def detail(self, event: int) -> str:
        """Where the step stands, what it waits for and what it signals, in parts separated by semicolons."""
        step, loops, pointer, _ = self.step(event)
        parts = [f"token {loops['t']}" + (f", layer {loops['l']}" if "l" in loops else "")] if "t" in loops else []
        parts.append(pointer)
        parts += [f"waits for {self.wait_text(k)}" for k in self.counter_waits(event)]
        for k in self._span("signal", event):
            counter = int(self.system.signal_counter[k])
            if not self._words(counter) and not isinstance(step.op, BarrierOp):
                parts.append(f"adds {int(self.system.signal_amount[k])} to {self.system.counter_name(counter)}")
        return "; ".join(parts)

    def wait_text(self, wait: int) -> str:
        counter = int(self.system.wait_counter[wait])
        if self._words(counter):
            return "tagged words"
        return f"{self.system.counter_name(counter)} >= {int(self.system.wait_threshold[wait])}"

    def counter_waits(self, event: int) -> list[int]:
        """Its waits on counters of the schedule: neither words nor barriers."""
        if isinstance(self.step(event)[0].op, BarrierOp) and self.step(event)[3]:
            return []
        return [k for k in self._span("wait", event) if self._named(k)]

    def _named(self, wait: int) -> bool:
        return not self._words(int(self.system.wait_counter[wait]))

    def _words(self, counter: int) -> bool:
        return self.system.counter_name(counter).startswith("words ")

    def _span(self, table: str, event: int) -> range:
        return range(*getattr(self.system, f"{table}_first")[event : event + 2].tolist())

    def lengths(self) -> F64:
        """[events] float: chunks of a gemv, 1 for other ops, a quarter for what only synchronises, 0 for no step."""
        length = np.zeros(self.system.events)
        for trace in self.traces:
            for worker in range(trace.program.first, trace.program.first + trace.program.count):
                agents = slice(worker * self.warps, (worker + 1) * self.warps + 1)
                first, last = self.system.agent_first[agents][[0, -1]].tolist()
                local = self.system.event_tag[first:last]
                length[first:last] = self._worker_lengths(trace, worker)[local]
        return length

    def _worker_lengths(self, trace: Trace, worker: int) -> F64:
        per_item = np.array([self._item_lengths(item, worker) for item in trace.items])
        lengths: F64 = per_item[trace.item, trace.warp_of] / np.where(self._halves(trace), 2, 1)
        return lengths

    def _halves(self, trace: Trace) -> I64:
        """Barriers are two events."""
        barrier = np.array([isinstance(item.step.op, BarrierOp) for item in trace.items])
        halves: I64 = barrier[trace.item]
        return halves

    def _item_lengths(self, item: Item, worker: int) -> F64:
        """[warps]"""
        op = item.step.op
        if isinstance(op, BarrierOp | WaitOp | SignalOp):
            return np.full(self.warps, SYNC_LENGTH)
        lengths = np.ones(self.warps)
        if isinstance(op, GemvOp):
            stream, layout = self.streams[op.stream]
            role = next(r for r in self.schedule.roles if r.name == stream.role)
            counts = layout.counts[op.matrix, op.layer_at(item.loops)][worker]
            lengths[role.first : role.first + role.count] = np.maximum(counts, SYNC_LENGTH)
        return lengths
