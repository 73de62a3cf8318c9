"""Bring the attention output into shared memory."""

from __future__ import annotations

from typing import Literal

from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op, split


class StageAttentionOp(Op):
    """x[i] = attn[i] for this agent's share [q_dim*a/n, q_dim*(a+1)/n) of each sequence's row."""

    op: Literal["stage_attention"] = "stage_attention"
    layer: Expr
    attn: Name
    x: Name

    def _share(self, env: Env, geo: Geometry) -> tuple[int, int]:
        return split(geo.model.heads * geo.model.head_dim, geo.role_size[self.role], int(env.agent))

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer = env.eval_int(self.layer)
        lo, hi = self._share(env, geo)
        return [
            *geo.rows("read", self.attn, lo, hi, ("ao", layer)),
            *geo.rows("write", self.x, lo, hi, ("xo", layer), geo.model.q_dim),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        lo, hi = self._share(env, geo)
        for s in range(geo.batch):
            at = geo.row(self.attn, s)
            mem.write(self.x, geo.row(self.x, s) + lo, mem.read(self.attn, at + lo, at + hi))
