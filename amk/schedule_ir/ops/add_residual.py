"""Add a projection to the residual stream and publish the new hidden state."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from amk.report.schema import unless
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import (
    F32,
    Access,
    Geometry,
    Memory,
    Op,
    Partials,
    agent_rows,
    owned_rows,
)
from amk.schedule_ir.ops.precondition import (
    ALONE,
    HIDDEN,
    MAX_PARTS,
    PARTS,
    SUMS,
    Need,
    Site,
    Term,
    biased,
    has,
    row,
    untagged,
)


def _published() -> Term:
    """Whether a norm reads the hidden state behind this addition, per the model's graph."""

    def holds(site: Site) -> bool:
        graph = site.geo.model.graph
        return graph.published[graph.additions.index(site.matrix)]

    return Term(holds)


class Addition(Op):
    """An op that adds the worker's rows of a product to its residual: residual[r] += sum[r] + bias[layer, row];
    h[row] = residual[r]. Without h the sum stays with its owner, as no norm reads it. The residual is fp32, private to
    the worker that owns the row, and has one writer: results do not depend on timing.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        biased(),
        Need("published", has("h").equals(_published()), "a sum is published if and only if a norm reads it"),
        Need("pairs", untagged("h") | HIDDEN.multiple_of(2), "two elements share a word"),
        Need("rows", untagged("h") | ALONE | row("h").multiple_of(2), "every sequence's row is whole words"),
    )
    if TYPE_CHECKING:  # fields of the subclasses, in an order of their own
        matrix: Literal["o", "down"]
        layer: Expr
        stream: Name
        residual: Name
        h: Name | None
        bias: Name | None

    def _rest(self, geo: Geometry, layer: int, start: int, lo: int, hi: int, which: range) -> list[Access]:
        """What is touched beside the sums, for the worker's rows [lo, hi) of these tokens of a step; start: the
        worker's first row."""
        hidden, before = geo.model.hidden, geo.model.graph.state_before(self.matrix, layer)
        own = lo - start, hi - start
        return [
            *geo.rows("read", self.residual, *own, ("h", before), hidden, lo, which),
            *geo.rows("write", self.residual, *own, ("h", before + 1), hidden, lo, which),
            *(geo.rows("write", self.h, lo, hi, ("h", before + 1), which=which) if self.h else []),
            *(geo.span("read", self.bias, layer * hidden + lo, layer * hidden + hi, None) if self.bias else []),
        ]

    def _add(self, geo: Geometry, mem: Memory, layer: int, start: int, lo: int, y: F32, vector: int) -> None:
        """Add the sums y of the worker's rows from `lo` on to a token's residual."""
        hi = lo + y.size
        if self.bias:
            bias = mem.read(self.bias, layer * geo.model.hidden + lo, layer * geo.model.hidden + hi)
            y = y + np.asarray(bias, np.float32)
        at = geo.row(self.residual, vector) + lo - start
        total = np.asarray(mem.read(self.residual, at, at + hi - lo), np.float32) + y
        mem.write(self.residual, at, total)
        if self.h:
            mem.write(self.h, geo.row(self.h, vector) + lo, total)


class AddResidualOp(Addition):
    """residual[r] += sum of partials + bias[layer, row]; h[row] = residual[r] for the worker's hidden rows.

    Agents share whole row groups. k_parts: steps in which `gemv` made the partial sums.
    """

    needs: ClassVar[tuple[Need, ...]] = (*SUMS, PARTS, *Addition.needs)
    op: Literal["add_residual"] = "add_residual"
    matrix: Literal["o", "down"]
    layer: Expr
    stream: Name
    part: Name
    residual: Name
    h: Name | None
    bias: Name | None = unless(None)
    k_parts: int = unless(1, ge=1, le=MAX_PARTS)

    def _partials(self, layer: int) -> Partials:
        return Partials(self.part, self.stream, self.matrix, layer, self.k_parts)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer, start = env.eval_int(self.layer), owned_rows(env, geo, self.matrix)[0]
        groups, lo, hi = agent_rows(env, geo, self.role, self.matrix)
        if lo == hi:
            return []
        return [
            *self._partials(layer).reads(env, geo, groups),
            *self._rest(geo, layer, start, lo, hi, range(geo.vectors)),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        layer, start = env.eval_int(self.layer), owned_rows(env, geo, self.matrix)[0]
        groups, lo, hi = agent_rows(env, geo, self.role, self.matrix)
        if lo == hi:
            return
        y = self._partials(layer).sums(env, geo, mem, groups)[:, : hi - lo]
        for s in range(geo.vectors):
            self._add(geo, mem, layer, start, lo, y[s], s)
