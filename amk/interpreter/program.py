"""The step tree of a program, flattened for each warp into the list of events that it executes in one launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from amk.interpreter.fault import Place
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.ops.sync import BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.schedule import Node, Program, Schedule, Step, registers_read


@dataclass(frozen=True, slots=True)
class Entry:
    """One step in one iteration. agent is the warp's number within the step's role.

    epoch: what the warp's register must hold for the step to mean what the schedule says; None if it reads no register.
    """

    step: Step
    agent: int
    loops: Mapping[str, int]
    path: tuple[int, ...]
    barrier: BarrierOp | None
    gemv: GemvOp | None
    refill: RefillOp | None
    silent: bool
    epoch: int | None

    def place(self, program: str) -> Place:
        return Place(program, self.path, tuple(self.loops.items()), self.step.op.op)


class Flattener:
    """Expands a program for `tokens` tokens, the counters having seen `epoch` tokens before; warps of the same roles
    share one list."""

    def __init__(self, schedule: Schedule, program: Program, tokens: int, epoch: int) -> None:
        self._first = {r.name: r.first for r in schedule.roles}
        self._count = {r.name: r.count for r in schedule.roles}
        self._tagged = {b.name for b in schedule.buffers if b.tagged}
        self._program = program
        self._tokens = tokens
        self._epoch = epoch

    def entries(self, warp: int) -> list[Entry]:
        """The events of `warp`, in program order."""
        out: list[Entry] = []
        self._now = self._epoch
        self._walk(self._program.body, {"t": self._epoch, "n": 0}, (), warp, out)
        return out

    def _walk(
        self, body: tuple[Node, ...], loops: Mapping[str, int], path: tuple[int, ...], warp: int, out: list[Entry]
    ) -> None:
        for i, node in enumerate(body):
            here = (*path, i)
            if isinstance(node, Step):
                agent = warp - self._first[node.op.role]
                if 0 <= agent < self._count[node.op.role]:
                    out.append(self._entry(node, agent, loops, here))
                continue
            for k in range(self._tokens if node.count is None else node.count):
                token = {"t": self._epoch + k, "n": k} if node.count is None else {}
                self._now = token.get("t", self._now)
                self._walk(node.body, {**loops, node.var: k, **token}, here, warp, out)
            if node.count is None:
                self._now = self._epoch + self._tokens

    def _entry(self, step: Step, agent: int, loops: Mapping[str, int], path: tuple[int, ...]) -> Entry:
        op = step.op
        return Entry(
            step=step,
            agent=agent,
            loops=loops,
            path=path,
            barrier=op if isinstance(op, BarrierOp) else None,
            gemv=op if isinstance(op, GemvOp) else None,
            refill=op if isinstance(op, RefillOp) else None,
            silent=isinstance(op, BarrierOp | WaitOp | SignalOp),
            epoch=self._now if registers_read(step, self._tagged) else None,
        )
