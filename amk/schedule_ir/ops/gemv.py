"""Matrix-vector product of the worker's rows, weights drained from the agents' private rings."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.matrices import ROWS_PER_GROUP, MatrixName
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op, ValueKey, owned_count, owned_groups, split
from amk.schedule_ir.outside import unless

X_VALUE = {"qkv": "xn", "gate_up": "xn", "lm_head": "xn", "o": "xo", "down": "xd"}


def staged_value(name: MatrixName, layer: int, layers: int) -> ValueKey:
    """The staged vector that matrix `name` of `layer` multiplies, per the model graph."""
    index = {"qkv": 2 * layer, "gate_up": 2 * layer + 1, "lm_head": 2 * layers}.get(name, layer)
    return X_VALUE[name], index


def partial_value(name: MatrixName, layer: int) -> ValueKey:
    """The partial sums of matrix `name` over all of its columns."""
    return f"acc.{name}", layer


class GemvOp(Op):
    """part[g + a, s] = W[group g, this agent's k chunks] @ x[s] for each local row group g the agent touches.

    The worker's chunks form one group-major sequence of count * k_chunks; agent a drains its contiguous share. x has
    k elements (columns beyond k are zero padding and are not read) for each sequence s of the batch, part is f32
    [slots, batch, 8]: the weights are read once, whatever the batch. The slots of the last `deferred` chunks are
    refilled by the next `refill` step instead of at once.

    Where x of all columns does not fit, the product is done in k_parts steps. Step k_part has the columns
    [k * k_part / k_parts, k * (k_part + 1) / k_parts), of which x holds the values, and adds to the partial sums that
    the step before it left: every agent has the same row groups in all of them, so a sum has one writer.
    """

    op: Literal["gemv"] = "gemv"
    matrix: MatrixName
    layer: Expr
    stream: Name
    x: Name
    part: Name
    deferred: int = Field(default=0, ge=0, le=64)
    k_part: int = unless(0, ge=0, le=7)
    k_parts: int = unless(1, ge=1, le=8)

    def share(self, env: Env, geo: Geometry) -> tuple[int, int, int]:
        """(first chunk, end chunk, k chunks per group) of the agent within the worker's sequence of this part."""
        k_chunks = geo.k_chunks(self.stream, self.matrix) // self.k_parts
        chunks = owned_count(env, self.matrix) * k_chunks
        lo, hi = split(chunks, geo.role_size[self.role], int(env.agent))
        return lo, hi, k_chunks

    def columns(self, geo: Geometry) -> tuple[int, int]:
        """(first column, end column) of this part."""
        k = geo.matrix(self.matrix).k
        return k * self.k_part // self.k_parts, k * (self.k_part + 1) // self.k_parts

    def _sums(self, layer: int, part: int) -> ValueKey:
        """The partial sums after step `part`."""
        name, index = partial_value(self.matrix, layer)
        return (name, index) if part == self.k_parts - 1 else (f"{name}.{part}", index)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        lo, hi, k_chunks = self.share(env, geo)
        if lo == hi:
            return []
        layer = env.eval_int(self.layer)
        width, k, (first, end) = geo.columns(self.stream, self.matrix), geo.matrix(self.matrix).k, self.columns(geo)
        columns = {c % k_chunks for c in range(lo, min(hi, lo + k_chunks))}
        x = staged_value(self.matrix, layer, geo.model.layers)
        spans = [(c * width, min((c + 1) * width, end - first)) for c in sorted(columns)]
        reads = [a for c0, c1 in spans for a in geo.rows("read", self.x, c0, c1, x, k, first + c0)]
        slots = range(lo // k_chunks + int(env.agent), (hi - 1) // k_chunks + int(env.agent) + 1)
        size = ROWS_PER_GROUP * geo.batch
        own = slots.start * size, slots.stop * size
        if self.k_part:
            reads += geo.span("read", self.part, *own, self._sums(layer, self.k_part - 1))
        return [*reads, *geo.span("write", self.part, *own, self._sums(layer, self.k_part))]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        lo, hi, k_chunks = self.share(env, geo)
        layer, agent = env.eval_int(self.layer), int(env.agent)
        first = owned_groups(env, self.matrix)[0]
        width, (begin, end) = geo.columns(self.stream, self.matrix), self.columns(geo)
        sums: dict[int, np.ndarray] = {}
        for chunk in range(lo, hi):
            group, column = divmod(chunk, k_chunks)
            tile = mem.tile(self.stream, self.matrix, layer, first + group, self.k_part * k_chunks + column)
            c0, c1 = column * width, min((column + 1) * width, end - begin)
            rows = tile[:, : c1 - c0].astype(np.float32)
            starts = [geo.row(self.x, s) for s in range(geo.batch)]
            product = np.stack([rows @ np.asarray(mem.read(self.x, at + c0, at + c1), np.float32) for at in starts])
            sums[group] = sums[group] + product if group in sums else product
        for group, total in sums.items():
            size = ROWS_PER_GROUP * geo.batch
            at = (group + agent) * size
            before = mem.read(self.part, at, at + size) if self.k_part else np.float32(0)
            mem.write(self.part, at, before + total.reshape(-1))
