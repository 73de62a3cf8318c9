"""Embedding row of the current token: the first staged vector and the first residual."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, owned_rows, split
from amk.schedule_ir.ops.staging import Staging


class EmbedOp(Staging):
    """x[i] = table[token, i] * norm[0, i]; ssq[a] = sum of squares of this agent's share; residual = owned rows.

    Agent a of n handles its share of x and a contiguous one of the worker's residual rows.
    The factor 1/rms is applied by the consumer of x, from ssq.
    """

    registers: ClassVar[tuple[str, ...]] = ("token",)
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
            *self._staged(geo, lo, hi, ("xn", 0)),
            *geo.span("write", self.ssq, agent, agent + 1, ("ssq", 0)),
            *geo.span("write", self.residual, r0, r1, ("h", 0), first + r0),
        ]

    def touched(self, env: Env, geo: Geometry) -> list[Access]:
        """Of the table, the agent's share of one row and the owned part of it."""
        found = [a for a in self.accesses(env, geo) if a.buffer != self.table]
        elements = sum((a.hi - a.lo) // geo.buffers[a.buffer].item_bytes for a in found if a.buffer != self.norm)
        return [*found, *geo.span("read", self.table, 0, elements, None)]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        hidden, agent, agents = geo.model.hidden, int(env.agent), geo.role_size[self.role]
        lo, hi = self._staged_share(hidden, env, geo)
        base = mem.regs["token"] * hidden
        h = np.asarray(mem.read(self.table, base + lo, base + hi), np.float32)
        self._stage(geo, mem, lo, h * mem.read(self.norm, lo, hi))
        mem.write(self.ssq, agent, [np.sum(h * h, dtype=np.float32)])
        first, last = owned_rows(env, geo, "o")
        r0, r1 = split(last - first, agents, agent)
        mem.write(self.residual, r0, mem.read(self.table, base + first + r0, base + first + r1))
