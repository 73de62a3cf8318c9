"""Bring the MLP activation into shared memory."""

from __future__ import annotations

from typing import Literal

from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op, split


class StageOp(Op):
    """x[i] = act[i] for this agent's share [ffn*a/n, ffn*(a+1)/n) of each sequence's row."""

    op: Literal["stage"] = "stage"
    layer: Expr
    act: Name
    x: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer = env.eval_int(self.layer)
        lo, hi = split(geo.model.ffn, geo.role_size[self.role], int(env.agent))
        return [
            *geo.rows("read", self.act, lo, hi, ("act", layer)),
            *geo.rows("write", self.x, lo, hi, ("xd", layer), geo.model.ffn),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        lo, hi = split(geo.model.ffn, geo.role_size[self.role], int(env.agent))
        for s in range(geo.batch):
            at = geo.row(self.act, s)
            mem.write(self.x, geo.row(self.x, s) + lo, mem.read(self.act, at + lo, at + hi))
