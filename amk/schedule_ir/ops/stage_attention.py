"""Bring the attention output into shared memory."""

from __future__ import annotations

from typing import ClassVar, Literal

from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory
from amk.schedule_ir.ops.precondition import DIM, HEADS, Need
from amk.schedule_ir.ops.staging import Staging, whole_fetches


class StageAttentionOp(Staging):
    """x[i] = attn[i] for this agent's share of q_dim elements of each sequence's row."""

    needs: ClassVar[tuple[Need, ...]] = (*Staging.needs, *whole_fetches(HEADS * DIM, "attn"))
    op: Literal["stage_attention"] = "stage_attention"
    layer: Expr
    attn: Name

    def _share(self, env: Env, geo: Geometry) -> tuple[int, int]:
        return self._staged_share(geo.model.heads * geo.model.head_dim, env, geo)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer = env.eval_int(self.layer)
        lo, hi = self._share(env, geo)
        staged = self._staged(geo, lo, hi, ("xo", layer), geo.model.q_dim)
        return [*geo.rows("read", self.attn, lo, hi, ("ao", layer)), *staged]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        lo, hi = self._share(env, geo)
        for s in range(geo.vectors):
            at = geo.row(self.attn, s)
            self._stage(geo, mem, lo, mem.read(self.attn, at + lo, at + hi), s)
