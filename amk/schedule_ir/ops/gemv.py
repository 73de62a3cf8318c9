"""Matrix-vector product of the worker's rows, weights drained from the agents' private rings."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from amk.models.matrices import ROWS_PER_GROUP, MatrixName, scale_shape
from amk.models.model_spec import ModelSpec
from amk.report.schema import unless
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import (
    F32,
    Access,
    Geometry,
    Memory,
    Op,
    ValueKey,
    own_sums,
    owned_count,
    owned_groups,
    owned_split,
    part_columns,
    partial_value,
    split,
)
from amk.schedule_ir.ops.precondition import (
    ALONE,
    APART,
    BATCH,
    CODES,
    COLUMNS,
    MAX_PARTS,
    MAX_SPLITS,
    ROW_GROUPS,
    SPLIT_PARTS,
    SUMS,
    UNIT,
    K,
    Need,
    has,
    number,
    own,
    own_scales,
    owners_of_ring,
    row,
    staged_as,
    whole_chunks,
)
from amk.schedule_ir.ops.staging import x_place
from amk.weights.weight_format import BLOCK, whole_blocks

WHOLE = (own("k_parts") * own("k_splits")).equals(1)
WIDE = 8
"""Tokens of a step beyond which x is the operand of 16 rows."""


def staged_value(model: ModelSpec, name: MatrixName, layer: int) -> ValueKey:
    """The staged vector that matrix `name` of `layer` multiplies, per the model's graph.

    Norms are counted over the model, what attention and the activation make by layers.
    """
    norm = model.graph.norm_of(name, layer, model.layers)
    if norm is not None:
        return "xn", norm
    return "xo" if model.graph.products[name].reads == "attn" else "xd", layer


def _columns(lo: int, hi: int, k_chunks: int) -> list[tuple[int, int]]:
    """The runs of k chunks that chunks [lo, hi) of a group-major sequence lie in."""
    if hi - lo >= k_chunks:
        return [(0, k_chunks)]
    first, end = lo % k_chunks, lo % k_chunks + hi - lo
    return [(first, end)] if end <= k_chunks else [(0, end - k_chunks), (first, k_chunks)]


class GemvOp(Op):
    """part[g + a, s] = W[group g, this agent's k chunks] @ x[s] for each local row group g the agent touches.

    The worker's chunks form one group-major sequence of count * k_chunks; agent a drains its contiguous share. A chunk
    of two row groups is multiplied with what is read of x once; every worker then has whole pairs of them, and slot
    g + 2 a of part has what agent a sums of group g, g + a otherwise. x has
    k elements (columns beyond k are zero padding and are not read but for the rest of a block) for each sequence s of
    the batch, part is f32 [slots, batch, 8]: the weights are read once, whatever the batch. part is shared memory, or a
    global buffer [workers, slots, batch, 8] of which every worker has a slice. scales and sums are those of x's blocks
    (Staging), where the matrix is not in bf16. row_scales: where the chunks are codes only, the scales of
    the matrix's rows; a sum is multiplied with its row's before it is written. With one sequence x is staged as the
    format of the matrix has it, with several in bf16, as which codes are exact. An agent owes a
    refill for every slot that it has drained and not asked a copy into; the oldest is issued first. A drain with n
    chunks of the step to come holds its refill back if at most deferred - n are then owed, and otherwise issues one.
    So a step that owes nothing when it begins owes its last `deferred` chunks when it ends, and a step that begins
    with more than it defers goes on owing as many.

    Where x of all columns does not fit, the product is done in k_parts steps. Step k_part has the columns
    [k * k_part / k_parts, k * (k_part + 1) / k_parts), of which x holds the values, and adds to the partial sums that
    the step before it left: every agent has the same row groups in all of them, so a sum has one writer.

    Where the columns are divided among k_splits workers with the same rows, a worker's share of them takes the place of
    all columns, and its rows are those of table `k_split` (matrices.K_SPLIT). The sums are then of that share alone
    (`store_sums`).
    """

    needs: ClassVar[tuple[Need, ...]] = (
        *SUMS,
        SPLIT_PARTS,
        Need("ring", owners_of_ring(), "the warps that drain a ring are those that refill it"),
        Need(
            "whole-chunks",
            (CODES & WHOLE) | K.multiple_of(COLUMNS * own("k_parts") * own("k_splits")),
            "chunks cover the columns exactly",
        ),
        Need(
            "pairs",
            ROW_GROUPS.equals(1) | (~CODES & (number(WIDE) < BATCH) & whole_chunks()),
            "chunks of two row groups are bf16, of workers with whole pairs, for more than 8 tokens of a step",
        ),
        Need("whole-tiles", COLUMNS.multiple_of(UNIT), "a chunk is whole tiles and whole groups"),
        Need("codes", ~ALONE | WHOLE | ~CODES, "codes take one sequence's columns all at once"),
        Need("runs", ALONE | K.multiple_of(8), "several sequences' columns are whole 16 bytes"),
        Need("layout", staged_as(), "x has the layout, scales and sums that the matrix's format is multiplied with"),
        Need("rows", ALONE | row("x").multiple_of(8), "every sequence's row of x is whole 16 bytes"),
        Need("part", own("k_part") < own("k_parts"), "the part is one of them"),
        Need(
            "scales",
            has("row_scales").equals(APART),
            "scales of rows stand apart or in the chunks",
        ),
        Need("own-scales", own_scales(), "the scales of rows are those of the matrix"),
    )
    op: Literal["gemv"] = "gemv"
    of_split: ClassVar[bool] = True
    matrix: MatrixName
    layer: Expr
    stream: Name
    x: Name
    scales: Name | None = None
    sums: Name | None = None
    row_scales: Name | None = unless(None)
    part: Name
    deferred: int = Field(default=0, ge=0, le=64)
    k_part: int = unless(0, ge=0, le=MAX_PARTS - 1)
    k_parts: int = unless(1, ge=1, le=MAX_PARTS)
    k_splits: int = unless(1, ge=1, le=MAX_SPLITS)

    def share(self, env: Env, geo: Geometry) -> tuple[int, int, int]:
        """(first chunk, end chunk, chunks beside each other) of the agent in the worker's sequence of this part."""
        k_chunks = geo.k_chunks(self.stream, self.matrix, env.eval_int(self.layer)) // (self.k_parts * self.k_splits)
        chunks = owned_count(env, self.matrix, self.k_splits) // geo.streams[self.stream].row_groups * k_chunks
        lo, hi = split(chunks, geo.role_size[self.role], int(env.agent))
        return lo, hi, k_chunks

    def layer_at(self, loops: Mapping[str, int]) -> int:
        """The layer with these loop variables."""
        return Env(loops=loops, worker=0).eval_int(self.layer)

    def columns(self, env: Env, geo: Geometry) -> tuple[int, int]:
        """(first column, number of columns) of this part of the worker's share."""
        return part_columns(geo.matrix(self.matrix).k, env, self.k_part, self.k_parts, self.k_splits)

    def _sums(self, layer: int, part: int) -> ValueKey:
        """The partial sums after step `part`."""
        name, index = partial_value(self.matrix, layer, self.k_splits)
        return (name, index) if part == self.k_parts - 1 else (f"{name}.{part}", index)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        lo, hi, k_chunks = self.share(env, geo)
        if lo == hi:
            return []
        layer = env.eval_int(self.layer)
        width, (first, size) = geo.columns(self.stream, self.matrix, layer), self.columns(env, geo)
        x = staged_value(geo.model, self.matrix, layer)
        runs = [(c * width, min(d * width, size)) for c, d in _columns(lo, hi, k_chunks)]
        reads = [access for run in runs for access in self._reads(geo, *run, x, first)]
        slots = range(lo // k_chunks + int(env.agent), (hi - 1) // k_chunks + int(env.agent) + 1)
        size = ROWS_PER_GROUP * geo.vectors * geo.streams[self.stream].row_groups
        at = own_sums(env, geo, self.part)
        own = at + slots.start * size, at + slots.stop * size
        if self.row_scales is not None:
            rows = self._scale_rows(env, geo, lo // k_chunks, (hi - 1) // k_chunks + 1)
            reads += geo.span("read", self.row_scales, *rows, None)
        if self.k_part:
            reads += geo.span("read", self.part, *own, self._sums(layer, self.k_part - 1))
        return [*reads, *geo.span("write", self.part, *own, self._sums(layer, self.k_part))]

    def _scale_rows(self, env: Env, geo: Geometry, group: int, end: int) -> tuple[int, int]:
        """Elements of `row_scales` for local row groups [group, end)."""
        at = env.eval_int(self.layer) * scale_shape(geo.model, self.matrix)[1]
        first = owned_groups(env, self.matrix, self.k_splits)[0]
        return at + (first + group) * ROWS_PER_GROUP, at + (first + end) * ROWS_PER_GROUP

    def _reads(self, geo: Geometry, lo: int, hi: int, value: ValueKey, first: int) -> list[Access]:
        """Of every sequence's x and its blocks, for columns [lo, hi) of this part, which begins at column `first`."""
        end = hi if geo.buffers[self.x].dtype == "bf16" else whole_blocks(hi) * BLOCK
        k = geo.matrix(self.matrix).k
        out = geo.rows("read", self.x, lo, end, value, k, first + lo)
        for name, kind in ((self.scales, "scales"), (self.sums, "sums")):
            if name is not None:
                out += geo.span("read", name, lo // BLOCK, whole_blocks(hi), (f"{value[0]}.{kind}", value[1]))
        return out

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        lo, hi, k_chunks = self.share(env, geo)
        layer, agent = env.eval_int(self.layer), int(env.agent)
        first = owned_groups(env, self.matrix, self.k_splits)[0]
        width, size = geo.columns(self.stream, self.matrix, layer), self.columns(env, geo)[1]
        whole = (owned_split(env, self.k_splits) * self.k_parts + self.k_part) * k_chunks
        sums: dict[int, np.ndarray] = {}
        each = geo.streams[self.stream].row_groups
        for chunk, half in product(range(lo, hi), range(each)):
            at, column = divmod(chunk, k_chunks)
            group = at * each + half
            tile = mem.tile(self.stream, self.matrix, layer, first + group, whole + column)
            c0, c1 = column * width, min((column + 1) * width, size)
            rows = tile[:, : c1 - c0].astype(np.float32)
            found = np.array([rows @ self.read_x(geo, mem, c0, c1, s) for s in range(geo.vectors)])
            sums[group] = sums[group] + found if group in sums else found
        for group, total in sums.items():
            size = ROWS_PER_GROUP * geo.vectors
            at = own_sums(env, geo, self.part) + (group + agent * each) * size
            before = mem.read(self.part, at, at + size) if self.k_part else np.float32(0)
            if self.row_scales is not None:
                total = total * mem.read(self.row_scales, *self._scale_rows(env, geo, group, group + 1))
            mem.write(self.part, at, before + total.reshape(-1))

    def read_x(self, geo: Geometry, mem: Memory, lo: int, hi: int, sequence: int = 0) -> F32:
        """Elements [lo, hi) of a sequence's x; all that the footprint names for them is read."""
        beside = self._reads(geo, lo, hi, ("", 0), 0) if self.scales or self.sums else ()
        for access in beside:
            if access.buffer != self.x:
                mem.read(access.buffer, access.lo // 4, access.hi // 4)
        at = geo.row(self.x, sequence)
        if geo.buffers[self.x].dtype == "bf16":
            return np.asarray(mem.read(self.x, at + lo, at + hi), np.float32)[x_place(np.arange(hi - lo))]
        return np.asarray(mem.read(self.x, at + lo, at + whole_blocks(hi) * BLOCK), np.float32)[: hi - lo]
