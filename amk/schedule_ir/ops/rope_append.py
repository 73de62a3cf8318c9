"""Rotate the query heads of one kv head; rotate and append the key, append the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from amk.report.schema import unless
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.attention import (
    QUERIES,
    TREE_OF_ROWS,
    TREE_WORDS,
    Unit,
    group_size,
    owns_position,
    queries,
    query_rows,
    query_width,
    seen_before,
    units,
)
from amk.schedule_ir.ops.base import F32, Access, BufferField, FloatArray, Geometry, Memory, Op
from amk.schedule_ir.ops.precondition import BLOCK, DIM, ROWS, Need, as_model, row


class RopeAppendOp(Op):
    """q[g, :] = rope(norm(qkv query head)) / sqrt(head_dim) for each query head of the worker's kv head; the worker
    whose split owns the position also writes k_cache[layer, head, pos] = rope(norm(key)) and v_cache[layer, head, pos].

    Piece u (query heads, then key, then value) is done by agent u % n. norm is the per-head RMSNorm of Qwen3, when the
    schedule names q_norm and k_norm. rope is f32 [max_context, head_dim]: cosines, then sines, of head_dim/2 angles.

    Where a step reads several rows of a sequence, row r is at pos + r and its query heads are q[r * group + g]. Agent 0
    has the keys that the worker owns, agent 1 the values: a cache has one writer. Query vector i is done by agent
    2 + i % (n - 2); two agents and fewer share the query vectors as well. If they are a tree, row r is rotated as at
    the position behind the rows before it that it sees, which `tree` names (i32 [rows, 2], bits).
    """

    registers: ClassVar[tuple[str, ...]] = ("pos",)
    needs: ClassVar[tuple[Need, ...]] = (
        Need("pairs", DIM.multiple_of(4), "halves of a head are whole pairs"),
        as_model("q_norm", "qk_norm"),
        as_model("k_norm", "qk_norm"),
        QUERIES,
        TREE_OF_ROWS,
        Need("row-pairs", (ROWS <= 1) | row("qkv").multiple_of(2), "of several rows, each begins at whole pairs"),
        Need("rows", ROWS <= BLOCK, "the rows of a step lie in two blocks at most"),
    )
    own_fields: ClassVar[Mapping[str, BufferField]] = {"tree": BufferField("global", "i32", "tree")}
    op: Literal["rope_append"] = "rope_append"
    layer: Expr
    qkv: Name
    rope: Name
    q_norm: Name | None = None
    k_norm: Name | None = None
    q: Name
    k_cache: Name
    v_cache: Name
    tree: Name | None = unless(None)

    def numbers(self, geo: Geometry) -> dict[str, int]:
        return {"query_width": query_width(geo, self.q)}

    def _pieces(self, env: Env, geo: Geometry) -> list[tuple[Unit, str, int, int, int]]:
        """(KV head, kind, query vector of it, row, first element in qkv) for the agent's pieces."""
        served = units(env, geo, geo.role_size[self.role])
        return [(unit, *piece) for unit in served for piece in self._of_unit(unit, env, geo)]

    def _of_unit(self, unit: Unit, env: Env, geo: Geometry) -> list[tuple[str, int, int, int]]:
        model, group, dim = geo.model, group_size(geo), geo.model.head_dim
        sequence, head = divmod(unit.head, model.kv_heads)
        rows = range(geo.rows_each)
        firsts = [geo.row(self.qkv, sequence * len(rows) + r) for r in rows]
        agents = unit.agents
        heads = [("q", r * group + g, r, firsts[r] + (head * group + g) * dim) for r in rows for g in range(group)]
        first, writers = (0, (len(heads), len(heads) + 1)) if len(rows) == 1 else (2 * (agents > 2), (0, 1))
        mine = [piece for i, piece in enumerate(heads) if first + i % (agents - first) == unit.agent]
        for kind, before, writer in (("k", model.heads, writers[0]), ("v", model.heads + model.kv_heads, writers[1])):
            if writer % agents == unit.agent:
                owned = [r for r in rows if owns_position(env.pos + r, unit.split, geo)]
                mine += [(kind, 0, r, firsts[r] + (before + head) * dim) for r in owned]
        return mine

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer, dim, context = env.eval_int(self.layer), geo.model.head_dim, geo.context
        out: list[Access] = []
        for unit, kind, local, r, first in self._pieces(env, geo):
            pos = env.pos + r
            row = ((layer * geo.caches + unit.head) * context + pos) * dim
            out += geo.span("read", self.qkv, first, first + dim, ("qkv", layer))
            norm = {"q": self.q_norm, "k": self.k_norm, "v": None}[kind]
            if norm:
                out += geo.span("read", norm, layer * dim, (layer + 1) * dim, None)
            if self.tree is not None:
                out += geo.span("read", self.tree, TREE_WORDS * r, TREE_WORDS * (r + 1), None)
            nearest = env.pos if self.tree is not None else pos  # of a tree: as many rows are before it as it sees
            out += geo.span("read", self.rope, nearest * dim, (pos + 1) * dim, None)
            if kind == "q":
                out += query_rows("write", self.q, (local, local + 1), layer, unit, geo)
            else:
                out += geo.span("write", self.k_cache if kind == "k" else self.v_cache, row, row + dim, (kind, layer))
        return out

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        layer, dim, context = env.eval_int(self.layer), geo.model.head_dim, geo.context
        for unit, kind, local, r, first in self._pieces(env, geo):
            pos = env.pos + r
            row = ((layer * geo.caches + unit.head) * context + pos) * dim
            y = np.asarray(mem.read(self.qkv, first, first + dim), np.float32)
            turn = env.pos + len(seen_before(mem, self.tree, r))
            table = mem.read(self.rope, turn * dim, (turn + 1) * dim)
            if kind == "v":
                mem.write(self.v_cache, row, y)
                continue
            y = self._rotate(self._normed(y, kind, layer, geo, mem), table)
            if kind == "q":
                at = unit.turn * queries(geo) + local
                mem.write(self.q, at * query_width(geo, self.q), y * np.float32(dim**-0.5))
            else:
                mem.write(self.k_cache, row, y)

    def _normed(self, y: F32, kind: str, layer: int, geo: Geometry, mem: Memory) -> F32:
        norm = self.q_norm if kind == "q" else self.k_norm
        if not norm:
            return y
        dim = geo.model.head_dim
        scale = np.float32(1) / np.sqrt(np.mean(y * y, dtype=np.float32) + np.float32(geo.model.rms_eps))
        return np.asarray(y * scale * mem.read(norm, layer * dim, (layer + 1) * dim), np.float32)

    def _rotate(self, y: F32, table: FloatArray) -> F32:
        half = y.size // 2
        cos, sin = table[:half], table[half:]
        return np.asarray(
            np.concatenate([y[:half] * cos - y[half:] * sin, y[half:] * cos + y[:half] * sin]), np.float32
        )
