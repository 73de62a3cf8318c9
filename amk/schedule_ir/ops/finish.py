"""Store the launch state, so that the next launch (or graph replay) goes on where this one stopped."""

from __future__ import annotations

from typing import ClassVar, Literal

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op
from amk.schedule_ir.ops.begin import state_words


class FinishOp(Op):
    """state <- token, pos, epoch, done, further tokens and positions; worker 0 alone."""

    registers: ClassVar[tuple[str, ...]] = ("token", "pos", "epoch", "done")
    op: Literal["finish"] = "finish"
    state: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        return (
            geo.span("write", self.state, 0, len(state_words(geo.batch, geo.live)), ("state", 1))
            if env.worker == 0
            else []
        )

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        if env.worker == 0:
            mem.write(self.state, 0, [mem.regs[name] for name in state_words(geo.batch, geo.live)])
