"""Matrix-vector product of the worker's rows, weights drained from the agents' private rings."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from amk.schedule_ir.block_point import BLOCK, whole_blocks
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.matrices import ROWS_PER_GROUP, MatrixName
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import F32, Access, Geometry, Memory, Op, ValueKey, owned_count, owned_groups, split

X_VALUE = {"qkv": "xn", "gate_up": "xn", "lm_head": "xn", "o": "xo", "down": "xd"}


def staged_value(name: MatrixName, layer: int, layers: int) -> ValueKey:
    """The staged vector that matrix `name` of `layer` multiplies, per the model graph."""
    index = {"qkv": 2 * layer, "gate_up": 2 * layer + 1, "lm_head": 2 * layers}.get(name, layer)
    return X_VALUE[name], index


def partial_value(name: MatrixName, layer: int) -> ValueKey:
    return f"acc.{name}", layer


class GemvOp(Op):
    """part[g + a, :] = W[group g, this agent's k chunks] @ x for each local row group g the agent touches.

    The worker's chunks form one group-major sequence of count * k_chunks; agent a drains its contiguous share. x has
    k elements (columns beyond k are zero padding and are not read but for the rest of a block), part is f32 [slots, 8].
    scales and sums are those of x's blocks (Staging), where the matrix is not in bf16. The slots of the last
    `deferred` chunks are refilled by the next `refill` step instead of at once.
    """

    op: Literal["gemv"] = "gemv"
    matrix: MatrixName
    layer: Expr
    stream: Name
    x: Name
    scales: Name | None = None
    sums: Name | None = None
    part: Name
    deferred: int = Field(default=0, ge=0, le=64)

    def share(self, env: Env, geo: Geometry) -> tuple[int, int, int]:
        """(first chunk, end chunk, k chunks per group) of the agent within the worker's sequence."""
        k_chunks = geo.k_chunks(self.stream, self.matrix)
        chunks = owned_count(env, self.matrix) * k_chunks
        lo, hi = split(chunks, geo.role_size[self.role], int(env.agent))
        return lo, hi, k_chunks

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        lo, hi, k_chunks = self.share(env, geo)
        if lo == hi:
            return []
        layer = env.eval_int(self.layer)
        width, k = geo.columns(self.stream, self.matrix), geo.matrix(self.matrix).k
        columns = {c % k_chunks for c in range(lo, min(hi, lo + k_chunks))}
        x = staged_value(self.matrix, layer, geo.model.layers)
        reads = [a for c in sorted(columns) for a in self._reads(geo, c * width, min((c + 1) * width, k), x)]
        slots = range(lo // k_chunks + int(env.agent), (hi - 1) // k_chunks + int(env.agent) + 1)
        value = partial_value(self.matrix, layer)
        return [
            *reads,
            *geo.span("write", self.part, slots.start * ROWS_PER_GROUP, slots.stop * ROWS_PER_GROUP, value),
        ]

    def _reads(self, geo: Geometry, lo: int, hi: int, value: ValueKey) -> list[Access]:
        """Of x and its blocks, for columns [lo, hi)."""
        end = hi if geo.buffers[self.x].dtype == "bf16" else whole_blocks(hi) * BLOCK
        out = geo.span("read", self.x, lo, end, value)
        for name, kind in ((self.scales, "scales"), (self.sums, "sums")):
            if name is not None:
                out += geo.span("read", name, lo // BLOCK, whole_blocks(hi), (f"{value[0]}.{kind}", value[1]))
        return out

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        lo, hi, k_chunks = self.share(env, geo)
        layer, agent = env.eval_int(self.layer), int(env.agent)
        first = owned_groups(env, self.matrix)[0]
        width, k = geo.columns(self.stream, self.matrix), geo.matrix(self.matrix).k
        sums: dict[int, np.ndarray] = {}
        for chunk in range(lo, hi):
            group, column = divmod(chunk, k_chunks)
            tile = mem.tile(self.stream, self.matrix, layer, first + group, column)
            c0, c1 = column * width, min((column + 1) * width, k)
            product = tile[:, : c1 - c0].astype(np.float32) @ self.read_x(geo, mem, c0, c1)
            sums[group] = sums[group] + product if group in sums else product
        for group, total in sums.items():
            mem.write(self.part, (group + agent) * ROWS_PER_GROUP, total)

    def read_x(self, geo: Geometry, mem: Memory, lo: int, hi: int) -> F32:
        """Elements [lo, hi) of x; all that the footprint names for them is read."""
        for access in self._reads(geo, lo, hi, ("", 0))[1:]:
            mem.read(access.buffer, access.lo // 4, access.hi // 4)
        end = hi if geo.buffers[self.x].dtype == "bf16" else whole_blocks(hi) * BLOCK
        return np.asarray(mem.read(self.x, lo, end), np.float32)[: hi - lo]
