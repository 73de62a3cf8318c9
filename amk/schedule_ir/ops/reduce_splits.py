"""Combine the splits of a kv head's outputs, each worker of the head a slice of them."""

from __future__ import annotations

from math import gcd
from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.attend import merge_partials
from amk.schedule_ir.ops.attention import Unit, active_splits, group_size, partial_width, queries, units
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op, split
from amk.schedule_ir.ops.precondition import (
    DIM,
    HEADS,
    KV_HEADS,
    ROWS,
    SPLITS,
    Need,
    Site,
    Term,
    is_a,
    row,
    untagged,
    wide,
)


def _in_pieces(site: Site) -> bool:
    model = site.geo.model
    return sliceable(model.heads, model.kv_heads, model.head_dim, site.geo.kv_splits, 2**20)


class ReduceSplitsOp(Op):
    """attn[i] = combined attention output i, for the slice [n*s/splits, n*(s+1)/splits) of the kv head's n outputs.

    Worker (kv head, split s) does slice s, whether or not its split owns a position. A slice is done in equal pieces of
    at most 128 outputs, each of which lies in one query head; piece i is done by agent i % n. Where a step reads
    several rows of a sequence, the outputs are those of all its query vectors, and attn has a row for each.
    """

    registers: ClassVar[tuple[str, ...]] = ("pos",)
    needs: ClassVar[tuple[Need, ...]] = (
        Need("slices", (HEADS // KV_HEADS * DIM).multiple_of(SPLITS), "the workers of a head have equal slices"),
        Need("pieces", Term(_in_pieces), "a slice is pieces of at least four outputs of one head"),
        Need("fetches", wide("split_partial").equals(4), "a fetch is four outputs"),
        Need("pairs", untagged("attn") | is_a("attn", "bf16"), "outputs with tags are bf16, two to a word"),
        Need(
            "rows",
            untagged("attn") | (ROWS <= 1) | row("attn").multiple_of(wide("attn")),
            "a row of outputs is whole stores",
        ),
    )
    op: Literal["reduce_splits"] = "reduce_splits"
    layer: Expr
    split_partial: Name
    split_scale: Name
    attn: Name

    def _pieces(self, env: Env, geo: Geometry) -> list[tuple[int, int, int]]:
        """(query vector, first dim, end dim) of each of the agent's pieces; none if its worker serves no head."""
        served = units(env, geo, geo.role_size[self.role])
        return [found for unit in served for found in self._of_unit(unit, geo)]

    def _of_unit(self, unit: Unit, geo: Geometry) -> list[tuple[int, int, int]]:
        dim, group = geo.model.head_dim, queries(geo)
        lo, hi = split(group * dim, geo.kv_splits, unit.split)
        step = piece(hi - lo, dim)
        pieces = range(int(unit.agent), (hi - lo) // step, unit.agents)
        starts = (lo + n * step for n in pieces)
        return [(unit.head * group + at // dim, at % dim, at % dim + step) for at in starts]

    def _output(self, vector: int, geo: Geometry) -> int:
        """First element of a query vector's output."""
        if geo.rows_each == 1:
            return vector * geo.model.head_dim
        head, local = divmod(vector, queries(geo))
        r, g = divmod(local, group_size(geo))
        return geo.row(self.attn, r) + (head * group_size(geo) + g) * geo.model.head_dim

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer, dim = env.eval_int(self.layer), geo.model.head_dim
        out: list[Access] = []
        for head, d0, d1 in self._pieces(env, geo):
            for s in range(active_splits(env.pos, geo)):
                row = head * geo.kv_splits + s
                out += geo.span("read", self.split_partial, row * dim + d0, row * dim + d1, ("part", layer))
                out += geo.span("read", self.split_scale, row * 2, row * 2 + 2, ("scale", layer))
            at = self._output(head, geo)
            out += geo.span("write", self.attn, at + d0, at + d1, ("ao", layer))
        return out

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        dim = geo.model.head_dim
        for head, d0, d1 in self._pieces(env, geo):
            parts = np.zeros((active_splits(env.pos, geo), partial_width(geo)), np.float32)
            for s in range(len(parts)):
                row = head * geo.kv_splits + s
                parts[s, d0:d1] = mem.read(self.split_partial, row * dim + d0, row * dim + d1)
                parts[s, dim : dim + 2] = mem.read(self.split_scale, row * 2, row * 2 + 2)
            merged = merge_partials(parts, dim)
            mem.write(self.attn, self._output(head, geo) + d0, merged[d0:d1] / merged[dim + 1])


LARGEST_PIECE = 128
"""Outputs that a warp reduces at a time: four a lane."""


def piece(outputs: int, dim: int) -> int:
    """Outputs of a piece of a slice: the most that divide the slice and lie in one query head."""
    return gcd(outputs, dim, LARGEST_PIECE)


def sliceable(heads: int, kv_heads: int, dim: int, splits: int, pieces: int = 1) -> bool:
    """Whether the device can reduce: a slice is at most `pieces` pieces of 4, 8, .. 128 outputs of one query head."""
    outputs = heads // kv_heads * dim
    if outputs % splits:
        return False
    step = piece(outputs // splits, dim)
    return step >= 4 and outputs // splits <= pieces * step
