"""Embedding rows of the current tokens: the first hidden state and the first residuals."""

from __future__ import annotations

from typing import ClassVar, Literal

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, owned_rows, split
from amk.schedule_ir.ops.begin import token_register
from amk.schedule_ir.ops.hidden import Hidden
from amk.schedule_ir.ops.precondition import AGENTS, HIDDEN, OF_A_TEXT, Need, normed_by


class EmbedHiddenOp(Hidden):
    """hidden = table[token], moments of this agent's share; residual = owned rows; each sequence from its own token."""

    registers: ClassVar[tuple[str, ...]] = ("token",)
    needs: ClassVar[tuple[Need, ...]] = (
        OF_A_TEXT,
        normed_by("layer"),
        Need("pairs", HIDDEN.multiple_of(AGENTS * 2), "elements are read two at a time, in equal shares"),
    )
    op: Literal["embed_hidden"] = "embed_hidden"
    table: Name
    residual: Name

    def _shares(self, env: Env, geo: Geometry) -> tuple[int, int, int, int, int]:
        """The share [lo, hi) of the hidden state, the worker's first row, and the share [r0, r1) of its rows."""
        agent, agents = int(env.agent), geo.role_size[self.role]
        first, last = owned_rows(env, geo, "o")
        return (*split(geo.model.hidden, agents, agent), first, *split(last - first, agents, agent))

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        hidden = geo.model.hidden
        lo, hi, first, r0, r1 = self._shares(env, geo)
        return [
            *geo.span("read", self.table, 0, geo.model.vocab * hidden, None),
            *self._writes(geo, int(env.agent), lo, hi, 0),
            *geo.rows("write", self.residual, r0, r1, ("h", 0), hidden, first + r0),
        ]

    def touched(self, env: Env, geo: Geometry) -> list[Access]:
        """Of the table, the agent's share of one row a sequence and the owned part of it."""
        lo, hi, _, r0, r1 = self._shares(env, geo)
        found = [a for a in self.accesses(env, geo) if a.buffer != self.table]
        return [*found, *geo.span("read", self.table, 0, geo.vectors * (hi - lo + r1 - r0), None)]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        lo, hi, first, r0, r1 = self._shares(env, geo)
        for s in range(geo.vectors):
            base = mem.regs[token_register(s)] * geo.model.hidden
            self._leave(geo, mem, int(env.agent), lo, mem.read(self.table, base + lo, base + hi), s)
            own = mem.read(self.table, base + first + r0, base + first + r1)
            mem.write(self.residual, geo.row(self.residual, s) + r0, own)
