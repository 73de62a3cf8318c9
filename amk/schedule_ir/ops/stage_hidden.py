"""Bring a hidden state into shared memory as it is."""

from __future__ import annotations

from typing import ClassVar, Literal

from amk.models.matrices import MatrixName
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, split
from amk.schedule_ir.ops.hidden import Hidden
from amk.schedule_ir.ops.precondition import AGENTS, ALONE, HIDDEN, Need, normed_by, row, wide


class StageHiddenOp(Hidden):
    """hidden = h, moments of this agent's share, for each sequence; h is the state behind the addition of `matrix`."""

    needs: ClassVar[tuple[Need, ...]] = (
        normed_by("layer"),
        Need("shares", HIDDEN.multiple_of(wide("h") * AGENTS), "every warp's share is whole fetches"),
        Need("rows", ALONE | row("h").multiple_of(wide("h")), "every sequence's row is whole fetches"),
    )
    op: Literal["stage_hidden"] = "stage_hidden"
    matrix: MatrixName
    layer: Expr
    h: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        agent, state = int(env.agent), geo.model.graph.state_before(self.matrix, env.eval_int(self.layer)) + 1
        lo, hi = split(geo.model.hidden, geo.role_size[self.role], agent)
        return [*geo.rows("read", self.h, lo, hi, ("h", state)), *self._writes(geo, agent, lo, hi, state)]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        lo, hi = split(geo.model.hidden, geo.role_size[self.role], int(env.agent))
        for s in range(geo.vectors):
            at = geo.row(self.h, s)
            self._leave(geo, mem, int(env.agent), lo, mem.read(self.h, at + lo, at + hi), s)
