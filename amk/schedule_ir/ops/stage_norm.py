"""Bring a hidden state into shared memory, weighted by its RMSNorm."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory
from amk.schedule_ir.ops.precondition import HIDDEN, Need
from amk.schedule_ir.ops.staging import Staging, whole_fetches


class StageNormOp(Staging):
    """x[i] = h[i] * norm[index, i]; ssq[a] = sum of h[i]^2 over this agent's share of hidden elements.

    h, x and ssq have a row per sequence of the batch. index counts the norms of the model, of which the last is before
    lm_head; the graph says of which hidden state each is. 1/rms is applied by the consumer of x.
    """

    needs: ClassVar[tuple[Need, ...]] = (*Staging.needs, *whole_fetches(HIDDEN, "h"))
    leaves: ClassVar[str | None] = "ssq_agents"
    op: Literal["stage_norm"] = "stage_norm"
    index: Expr
    h: Name
    norm: Name
    ssq: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        hidden, agent = geo.model.hidden, int(env.agent)
        index = env.eval_int(self.index)
        lo, hi = self._staged_share(hidden, env, geo)
        return [
            *geo.rows("read", self.h, lo, hi, ("h", geo.model.graph.state_of(index))),
            *geo.span("read", self.norm, index * hidden + lo, index * hidden + hi, None),
            *self._staged(geo, lo, hi, ("xn", index), hidden),
            *geo.rows("write", self.ssq, agent, agent + 1, ("ssq", index)),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        hidden, agent = geo.model.hidden, int(env.agent)
        base = env.eval_int(self.index) * hidden
        lo, hi = self._staged_share(hidden, env, geo)
        for s in range(geo.vectors):
            at = geo.row(self.h, s)
            h = np.asarray(mem.read(self.h, at + lo, at + hi), np.float32)
            self._stage(geo, mem, lo, h * mem.read(self.norm, base + lo, base + hi), s)
            mem.write(self.ssq, geo.row(self.ssq, s) + agent, [np.sum(h * h, dtype=np.float32)])
