"""Publish sums over the worker's share of a product's columns."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from amk.models.matrices import MatrixName
from amk.report.schema import unless
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import (
    Access,
    BufferField,
    Geometry,
    Memory,
    Op,
    Partials,
    ValueKey,
    agent_rows,
    owned_split,
)
from amk.schedule_ir.ops.precondition import HIDDEN, MAX_PARTS, MAX_SPLITS, SPLIT_PARTS, SUMS, Need, own, row

K_SUMS = BufferField("global", "f32", each=True)
"""Sums of every share of the columns, f32 [vectors, k_splits * hidden]."""
WHOLE_ROWS = Need(
    "row", row("k_sums").equals(HIDDEN * own("k_splits")), "a row of sums has those of every share of the columns"
)


def sums_value(name: MatrixName, layer: int) -> ValueKey:
    """The sums of matrix `name` over every share of its columns."""
    return f"sums.{name}", layer


class StoreSumsOp(Op):
    """k_sums[index, row] = sum of partials for the worker's rows of `matrix`, of its share `index` of the columns.

    Agents share whole row groups. k_sums has k_splits * hidden elements for each token of a step. k_parts: steps in
    which `gemv` made the partial sums.
    """

    of_split: ClassVar[bool] = True
    own_fields: ClassVar[dict[str, BufferField]] = {"k_sums": K_SUMS}
    needs: ClassVar[tuple[Need, ...]] = (*SUMS, SPLIT_PARTS, WHOLE_ROWS)
    op: Literal["store_sums"] = "store_sums"
    matrix: Literal["o", "down"]
    layer: Expr
    stream: Name
    part: Name
    k_sums: Name
    k_parts: int = unless(1, ge=1, le=MAX_PARTS)
    k_splits: int = Field(ge=2, le=MAX_SPLITS)

    def _partials(self, layer: int) -> Partials:
        return Partials(self.part, self.stream, self.matrix, layer, self.k_parts, self.k_splits)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer = env.eval_int(self.layer)
        groups, lo, hi = agent_rows(env, geo, self.role, self.matrix, self.k_splits)
        if lo == hi:
            return []
        at = owned_split(env, self.k_splits) * geo.model.hidden
        return [
            *self._partials(layer).reads(env, geo, groups),
            *geo.rows("write", self.k_sums, at + lo, at + hi, sums_value(self.matrix, layer)),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        groups, lo, hi = agent_rows(env, geo, self.role, self.matrix, self.k_splits)
        if lo == hi:
            return
        layer, at = env.eval_int(self.layer), owned_split(env, self.k_splits) * geo.model.hidden
        y = self._partials(layer).sums(env, geo, mem, groups)
        for s in range(geo.vectors):
            mem.write(self.k_sums, geo.row(self.k_sums, s) + at + lo, y[s, : hi - lo])
