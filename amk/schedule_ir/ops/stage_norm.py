"""Bring a hidden state into shared memory, weighted by its RMSNorm."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.report.schema import unless
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, ValueKey
from amk.schedule_ir.ops.precondition import HIDDEN, MAX_PARTS, Need, normed_by, own
from amk.schedule_ir.ops.staging import RunStaging, in_parts, one_batch, whole_runs


class StageNormOp(RunStaging):
    """x[i] = h[i] * norm[index, i]; ssq[a] = sum of h[i]^2 over this agent's share of hidden elements.

    h, x and ssq have a row per sequence of the batch. index counts the norms of the model, of which the last is before
    lm_head; the graph says of which hidden state each is. 1/rms is applied by the consumer of x.

    In parts, as in `gemv`, x[i] is that of element first + i, and ssq[a] adds up over the steps.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        *RunStaging.needs,
        normed_by("rms"),
        *in_parts(HIDDEN, "h", own("k_parts")),
        whole_runs("h"),
        one_batch(HIDDEN // own("k_parts"), "h"),
    )
    leaves: ClassVar[str | None] = "ssq_agents"
    op: Literal["stage_norm"] = "stage_norm"
    index: Expr
    h: Name
    norm: Name
    ssq: Name
    k_part: int = unless(0, ge=0, le=MAX_PARTS - 1)
    k_parts: int = unless(1, ge=1, le=MAX_PARTS)

    def _squares(self, index: int, part: int) -> ValueKey:
        """The sums of squares after step `part`: of these columns, not of a part of another width."""
        return ("ssq", index) if part == self.k_parts - 1 else (f"ssq.{part} of {self.k_parts}", index)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        hidden, agent, part = geo.model.hidden, int(env.agent), self.k_part
        index = env.eval_int(self.index)
        first, lo, hi = self._part_share(hidden, env, geo)
        begin, end = first + lo, first + hi
        return [
            *geo.rows("read", self.h, begin, end, ("h", geo.model.graph.state_of(index))),
            *geo.span("read", self.norm, index * hidden + begin, index * hidden + end, None),
            *self._staged(geo, lo, hi, ("xn", index), hidden, begin),
            *(geo.slots("read", self.ssq, agent, agent + 1, self._squares(index, part - 1)) if part else ()),
            *geo.slots("write", self.ssq, agent, agent + 1, self._squares(index, part)),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        hidden, agent = geo.model.hidden, int(env.agent)
        first, lo, hi = self._part_share(hidden, env, geo)
        base = env.eval_int(self.index) * hidden + first
        for s in range(geo.vectors):
            at, own = geo.row(self.h, s) + first, geo.row(self.ssq, s) + agent
            h = np.asarray(mem.read(self.h, at + lo, at + hi), np.float32)
            self._stage(geo, mem, lo, h * mem.read(self.norm, base + lo, base + hi), s)
            before = np.float32(mem.read(self.ssq, own, own + 1)[0]) if self.k_part else np.float32(0)
            mem.write(self.ssq, own, [before + np.sum(h * h, dtype=np.float32)])
