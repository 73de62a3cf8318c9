"""An analytic estimate of one decode step, from the schedule alone.

A worker is a weight stream that fills its ring at the memory's rate, a consumer that drains it, and gaps in which the
consumer does something else. The ring covers gaps as far as it is deep; a phase ends when the slowest worker has it.
The result is never below the floor. It ranks schedules; it does not predict a GPU, and everything computed from it is
labelled `simulated`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np

from amk.agent.floor import floor_ms
from amk.schedule_ir.matrices import MatrixName, matrix
from amk.schedule_ir.memory import Stream
from amk.schedule_ir.ops import AnyOp, BarrierOp
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.stage import StageOp
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step

EPILOGUES = {"store_rows": "qkv", "add_residual": "", "swiglu": "gate_up", "argmax_rows": "lm_head"}


class StepModel(Protocol):
    """Schedule and position -> ms per token."""

    def step_ms(self, schedule: Schedule, pos: int) -> float: ...


@dataclass(frozen=True)
class Costs:
    """Microseconds, and bytes per microsecond where said. Orders of magnitude of a datacentre GPU."""

    poll: float = 0.7
    skew: float = 0.3
    head_skew: float = 0.1
    fence: float = 0.3
    fence_per_kb: float = 0.004
    tag_read: float = 0.25
    barrier: float = 0.04
    barrier_per_warp: float = 0.006
    stage: float = 0.25
    stage_rate: float = 24_000.0
    serial_row: float = 0.012
    wide_row: float = 0.012
    epilogue: float = 0.15
    chunk: float = 0.22
    chunk_rate: float = 32_768.0
    copy_latency: float = 0.9
    copy_overhead: float = 96.0
    refill_fence: float = 0.01
    attend: float = 0.5
    attend_block: float = 0.12
    small: float = 0.15

    def perturbed(self, rng: np.random.Generator, spread: float) -> Costs:
        """Every constant times exp(N(0, spread)): another machine of the same kind."""
        factors = np.exp(spread * rng.standard_normal(len(fields(self))))
        return replace(
            self, **{f.name: getattr(self, f.name) * float(x) for f, x in zip(fields(self), factors, strict=True)}
        )


@dataclass
class _Flow:
    """The ring of the slowest worker: `level` bytes are resident, `now` is in microseconds."""

    rate: float
    drain: float
    capacity: float
    run_ahead: bool
    latency: float
    now: float = 0.0
    level: float = 0.0

    def gap(self, duration: float) -> None:
        self.now += duration
        self.level = min(self.capacity, self.level + self.rate * duration) if self.run_ahead else 0.0

    def consume(self, amount: float) -> None:
        if not self.run_ahead:
            self.now += self.latency
        needed = max(amount / self.drain, (amount - self.level) / self.rate)
        self.now += needed
        self.level = max(0.0, min(self.capacity, self.level + self.rate * needed - amount))


@dataclass(frozen=True)
class AnalyticModel:
    costs: Costs = Costs()

    def step_ms(self, schedule: Schedule, pos: int) -> float:
        """ms per token at `pos`, at least the floor."""
        flow = self._flow(schedule)
        for name, amount, duration in self.phases(schedule, pos):
            if name == "gemv":
                flow.consume(amount)
            else:
                flow.gap(duration)
        return max(flow.now / 1e3, floor_ms(schedule, pos))

    def phases(self, schedule: Schedule, pos: int) -> Iterator[tuple[str, float, float]]:
        """(what, bytes of weights drained, microseconds of anything else) of every step, in program order."""
        roles = {r.name: r.count for r in schedule.roles}
        for step in unrolled(schedule.programs[0].body):
            if isinstance(step.op, GemvOp):
                yield "gemv", most_bytes(schedule, step.op.matrix), 0.0
            else:
                yield step.op.op, 0.0, self._step(schedule, step, roles, pos)

    def _flow(self, schedule: Schedule) -> _Flow:
        c, stream, workers = self.costs, schedule.streams[0], schedule.launch.workers
        agents = next(r.count for r in schedule.roles if r.name == stream.role)
        capacity = float(agents * stream.slots * stream.chunk_bytes)
        supply = schedule.target.read_ceiling_gbps * 1e3 / workers
        supply *= stream.chunk_bytes / (stream.chunk_bytes + c.copy_overhead)
        supply = min(supply, capacity / c.copy_latency)
        return _Flow(supply, self._drain(schedule, stream, agents), capacity, stream.run_ahead, c.copy_latency)

    def _drain(self, schedule: Schedule, stream: Stream, agents: int) -> float:
        c = self.costs
        each = c.chunk + stream.chunk_bytes / c.chunk_rate + c.refill_fence * stream.refill_fence
        crowded = 1.0 if schedule.launch.registers >= 128 else schedule.launch.registers / 128
        return agents * stream.chunk_bytes / each * crowded

    def _step(self, schedule: Schedule, step: Step, roles: dict[str, int], pos: int) -> float:
        c, total = self.costs, 0.0
        for wait in step.waits:
            per_head = len(wait.index) > 1 and any(
                isinstance(i, dict) and len(i) > 0 and "l" not in i for i in wait.index
            )
            total += c.poll + (c.head_skew if per_head else c.skew) + (c.tag_read if wait.order == "relaxed" else 0.0)
        if any(s.order == "release" for s in step.signals):
            stream = schedule.streams[0]
            in_flight = schedule.launch.warps * stream.slots * stream.chunk_bytes if stream.run_ahead else 0
            total += c.fence + c.fence_per_kb * in_flight / 1024
        return total + self._op(schedule, step.op, roles, pos)

    def _op(self, schedule: Schedule, op: AnyOp, roles: dict[str, int], pos: int) -> float:
        c, model = self.costs, schedule.model
        if isinstance(op, BarrierOp):
            return c.barrier + c.barrier_per_warp * op.agents
        if isinstance(op, AttendOp):
            return self._attend(schedule, roles[op.role], pos)
        if op.op in EPILOGUES:
            name: MatrixName = getattr(op, "matrix", None) or EPILOGUES[op.op]  # type: ignore[assignment]
            rows = most_groups(schedule, name) * 8
            one = roles[op.role] == 1
            return c.epilogue + (c.serial_row * rows if one else c.wide_row * rows / roles[op.role])
        if op.op in ("stage", "stage_norm", "combine", "embed"):
            width = model.ffn if isinstance(op, StageOp) else model.hidden
            return c.stage + 2 * width / c.stage_rate
        return 0.0 if op.op in ("wait", "signal") else c.small

    def _attend(self, schedule: Schedule, agents: int, pos: int) -> float:
        c, kv, model = self.costs, schedule.kv, schedule.model
        blocks = -(-(pos + 1) // kv.block)
        mine = -(-blocks // kv.splits)
        data = mine * kv.block * model.head_dim * 4
        rate = schedule.target.read_ceiling_gbps * 1e3 / schedule.launch.workers
        return c.attend + data / rate + c.attend_block * -(-mine * kv.block // (agents * 16))


def unrolled(body: tuple[Node, ...]) -> Iterator[Step]:
    """Steps of one token in order; the token loop once, the layer loop as often as it runs."""
    for node in body:
        if isinstance(node, Loop):
            for _ in range(node.count or 1):
                yield from unrolled(node.body)
        else:
            yield node


def most_groups(schedule: Schedule, name: MatrixName) -> int:
    shares = "hidden" if name in ("o", "down") else name
    return max(schedule.tables[f"{shares}.count"])


def most_bytes(schedule: Schedule, name: MatrixName) -> float:
    """Bytes of matrix `name` in one layer that the worker with the largest share drains."""
    stream, shape = schedule.streams[0], matrix(schedule.model, name)
    return float(most_groups(schedule, name) * shape.k_chunks(stream.chunk(name).columns) * stream.chunk_bytes)
