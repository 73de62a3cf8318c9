"""Attention of one kv head's query heads over the agent's share of the split's positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from amk.report.schema import unless
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.attention import (
    PARTIAL_EXTRA,
    QUERIES,
    QUERY_TILE,
    TREE_OF_ROWS,
    TREE_WORDS,
    Unit,
    agent_positions,
    attended,
    group_size,
    last_row,
    of_turn,
    partial_width,
    queries,
    query_rows,
    query_width,
    seen_before,
    sharing,
    tile_columns,
    units,
)
from amk.schedule_ir.ops.base import Access, BufferField, Geometry, Memory, Op
from amk.schedule_ir.ops.precondition import BLOCK, DIM, INDEX, SPLITS, Need, Site, Term

NEGATIVE = np.float32(-1e30)
"""Running maximum of a partial that saw no position; its weight underflows to zero against any real one."""


def _in_place(site: Site) -> bool:
    """Whether what one warp multiplies with and leaves is its own where both are in one buffer."""
    op, geo = site.op, site.geo
    assert isinstance(op, AttendOp)
    if op.partial != op.q:
        return True
    tiles = geo.rows_each > 1 and queries(geo) > 0 and queries(geo) % QUERY_TILE == 0
    return tiles and sharing(geo, geo.role_size[op.role]) == 1 and query_width(geo, op.q) == partial_width(geo)


LANE_DIMS = 8
"""Of a head, of which a lane reads so many at a time."""


class AttendOp(Op):
    """partial[agent, g] = (sum_p w_p v_p, m, sum_p w_p), w_p = exp(q_g . k_p - m), m the maximum of q_g . k_p.

    partial is f32 [agents, group, head_dim + 4], for each turn of the worker. An agent without positions writes
    (0, -1e30, 0).

    Where a step reads several rows of a sequence, g counts the query vectors of all rows, and row r sees the positions
    up to pos + r; if they are a tree, of those from pos on only its own and those that `tree` names (i32 [rows, 2],
    bits). Agents then share out query vectors first, and positions among those of the same query vectors:
    partial is [sharers, query vectors, head_dim + 4]. Where nobody shares positions, partial may be q itself, whose
    rows then are as wide: a warp is done with its query vectors when it writes what they became.
    """

    registers: ClassVar[tuple[str, ...]] = ("pos",)
    needs: ClassVar[tuple[Need, ...]] = (
        Need("dims", DIM.multiple_of(LANE_DIMS), "a lane reads 8 dims"),
        QUERIES,
        TREE_OF_ROWS,
        Need("in-place", Term(_in_place), "what is left in place of queries has one writer and their places"),
        Need("lap", SPLITS * BLOCK * DIM * 2 < INDEX, "two laps of the splits are counted in 32 bits"),
    )
    own_fields: ClassVar[Mapping[str, BufferField]] = {"tree": BufferField("global", "i32", "tree")}
    in_place: ClassVar[frozenset[str]] = frozenset({"q", "partial"})
    leaves: ClassVar[str | None] = "attend_agents"
    op: Literal["attend"] = "attend"
    layer: Expr
    q: Name
    k_cache: Name
    v_cache: Name
    partial: Name
    tree: Name | None = unless(None)

    def numbers(self, geo: Geometry) -> dict[str, int]:
        agents = geo.role_size[self.role]
        return {
            "sharers": sharing(geo, agents),
            "tile_columns": tile_columns(queries(geo), geo.rows_each, of_turn(agents, geo)),
            "query_width": query_width(geo, self.q),
        }

    def _units(self, env: Env, geo: Geometry) -> list[Unit]:
        return units(env, geo, geo.role_size[self.role])

    def _share(self, unit: Unit, env: Env, geo: Geometry) -> tuple[int, list[tuple[int, int]], list[tuple[int, int]]]:
        """(first query vector of the agent's partials, its query vectors, its positions) of a KV head."""
        share, mine = attended(int(unit.agent), unit.agents, geo)
        each = sharing(geo, geo.role_size[self.role])
        runs = agent_positions(last_row(env.pos, geo), unit.split, share, each, geo) if mine else []
        return (unit.turn * each + share) * queries(geo), mine, runs

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        return [access for unit in self._units(env, geo) for access in self._of_unit(unit, env, geo)]

    def _of_unit(self, unit: Unit, env: Env, geo: Geometry) -> list[Access]:
        layer, dim = env.eval_int(self.layer), geo.model.head_dim
        base = (layer * geo.caches + unit.head) * geo.context
        first, mine, runs = self._share(unit, env, geo)
        # if a position is there, agents multiply with the query, some by nothing
        begun = unit.split * geo.kv_block <= last_row(env.pos, geo)
        out: list[Access] = []
        for vectors in mine:
            if begun:
                out += query_rows("read", self.q, vectors, layer, unit, geo)
            if self.tree is not None:
                low, last = (n // group_size(geo) for n in (vectors[0], vectors[1] - 1))
                out += geo.span("read", self.tree, TREE_WORDS * low, TREE_WORDS * (last + 1), None)
        for lo, hi in runs:
            for cache, kind in ((self.k_cache, "k"), (self.v_cache, "v")):
                old, new = min(hi, env.pos), max(lo, env.pos)
                out += geo.span("read", cache, (base + lo) * dim, (base + old) * dim, (f"{kind}.past", layer))
                out += geo.span("read", cache, (base + new) * dim, (base + hi) * dim, (kind, layer))
        width = partial_width(geo)
        for lo, hi in ((first + q0, first + q1) for q0, q1 in mine):
            out += geo.span("write", self.partial, lo * width, hi * width, ("att", layer))
        return out

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        for unit in self._units(env, geo):
            self._attend(unit, env, geo, mem)

    def _attend(self, unit: Unit, env: Env, geo: Geometry, mem: Memory) -> None:
        layer, dim = env.eval_int(self.layer), geo.model.head_dim
        base = (layer * geo.caches + unit.head) * geo.context
        first, mine, runs = self._share(unit, env, geo)
        begun = unit.split * geo.kv_block <= last_row(env.pos, geo)
        for q0, q1 in mine:
            out = np.zeros((q1 - q0, partial_width(geo)), np.float32)
            out[:, dim] = NEGATIVE
            width, own = query_width(geo, self.q), unit.turn * queries(geo)
            rows = [mem.read(self.q, (own + n) * width, (own + n) * width + dim) for n in range(q0, q1) if begun]
            query = np.asarray(rows, np.float32)
            seen = self._seen_rows(range(q0, q1), geo, mem)
            if runs:
                places = [((base + lo) * dim, (base + hi) * dim) for lo, hi in runs]
                k = np.concatenate([mem.read(self.k_cache, *r) for r in places]).reshape(-1, dim).astype(np.float32)
                v = np.concatenate([mem.read(self.v_cache, *r) for r in places]).reshape(-1, dim).astype(np.float32)
                positions = np.concatenate([np.arange(lo, hi) for lo, hi in runs]) - env.pos
                there = (positions < 0) | seen[:, np.maximum(positions, 0)]
                out[:] = _partials(query.reshape(-1, dim) @ k.T, v, there)
            mem.write(self.partial, (first + q0) * partial_width(geo), out.reshape(-1))

    def _seen_rows(self, vectors: range, geo: Geometry, mem: Memory) -> np.ndarray:
        """[query vectors, rows]: whether the vector's row sees the row."""
        seen = np.zeros((len(vectors), geo.rows_each), bool)
        for n, row in enumerate(vector // group_size(geo) for vector in vectors):
            seen[n, [*seen_before(mem, self.tree, row), row]] = True
        return seen


def _partials(scores: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """f32 [n, head_dim + 4] of scores [n, positions] where `mask` is True; (0, -1e30, 0) of a vector that sees none."""
    out = np.zeros((len(scores), v.shape[1] + PARTIAL_EXTRA), np.float32)
    peak = np.where(mask, scores, NEGATIVE).max(axis=1)
    weights = np.where(mask, np.exp(np.minimum(scores - peak[:, None], 0)), np.float32(0))
    out[:, :-PARTIAL_EXTRA], out[:, -PARTIAL_EXTRA], out[:, 1 - PARTIAL_EXTRA] = weights @ v, peak, weights.sum(axis=1)
    return out


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
