"""GELU of the worker's rows of the first product of an MLP without a gate (Hendrycks and Gimpel, arXiv 1606.08415)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from amk.models.matrices import MatrixName
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
)
from amk.schedule_ir.ops.precondition import ALONE, FFN, SUMS, TAKING_OP, Need, Term, biased, own, row, untagged

TANH = Term(lambda site: int(site.geo.model.activation == "gelu-tanh"))


def gelu(x: F32, tanh: bool) -> F32:
    """x * Phi(x) of any shape, or with Phi(x) by tanh(sqrt(2 / pi) (x + 0.044715 x^3)); computed in float64."""
    wide = np.asarray(x, np.float64)
    if tanh:
        inner = np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))
    else:
        scaled = (wide / np.sqrt(2)).ravel().tolist()
        inner = np.fromiter(map(math.erf, scaled), np.float64, wide.size).reshape(wide.shape)
    return np.asarray(wide * 0.5 * (1 + inner), np.float32)


class GeluOp(Op):
    """act[row] = gelu(sum of partials + bias[layer, row]); agents share whole row groups. tanh: approximated."""

    sums_of: ClassVar[MatrixName | None] = "gate_up"
    needs: ClassVar[tuple[Need, ...]] = (
        *SUMS,
        TAKING_OP,
        biased(),
        Need("activation", own("tanh").equals(TANH), "the approximation is used if and only if the model has it"),
        Need("pairs", untagged("act") | FFN.multiple_of(2), "two elements share a word"),
        Need("act-rows", untagged("act") | ALONE | row("act").multiple_of(2), "every sequence's row is whole words"),
    )
    op: Literal["gelu"] = "gelu"
    layer: Expr
    stream: Name
    part: Name
    bias: Name | None = None
    tanh: bool
    act: Name

    def _partials(self, layer: int) -> Partials:
        return Partials(self.part, self.stream, "gate_up", layer, 1)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer, ffn = env.eval_int(self.layer), geo.model.ffn
        groups, lo, hi = agent_rows(env, geo, self.role, "gate_up")
        if lo == hi:
            return []
        return [
            *self._partials(layer).reads(env, geo, groups),
            *(geo.span("read", self.bias, layer * ffn + lo, layer * ffn + hi, None) if self.bias else []),
            *geo.rows("write", self.act, lo, hi, ("act", layer)),
        ]

    @classmethod
    def activated(cls, rows: F32, settings: Mapping[str, int]) -> F32:
        return gelu(rows, bool(settings["tanh"]))

    @classmethod
    def activated_in_torch(cls, rows: Any, settings: Mapping[str, int], functional: Any) -> Any:
        return functional.gelu(rows, approximate="tanh" if settings["tanh"] else "none")

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        groups, lo, hi = agent_rows(env, geo, self.role, "gate_up")
        if lo == hi:
            return
        layer = env.eval_int(self.layer)
        y = self._partials(layer).sums(env, geo, mem, groups)[:, : hi - lo]
        if self.bias:
            base = layer * geo.model.ffn
            y += mem.read(self.bias, base + lo, base + hi)
        for s, own_rows in enumerate(gelu(y, self.tanh)):
            mem.write(self.act, geo.row(self.act, s) + lo, own_rows)
