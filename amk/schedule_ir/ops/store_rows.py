"""Publish query, key and value rows."""

from __future__ import annotations

from typing import ClassVar, Literal

from amk.models.matrices import MatrixName
from amk.report.schema import unless
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import (
    Access,
    Count,
    Geometry,
    Memory,
    Op,
    Partials,
    agent_rows,
    inverse_rms,
)
from amk.schedule_ir.ops.precondition import MAX_PARTS, PARTS, RESCALED, SSQ, SUMS, Need, biased


class StoreRowsOp(Op):
    """out[row] = sum of partials / rms + bias[layer, row] for the worker's qkv rows; agents share whole row groups.

    k_parts: steps in which `gemv` made the partial sums. ssq: the sums of squares that rms is of; without them the
    input was normalised as a whole.
    """

    sums_of: ClassVar[MatrixName | None] = "qkv"
    needs: ClassVar[tuple[Need, ...]] = (
        *SUMS,
        SSQ,
        RESCALED,
        PARTS,
        biased(),
    )
    op: Literal["store_rows"] = "store_rows"
    layer: Expr
    stream: Name
    part: Name
    ssq: Name | None = unless(None)
    ssq_agents: Count = unless(0)
    bias: Name | None = None
    out: Name
    k_parts: int = unless(1, ge=1, le=MAX_PARTS)

    def _partials(self, layer: int) -> Partials:
        return Partials(self.part, self.stream, "qkv", layer, self.k_parts)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer = env.eval_int(self.layer)
        groups, lo, hi = agent_rows(env, geo, self.role, "qkv")
        if lo == hi:
            return []
        rows = geo.matrix("qkv").rows
        bias = geo.span("read", self.bias, layer * rows + lo, layer * rows + hi, None) if self.bias else []
        return [
            *self._partials(layer).reads(env, geo, groups),
            *geo.squares(self.ssq, self.ssq_agents, geo.norm_of("qkv", layer)),
            *bias,
            *geo.rows("write", self.out, lo, hi, ("qkv", layer)),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        groups, lo, hi = agent_rows(env, geo, self.role, "qkv")
        if lo == hi:
            return
        layer = env.eval_int(self.layer)
        y = self._partials(layer).sums(env, geo, mem, groups)[:, : hi - lo]
        if self.ssq is not None:
            y *= inverse_rms(geo, mem, self.ssq, self.ssq_agents)
        if self.bias:
            base = layer * geo.matrix("qkv").rows
            y += mem.read(self.bias, base + lo, base + hi)
        for s in range(geo.vectors):
            mem.write(self.out, geo.row(self.out, s) + lo, y[s])
