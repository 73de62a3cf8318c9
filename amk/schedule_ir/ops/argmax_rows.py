"""Logits of the worker's vocabulary rows and their maximum."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from amk.models.matrices import MatrixName
from amk.report.schema import unless
from amk.schedule_ir.expr import WORKER, Env
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
from amk.schedule_ir.ops.precondition import ALONE, MAX_PARTS, PARTS, RESCALED, SSQ, SUMS, Need, row, untagged

NO_ROWS = np.float32(-3.0e38)
"""Candidate value of an agent that owns no row."""


def head_rows(env: Env, geo: Geometry, role: str) -> tuple[range, int, int, int]:
    """Local groups of lm_head, vocabulary rows [lo, hi), and the candidate slot of the agent."""
    slot = env.number(WORKER) * geo.role_size[role] + int(env.agent)
    return *agent_rows(env, geo, role, "lm_head"), slot


class LogitRows(Op):
    """logits[row] = sum of partials / rms, for each sequence. k_parts, ssq: as in `store_rows`."""

    sums_of: ClassVar[MatrixName | None] = "lm_head"
    needs: ClassVar[tuple[Need, ...]] = (
        *SUMS,
        SSQ,
        RESCALED,
        PARTS,
        Need("logits", untagged("logits"), "logits have no tags"),
    )
    stream: Name
    part: Name
    ssq: Name | None = unless(None)
    ssq_agents: Count = unless(0)
    logits: Name
    k_parts: int = unless(1, ge=1, le=MAX_PARTS)

    @property
    def _partials(self) -> Partials:
        return Partials(self.part, self.stream, "lm_head", 0, self.k_parts)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        groups, lo, hi, _ = head_rows(env, geo, self.role)
        if lo == hi:
            return []
        return [
            *self._partials.reads(env, geo, groups),
            *geo.squares(self.ssq, self.ssq_agents, geo.norm_of("lm_head", 0)),
            *geo.rows("write", self.logits, lo, hi, ("logits", 0)),
        ]

    def written(self, env: Env, geo: Geometry, mem: Memory) -> NDArray[np.float32]:
        """Write the agent's logits, f32 [vectors, rows]; it has rows."""
        groups, lo, hi, _ = head_rows(env, geo, self.role)
        y = self._partials.sums(env, geo, mem, groups)[:, : hi - lo]
        if self.ssq is not None:
            y = y * inverse_rms(geo, mem, self.ssq, self.ssq_agents)
        for s in range(geo.vectors):
            mem.write(self.logits, geo.row(self.logits, s) + lo, y[s])
        return np.asarray(y, np.float32)


class ArgmaxRowsOp(LogitRows):
    """Logits, and best_value, best_index[worker, a] = the agent's largest one, per sequence.

    Of equal logits the lowest row counts."""

    needs: ClassVar[tuple[Need, ...]] = (
        *LogitRows.needs,
        Need("candidates", ALONE | row("best_index").equals(row("best_value")), "a candidate has one place"),
    )
    leaves: ClassVar[str | None] = "candidates"
    op: Literal["argmax_rows"] = "argmax_rows"
    best_value: Name
    best_index: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        slot = head_rows(env, geo, self.role)[3]
        return [
            *super().accesses(env, geo),
            *geo.rows("write", self.best_value, slot, slot + 1, ("best_value", 0)),
            *geo.rows("write", self.best_index, slot, slot + 1, ("best_index", 0)),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        _, lo, hi, slot = head_rows(env, geo, self.role)
        values, indices = [NO_ROWS] * geo.vectors, [0] * geo.vectors
        if lo < hi:
            y = self.written(env, geo, mem)
            values, indices = list(y.max(axis=1)), [lo + int(at) for at in np.argmax(y, axis=1)]
        for s in range(geo.vectors):
            mem.write(self.best_value, geo.row(self.best_value, s) + slot, [values[s]])
            mem.write(self.best_index, geo.row(self.best_index, s) + slot, [indices[s]])
