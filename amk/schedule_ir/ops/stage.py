"""Bring the MLP activation into shared memory."""

from __future__ import annotations

from typing import ClassVar, Literal

from amk.report.schema import unless
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory
from amk.schedule_ir.ops.precondition import FFN, MAX_PARTS, MAX_SPLITS, Need, own
from amk.schedule_ir.ops.staging import RunStaging, in_parts, whole_runs


class StageOp(RunStaging):
    """x[i] = act[first + i] for this agent's share of `size` elements of each sequence's row.

    first and size are those of the columns of part k_part of k_parts of the worker's share, as in `gemv`;
    all ffn of them unless parted.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        *RunStaging.needs,
        *in_parts(FFN, "act", own("k_parts") * own("k_splits")),
        whole_runs("act"),
        Need("pairs", FFN.multiple_of(2), "two elements share a word"),
    )
    op: Literal["stage"] = "stage"
    layer: Expr
    act: Name
    k_part: int = unless(0, ge=0, le=MAX_PARTS - 1)
    k_parts: int = unless(1, ge=1, le=MAX_PARTS)
    k_splits: int = unless(1, ge=1, le=MAX_SPLITS)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer = env.eval_int(self.layer)
        first, lo, hi = self._part_share(geo.model.ffn, env, geo)
        staged = self._staged(geo, lo, hi, ("xd", layer), geo.model.ffn, first + lo)
        return [*geo.rows("read", self.act, first + lo, first + hi, ("act", layer)), *staged]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        first, lo, hi = self._part_share(geo.model.ffn, env, geo)
        for s in range(geo.vectors):
            at = geo.row(self.act, s) + first
            self._stage(geo, mem, lo, mem.read(self.act, at + lo, at + hi), s)
