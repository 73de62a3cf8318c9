"""Combine the splits of a kv head's outputs, each worker of the head a slice of them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.attend import merge_partials
from amk.schedule_ir.ops.attention import active_splits, group_size, partial_width, place
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op, split


class ReduceSplitsOp(Op):
    """attn[i] = combined attention output i, for the slice [n*s/splits, n*(s+1)/splits) of the kv head's n outputs.

    Worker (kv head, split s) does slice s, whether or not its split owns a position. A slice lies in one query head.
    """

    op: Literal["reduce_splits"] = "reduce_splits"
    layer: Expr
    split_partial: Name
    split_scale: Name
    attn: Name

    def _slice(self, env: Env, geo: Geometry) -> tuple[int, int, int] | None:
        """(query head, first dim, end dim) of the worker's slice; None if it serves no head."""
        head, part = place(env)
        if head < 0:
            return None
        dim, group = geo.model.head_dim, group_size(geo)
        lo, hi = split(group * dim, geo.kv_splits, part)
        return head * group + lo // dim, lo % dim, lo % dim + hi - lo

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        found = self._slice(env, geo)
        if found is None:
            return []
        (head, d0, d1), layer, dim = found, env.eval_int(self.layer), geo.model.head_dim
        out: list[Access] = []
        for s in range(active_splits(env.pos, geo)):
            row = head * geo.kv_splits + s
            out += geo.span("read", self.split_partial, row * dim + d0, row * dim + d1, ("part", layer))
            out += geo.span("read", self.split_scale, row * 2, row * 2 + 2, ("scale", layer))
        return [*out, *geo.span("write", self.attn, head * dim + d0, head * dim + d1, ("ao", layer))]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        found = self._slice(env, geo)
        if found is None:
            return
        (head, d0, d1), dim = found, geo.model.head_dim
        parts = np.zeros((active_splits(env.pos, geo), partial_width(geo)), np.float32)
        for s in range(len(parts)):
            row = head * geo.kv_splits + s
            parts[s, d0:d1] = mem.read(self.split_partial, row * dim + d0, row * dim + d1)
            parts[s, dim : dim + 2] = mem.read(self.split_scale, row * 2, row * 2 + 2)
        merged = merge_partials(parts, dim)
        mem.write(self.attn, head * dim + d0, merged[d0:d1] / merged[dim + 1])


def sliceable(heads: int, kv_heads: int, dim: int, splits: int) -> bool:
    """Whether the device can reduce: a slice is 4, 8, .. 128 outputs of one query head."""
    outputs = heads // kv_heads * dim
    return outputs % splits == 0 and outputs // splits in (4, 8, 16, 32, 64, 128) and dim % (outputs // splits) == 0
