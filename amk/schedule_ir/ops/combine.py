"""Stage the attention output: combine the splits of every head."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.attend import merge_partials
from amk.schedule_ir.ops.attention import active_splits, partial_width
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op, split


class CombineOp(Op):
    """x[i] = combined attention output i, for this agent's share [q_dim*a/n, q_dim*(a+1)/n), splits in index order."""

    registers: ClassVar[tuple[str, ...]] = ("pos",)
    in_flight: ClassVar[int] = 2048
    """Two pieces of two splits, 16 bytes of each a lane."""

    op: Literal["combine"] = "combine"
    layer: Expr
    split_partial: Name
    split_scale: Name
    x: Name

    def _share(self, env: Env, geo: Geometry) -> list[tuple[int, int, int]]:
        """(query head, first dim, end dim) pieces of the agent's share."""
        dim = geo.model.head_dim
        lo, hi = split(geo.model.heads * dim, geo.role_size[self.role], int(env.agent))
        return [(h, max(lo - h * dim, 0), min(hi - h * dim, dim)) for h in range(lo // dim, -(-hi // dim))]

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer, dim = env.eval_int(self.layer), geo.model.head_dim
        out: list[Access] = []
        for head, d0, d1 in self._share(env, geo):
            for s in range(active_splits(env.pos, geo)):
                row = head * geo.kv_splits + s
                out += geo.span("read", self.split_partial, row * dim + d0, row * dim + d1, ("part", layer))
                out += geo.span("read", self.split_scale, row * 2, row * 2 + 2, ("scale", layer))
            out += geo.span("write", self.x, head * dim + d0, head * dim + d1, ("xo", layer))
        return out

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        dim, width = geo.model.head_dim, partial_width(geo)
        splits = active_splits(env.pos, geo)
        for head, d0, d1 in self._share(env, geo):
            parts = np.zeros((splits, width), np.float32)
            for s in range(splits):
                row = head * geo.kv_splits + s
                parts[s, d0:d1] = mem.read(self.split_partial, row * dim + d0, row * dim + d1)
                parts[s, dim : dim + 2] = mem.read(self.split_scale, row * 2, row * 2 + 2)
            merged = merge_partials(parts, dim)
            mem.write(self.x, head * dim + d0, merged[d0:d1] / merged[dim + 1])
