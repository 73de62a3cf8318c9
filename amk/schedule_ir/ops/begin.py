"""Load the launch state into registers."""

from __future__ import annotations

from typing import Literal

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op

STATE = ("token", "pos", "epoch", "done")
"""Words of the state buffer. epoch counts tokens since the counters were zeroed, over all launches."""


class BeginOp(Op):
    """token, pos, epoch, done <- state, in every agent."""

    op: Literal["begin"] = "begin"
    state: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        return geo.span("read", self.state, 0, len(STATE), ("state", 0))

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        for name, value in zip(STATE, mem.read_int(self.state, 0, len(STATE)), strict=True):
            mem.regs[name] = int(value)
