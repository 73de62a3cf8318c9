"""Add a product, the sums of whose shares of the columns are published, to the residual stream."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from amk.report.schema import unless
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.add_residual import Addition
from amk.schedule_ir.ops.base import Access, BufferField, Geometry, Memory, owned_rows, split
from amk.schedule_ir.ops.precondition import ALONE, HIDDEN, MAX_SPLITS, Need, row
from amk.schedule_ir.ops.store_sums import K_SUMS, WHOLE_ROWS, sums_value


class AddSumsOp(Addition):
    """residual[r] += sum of k_sums[s, row] over shares s + bias[layer, row]; h[row] = residual[r].

    r are the worker's hidden rows. Agents share the tokens of a step. The sums of k_splits shares of the columns are
    added in their order.
    """

    in_flight: ClassVar[int] = 4096
    own_fields: ClassVar[dict[str, BufferField]] = {"k_sums": K_SUMS}
    needs: ClassVar[tuple[Need, ...]] = (
        *Addition.needs,
        WHOLE_ROWS,
        Need("even", HIDDEN.multiple_of(2), "sums are read two at a time"),
        Need("h-rows", ALONE | row("h").multiple_of(2), "every token's row of h is whole pairs"),
        Need("residual-rows", ALONE | row("residual").multiple_of(2), "every token's row of residual is whole pairs"),
    )
    op: Literal["add_sums"] = "add_sums"
    matrix: Literal["o", "down"]
    layer: Expr
    stream: Name
    k_sums: Name
    residual: Name
    h: Name | None
    bias: Name | None = unless(None)
    k_splits: int = Field(ge=2, le=MAX_SPLITS)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer, (start, end) = env.eval_int(self.layer), owned_rows(env, geo, self.matrix)
        which = range(*split(geo.vectors, geo.role_size[self.role], int(env.agent)))
        if not which or start == end:
            return []
        hidden, value = geo.model.hidden, sums_value(self.matrix, layer)
        shares = (s * hidden for s in range(self.k_splits))
        return [
            *(a for at in shares for a in geo.rows("read", self.k_sums, at + start, at + end, value, which=which)),
            *self._rest(geo, layer, start, start, end, which),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        layer, (start, end) = env.eval_int(self.layer), owned_rows(env, geo, self.matrix)
        hidden = geo.model.hidden
        for s in range(*split(geo.vectors, geo.role_size[self.role], int(env.agent)) if start < end else (0,)):
            at, y = geo.row(self.k_sums, s), np.zeros(end - start, np.float32)
            for share in range(self.k_splits):
                y += mem.read(self.k_sums, at + share * hidden + start, at + share * hidden + end)
            self._add(geo, mem, layer, start, start, y, s)
