"""Bring the MLP activation into shared memory."""

from __future__ import annotations

from typing import Literal

from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory
from amk.schedule_ir.ops.staging import Staging


class StageOp(Staging):
    """x[i] = act[i] for this agent's share of ffn elements."""

    op: Literal["stage"] = "stage"
    layer: Expr
    act: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer = env.eval_int(self.layer)
        lo, hi = self._staged_share(geo.model.ffn, env, geo)
        return [*geo.span("read", self.act, lo, hi, ("act", layer)), *self._staged(geo, lo, hi, ("xd", layer))]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        lo, hi = self._staged_share(geo.model.ffn, env, geo)
        self._stage(geo, mem, lo, mem.read(self.act, lo, hi))
