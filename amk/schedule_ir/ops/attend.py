"""Attention of one kv head's query heads over the agent's share of the split's positions."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.attention import PARTIAL_EXTRA, agent_positions, group_size, partial_width, place
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op
from amk.schedule_ir.ops.precondition import BLOCK, DIM, INDEX, SPLITS, Need

NEGATIVE = np.float32(-1e30)
"""Running maximum of a partial that saw no position; its weight underflows to zero against any real one."""


class AttendOp(Op):
    """partial[agent, g] = (sum_p w_p v_p, m, sum_p w_p), w_p = exp(q_g . k_p - m), m the maximum of q_g . k_p.

    partial is f32 [agents, group, head_dim + 4]. An agent without positions writes (0, -1e30, 0).
    """

    registers: ClassVar[tuple[str, ...]] = ("pos",)
    needs: ClassVar[tuple[Need, ...]] = (
        Need("dims", DIM.multiple_of(8), "a lane reads 8 dims"),
        Need("lap", SPLITS * BLOCK * DIM * 2 < INDEX, "two laps of the splits are counted in 32 bits"),
    )
    leaves: ClassVar[str | None] = "attend_agents"
    op: Literal["attend"] = "attend"
    layer: Expr
    q: Name
    k_cache: Name
    v_cache: Name
    partial: Name

    def _runs(self, env: Env, geo: Geometry) -> list[tuple[int, int]]:
        agents = geo.role_size[self.role]
        return agent_positions(env.pos, place(env)[1], int(env.agent), agents, geo)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        head, part = place(env)
        if head < 0:
            return []
        layer, dim, group = env.eval_int(self.layer), geo.model.head_dim, group_size(geo)
        base = (layer * geo.caches + head) * geo.buffers[self.k_cache].shape[2]
        runs = self._runs(env, geo)
        begun = part * geo.kv_block <= env.pos  # then every agent multiplies with the query, some by nothing
        out = geo.span("read", self.q, 0, group * dim, ("q", layer), head * group * dim) if begun else []
        for lo, hi in runs:
            for cache, kind in ((self.k_cache, "k"), (self.v_cache, "v")):
                old, new = min(hi, env.pos), max(lo, env.pos)
                out += geo.span("read", cache, (base + lo) * dim, (base + old) * dim, (f"{kind}.past", layer))
                out += geo.span("read", cache, (base + new) * dim, (base + hi) * dim, (kind, layer))
        width, agent = group * partial_width(geo), int(env.agent)
        return [*out, *geo.span("write", self.partial, agent * width, (agent + 1) * width, ("att", layer))]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        head, part = place(env)
        if head < 0:
            return
        layer, dim, group = env.eval_int(self.layer), geo.model.head_dim, group_size(geo)
        base = (layer * geo.caches + head) * geo.buffers[self.k_cache].shape[2]
        runs = self._runs(env, geo)
        out = np.zeros((group, partial_width(geo)), np.float32)
        out[:, dim] = NEGATIVE
        begun = part * geo.kv_block <= env.pos
        query = np.asarray(mem.read(self.q, 0, group * dim) if begun else (), np.float32)
        if runs:
            rows = [((base + lo) * dim, (base + hi) * dim) for lo, hi in runs]
            k = np.concatenate([mem.read(self.k_cache, *r) for r in rows]).reshape(-1, dim).astype(np.float32)
            v = np.concatenate([mem.read(self.v_cache, *r) for r in rows]).reshape(-1, dim).astype(np.float32)
            scores = query.reshape(group, dim) @ k.T
            peak = scores.max(axis=1)
            weights = np.exp(scores - peak[:, None])
            out[:, :dim], out[:, dim], out[:, dim + 1] = weights @ v, peak, weights.sum(axis=1)
        mem.write(self.partial, int(env.agent) * out.size, out.reshape(-1))


def merge_partials(parts: np.ndarray, dim: int) -> np.ndarray:
    """[n, ..., dim + 4] partials of disjoint position sets -> [..., dim + 4] partial of their union, in index order."""
    peak = parts[..., dim].max(axis=0)
    scale = np.exp(parts[..., dim] - peak)
    out = np.zeros(parts.shape[1:], np.float32)
    for part, factor in zip(parts, scale, strict=True):
        out[..., :dim] += part[..., :dim] * factor[..., None]
        out[..., dim + 1] += part[..., dim + 1] * factor
    out[..., dim] = peak
    return out


__all__ = ["NEGATIVE", "PARTIAL_EXTRA", "AttendOp", "merge_partials"]
