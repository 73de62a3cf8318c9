"""Embedding rows of the current tokens: the first hidden state, handed over like those behind the layers."""

from __future__ import annotations

from typing import ClassVar, Literal

from amk.models.matrices import ROWS_PER_GROUP
from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op, owned_groups, owned_rows, split
from amk.schedule_ir.ops.begin import token_register
from amk.schedule_ir.ops.precondition import ALONE, HIDDEN, OF_A_TEXT, Need, row, untagged


class EmbedRowsOp(Op):
    """h[r] = residual[r] = table[token, r] for the worker's hidden rows.

    h and residual have a row per sequence of the batch, each from its own token. Agents share whole row groups.
    """

    registers: ClassVar[tuple[str, ...]] = ("token",)
    needs: ClassVar[tuple[Need, ...]] = (
        OF_A_TEXT,
        Need("pairs", untagged("h") | HIDDEN.multiple_of(2), "two elements share a word"),
        Need("rows", untagged("h") | ALONE | row("h").multiple_of(2), "every sequence's row is whole words"),
    )
    op: Literal["embed_rows"] = "embed_rows"
    table: Name
    residual: Name
    h: Name

    def _rows(self, env: Env, geo: Geometry) -> tuple[int, int, int]:
        """Hidden rows [lo, hi) of the agent, and the worker's first row."""
        first, count = owned_groups(env, "o")
        g0, g1 = split(count, geo.role_size[self.role], int(env.agent))
        start, end = owned_rows(env, geo, "o")
        return min((first + g0) * ROWS_PER_GROUP, end), min((first + g1) * ROWS_PER_GROUP, end), start

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        hidden = geo.model.hidden
        lo, hi, start = self._rows(env, geo)
        if lo == hi:
            return []
        return [
            *geo.span("read", self.table, 0, geo.model.vocab * hidden, None),
            *geo.rows("write", self.residual, lo - start, hi - start, ("h", 0), hidden, lo),
            *geo.rows("write", self.h, lo, hi, ("h", 0)),
        ]

    def touched(self, env: Env, geo: Geometry) -> list[Access]:
        """Of the table, the agent's part of one row a sequence."""
        lo, hi, _ = self._rows(env, geo)
        found = [a for a in self.accesses(env, geo) if a.buffer != self.table]
        return [*found, *geo.span("read", self.table, 0, (hi - lo) * geo.vectors, None)]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        lo, hi, start = self._rows(env, geo)
        for s in range(geo.vectors if lo < hi else 0):
            base = mem.regs[token_register(s)] * geo.model.hidden
            own = mem.read(self.table, base + lo, base + hi)
            mem.write(self.residual, geo.row(self.residual, s) + lo - start, own)
            mem.write(self.h, geo.row(self.h, s) + lo, own)
