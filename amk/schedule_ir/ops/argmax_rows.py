"""Logits of the worker's vocabulary rows and their maximum."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.models.matrices import ROWS_PER_GROUP, MatrixName
from amk.report.schema import unless
from amk.schedule_ir.expr import WORKER, Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import (
    Access,
    Count,
    Geometry,
    Memory,
    Op,
    inverse_rms,
    owned_groups,
    owned_rows,
    partial_spans,
    split,
    sum_partials,
)
from amk.schedule_ir.ops.gemv import partial_value
from amk.schedule_ir.ops.precondition import ALONE, MAX_PARTS, PARTS, RESCALED, SSQ, SUMS, Need, row, untagged

NO_ROWS = np.float32(-3.0e38)
"""Candidate value of an agent that owns no row."""


def head_rows(env: Env, geo: Geometry, role: str) -> tuple[range, int, int, int]:
    """Local groups of lm_head, vocabulary rows [lo, hi), and the candidate slot of the agent."""
    first, count = owned_groups(env, "lm_head")
    agents = geo.role_size[role]
    g0, g1 = split(count, agents, int(env.agent))
    end = owned_rows(env, geo, "lm_head")[1]
    lo, hi = min((first + g0) * ROWS_PER_GROUP, end), min((first + g1) * ROWS_PER_GROUP, end)
    return range(g0, g1), lo, hi, env.number(WORKER) * agents + int(env.agent)


class ArgmaxRowsOp(Op):
    """logits[row] = sum of partials / rms; best_value, best_index[worker, a] = the agent's largest logit, per sequence.

    Of equal logits the lowest row counts. k_parts, ssq: as in `store_rows`."""

    sums_of: ClassVar[MatrixName | None] = "lm_head"
    needs: ClassVar[tuple[Need, ...]] = (
        *SUMS,
        SSQ,
        RESCALED,
        PARTS,
        Need("candidates", ALONE | row("best_index").equals(row("best_value")), "a candidate has one place"),
        Need("logits", untagged("logits"), "logits have no tags"),
    )
    leaves: ClassVar[str | None] = "candidates"
    op: Literal["argmax_rows"] = "argmax_rows"
    stream: Name
    part: Name
    ssq: Name | None = unless(None)
    ssq_agents: Count = unless(0)
    logits: Name
    best_value: Name
    best_index: Name
    k_parts: int = unless(1, ge=1, le=MAX_PARTS)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        groups, lo, hi, slot = head_rows(env, geo, self.role)
        candidate = [
            *geo.rows("write", self.best_value, slot, slot + 1, ("best_value", 0)),
            *geo.rows("write", self.best_index, slot, slot + 1, ("best_index", 0)),
        ]
        if lo == hi:
            return candidate
        value = partial_value("lm_head", 0)
        return [
            *partial_spans(env, geo, self.part, "lm_head", self.stream, groups, value, self.k_parts),
            *geo.squares(self.ssq, self.ssq_agents, geo.norm_of("lm_head", 0)),
            *geo.rows("write", self.logits, lo, hi, ("logits", 0)),
            *candidate,
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        groups, lo, hi, slot = head_rows(env, geo, self.role)
        values, indices = [NO_ROWS] * geo.vectors, [0] * geo.vectors
        if lo < hi:
            y = sum_partials(env, geo, mem, self.part, "lm_head", 0, self.stream, groups, self.k_parts)[:, : hi - lo]
            if self.ssq is not None:
                y = y * inverse_rms(geo, mem, self.ssq, self.ssq_agents)
            values, indices = list(y.max(axis=1)), [lo + int(at) for at in np.argmax(y, axis=1)]
            for s in range(geo.vectors):
                mem.write(self.logits, geo.row(self.logits, s) + lo, y[s])
        for s in range(geo.vectors):
            mem.write(self.best_value, geo.row(self.best_value, s) + slot, [values[s]])
            mem.write(self.best_index, geo.row(self.best_index, s) + slot, [indices[s]])
