"""Embedding rows of the current tokens: the first staged vectors and the first residuals."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, owned_rows, split
from amk.schedule_ir.ops.begin import token_register
from amk.schedule_ir.ops.precondition import HIDDEN, OF_A_TEXT, Need, normed_by
from amk.schedule_ir.ops.staging import Staging


class EmbedOp(Staging):
    """x[i] = table[token, i] * norm[0, i]; ssq[a] = sum of squares of this agent's share; residual = owned rows.

    x, ssq and residual have a row per sequence of the batch, each from its own token.
    Agent a of n handles its share of x and a contiguous one of the worker's residual rows.
    The factor 1/rms is applied by the consumer of x, from ssq.
    """

    registers: ClassVar[tuple[str, ...]] = ("token",)
    needs: ClassVar[tuple[Need, ...]] = (
        *Staging.needs,
        OF_A_TEXT,
        normed_by("rms"),
        Need("pairs", HIDDEN.multiple_of(2), "elements are read two at a time"),
    )
    leaves: ClassVar[str | None] = "ssq_agents"
    op: Literal["embed"] = "embed"
    table: Name
    norm: Name
    ssq: Name
    residual: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        hidden, agent, agents = geo.model.hidden, int(env.agent), geo.role_size[self.role]
        lo, hi = self._staged_share(hidden, env, geo)
        first, last = owned_rows(env, geo, "o")
        r0, r1 = split(last - first, agents, agent)
        return [
            *geo.span("read", self.table, 0, geo.model.vocab * hidden, None),
            *geo.span("read", self.norm, lo, hi, None),
            *self._staged(geo, lo, hi, ("xn", 0), hidden),
            *geo.slots("write", self.ssq, agent, agent + 1, ("ssq", 0)),
            *geo.rows("write", self.residual, r0, r1, ("h", 0), hidden, first + r0),
        ]

    def touched(self, env: Env, geo: Geometry) -> list[Access]:
        """Of the table, the agent's share of one row a sequence and the owned part of it."""
        found = [a for a in self.accesses(env, geo) if a.buffer != self.table]
        elements = sum((a.hi - a.lo) // geo.buffers[a.buffer].item_bytes for a in found if a.buffer != self.norm)
        return [*found, *geo.span("read", self.table, 0, elements, None)]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        hidden, agent, agents = geo.model.hidden, int(env.agent), geo.role_size[self.role]
        lo, hi = self._staged_share(hidden, env, geo)
        first, last = owned_rows(env, geo, "o")
        r0, r1 = split(last - first, agents, agent)
        for s in range(geo.vectors):
            base = mem.regs[token_register(s)] * hidden
            h = np.asarray(mem.read(self.table, base + lo, base + hi), np.float32)
            self._stage(geo, mem, lo, h * mem.read(self.norm, lo, hi), s)
            mem.write(self.ssq, geo.row(self.ssq, s) + agent, [np.sum(h * h, dtype=np.float32)])
            own = mem.read(self.table, base + first + r0, base + first + r1)
            mem.write(self.residual, geo.row(self.residual, s) + r0, own)
