"""Combine the agents' attention partials of one worker and publish the result."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.attend import merge_partials
from amk.schedule_ir.ops.attention import Unit, active_splits, partial_width, queries, sharing, units
from amk.schedule_ir.ops.base import Access, Count, Geometry, Memory, Op
from amk.schedule_ir.ops.precondition import DIM, Need, number, own


class MergeOp(Op):
    """split_partial, split_scale[query head, split] = merge of partial[0..attend_agents, g].

    Query head g is done by agent g % n, or several neighbouring ones by one (`_together`). split_partial is [heads,
    splits, head_dim], split_scale (maximum, sum of weights) f32 [heads, splits, 2]. A worker whose split owns no
    position <= pos writes nothing: readers skip the same splits.

    Where a step reads several rows of a sequence, heads are the query vectors of each kv head in turn, and partials
    those of the agents that share positions.
    """

    registers: ClassVar[tuple[str, ...]] = ("pos",)
    needs: ClassVar[tuple[Need, ...]] = (
        Need("partials", number(1) <= own("attend_agents"), "there is a partial"),
        Need("pairs", DIM.multiple_of(2), "two elements share a word"),
    )
    op: Literal["merge"] = "merge"
    layer: Expr
    partial: Name
    attend_agents: Count
    split_partial: Name
    split_scale: Name

    def numbers(self, geo: Geometry) -> dict[str, int]:
        return {"sharers": sharing(geo, self.attend_agents)}

    def _heads(self, env: Env, geo: Geometry) -> list[tuple[Unit, int]]:
        """(KV head, query vector of it) for those that the agent has."""
        each = self._together(geo)
        return [
            (unit, g)
            for unit in units(env, geo, geo.role_size[self.role])
            if unit.split < active_splits(env.pos, geo)
            for g in range(queries(geo))
            if g // each % unit.agents == unit.agent
        ]

    def _together(self, geo: Geometry) -> int:
        """Neighbouring query vectors that an agent has: as many as fill its lanes with four outputs each, where a step
        reads several rows and nothing is added up."""
        buffer, lanes = geo.buffers[self.split_partial], max(1, geo.model.head_dim // 4)
        alone = geo.rows_each > 1 and sharing(geo, self.attend_agents) == 1
        fetches = not buffer.tagged or buffer.item_bytes == 4
        return 32 // lanes if alone and fetches and geo.model.head_dim % 4 == 0 and 32 % lanes == 0 else 1

    def _row(self, unit: Unit, geo: Geometry, local: int) -> int:
        return (unit.head * queries(geo) + local) * geo.kv_splits + unit.split

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer, width, group = env.eval_int(self.layer), partial_width(geo), queries(geo)
        dim, left = geo.model.head_dim, sharing(geo, self.attend_agents)
        out: list[Access] = []
        for unit, g in self._heads(env, geo):
            for a in range(left):
                row = ((unit.turn * left + a) * group + g) * width
                out += geo.span("read", self.partial, row, row + dim + 2, ("att", layer))
            row = self._row(unit, geo, g)
            out += geo.span("write", self.split_partial, row * dim, (row + 1) * dim, ("part", layer))
            out += geo.span("write", self.split_scale, row * 2, (row + 1) * 2, ("scale", layer))
        return out

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        width, group, dim = partial_width(geo), queries(geo), geo.model.head_dim
        left = sharing(geo, self.attend_agents)
        for unit, g in self._heads(env, geo):
            parts = np.zeros((left, width), np.float32)
            for a in range(left):
                row = ((unit.turn * left + a) * group + g) * width
                parts[a, : dim + 2] = mem.read(self.partial, row, row + dim + 2)
            merged, row = merge_partials(parts, dim), self._row(unit, geo, g)
            mem.write(self.split_partial, row * dim, merged[:dim])
            mem.write(self.split_scale, row * 2, merged[dim : dim + 2])
