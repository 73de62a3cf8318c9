"""SwiGLU of the worker's gate and up rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from amk.models.matrices import MatrixName
from amk.report.schema import unless
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import (
    F32,
    Access,
    Count,
    Geometry,
    Memory,
    Op,
    Partials,
    inverse_rms,
    owned_groups,
    split,
)
from amk.schedule_ir.ops.precondition import ALONE, FFN, MAX_PARTS, PARTS, SSQ, SUMS, TAKING_OP, Need, row, untagged

OUTPUTS_PER_GROUP = 4


class SwigluOp(Op):
    """act[i] = silu(gate[i]) * up[i], gate and up being the group's first and last four rows, both divided by rms.

    k_parts: steps in which `gemv` made the partial sums.
    """

    sums_of: ClassVar[MatrixName | None] = "gate_up"
    needs: ClassVar[tuple[Need, ...]] = (
        *SUMS,
        TAKING_OP,
        SSQ,
        PARTS,
        Need("pairs", untagged("act") | FFN.multiple_of(2), "two elements share a word"),
        Need("rows", untagged("act") | ALONE | row("act").multiple_of(2), "every sequence's row is whole words"),
    )
    op: Literal["swiglu"] = "swiglu"
    layer: Expr
    stream: Name
    part: Name
    ssq: Name
    ssq_agents: Count
    act: Name
    k_parts: int = unless(1, ge=1, le=MAX_PARTS)

    def _rows(self, env: Env, geo: Geometry) -> tuple[range, int, int]:
        first, count = owned_groups(env, "gate_up")
        g0, g1 = split(count, geo.role_size[self.role], int(env.agent))
        ffn = geo.model.ffn
        return range(g0, g1), min((first + g0) * OUTPUTS_PER_GROUP, ffn), min((first + g1) * OUTPUTS_PER_GROUP, ffn)

    def _partials(self, layer: int) -> Partials:
        return Partials(self.part, self.stream, "gate_up", layer, self.k_parts)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer = env.eval_int(self.layer)
        groups, lo, hi = self._rows(env, geo)
        if lo == hi:
            return []
        return [
            *self._partials(layer).reads(env, geo, groups),
            *geo.squares(self.ssq, self.ssq_agents, geo.norm_of("gate_up", layer)),
            *geo.rows("write", self.act, lo, hi, ("act", layer)),
        ]

    @classmethod
    def activated(cls, rows: F32, settings: Mapping[str, int]) -> F32:
        gate, up = np.split(rows, 2, axis=1)
        with np.errstate(over="ignore"):  # exp(-gate) is infinite where the product is 0
            return np.asarray(gate / (1 + np.exp(-gate)) * up, np.float32)

    @classmethod
    def activated_in_torch(cls, rows: Any, settings: Mapping[str, int], functional: Any) -> Any:
        gate, up = rows.chunk(2, dim=-1)
        return functional.silu(gate) * up

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        groups, lo, hi = self._rows(env, geo)
        if lo == hi:
            return
        layer = env.eval_int(self.layer)
        rows = self._partials(layer).sums(env, geo, mem, groups)
        rows = rows * inverse_rms(geo, mem, self.ssq, self.ssq_agents)
        for s, own in enumerate(rows.reshape(geo.vectors, -1, 2, OUTPUTS_PER_GROUP)):
            gate, up = own[:, 0].reshape(-1)[: hi - lo], own[:, 1].reshape(-1)[: hi - lo]
            mem.write(self.act, geo.row(self.act, s) + lo, gate / (np.float32(1) + np.exp(-gate)) * up)
