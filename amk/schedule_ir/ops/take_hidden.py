"""The hidden state that a slice of layers is given: the first staged vector and the first residuals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from amk.report.schema import unless
from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, BufferField, Geometry, Memory, owned_rows, split
from amk.schedule_ir.ops.precondition import ALONE, HIDDEN, LAYERS, OF_A_SLICE, Need, has, normed_by
from amk.schedule_ir.ops.staging import Staging, one_batch, whole_fetches


class TakeHiddenOp(Staging):
    """x[i] = hidden_in[i] * norm[0, i]; ssq[a] = sum of squares of this agent's share; residual = owned rows.

    hidden_in: f32 [hidden], written before the launch. Its shares are those of `stage_norm`, so that the slices of a
    model compute what the whole model does. residual: named unless the output head is all there is.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        *Staging.needs,
        OF_A_SLICE,
        normed_by("rms"),
        *whole_fetches(HIDDEN, "hidden_in"),
        one_batch(HIDDEN, "hidden_in"),
        Need("alone", ALONE, "a slice of layers is called for one token"),
        Need("residual", has("residual").equals(LAYERS), "layers, and nothing else, add to the residual stream"),
    )
    leaves: ClassVar[str | None] = "ssq_agents"
    own_fields: ClassVar[Mapping[str, BufferField]] = {
        "hidden_in": BufferField("global", "f32", "hidden_in", each=True)
    }
    op: Literal["take_hidden"] = "take_hidden"
    hidden_in: Name
    norm: Name
    ssq: Name
    residual: Name | None = unless(None)

    def _shares(self, env: Env, geo: Geometry) -> tuple[int, int, int, int, int]:
        """The share [lo, hi) of the hidden state, the worker's first row, and the share [r0, r1) of its rows."""
        first, last = owned_rows(env, geo, "o")
        rows = split(last - first, geo.role_size[self.role], int(env.agent))
        return (*self._staged_share(geo.model.hidden, env, geo), first, *rows)

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        hidden, agent = geo.model.hidden, int(env.agent)
        lo, hi, first, r0, r1 = self._shares(env, geo)
        read, written = list[Access](), list[Access]()
        if self.residual is not None:
            read = geo.rows("read", self.hidden_in, first + r0, first + r1, None)
            written = geo.rows("write", self.residual, r0, r1, ("h", 0), hidden, first + r0)
        return [
            *geo.rows("read", self.hidden_in, lo, hi, None),
            *read,
            *geo.span("read", self.norm, lo, hi, None),
            *self._staged(geo, lo, hi, ("xn", 0), hidden),
            *geo.slots("write", self.ssq, agent, agent + 1, ("ssq", 0)),
            *written,
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        lo, hi, first, r0, r1 = self._shares(env, geo)
        h = np.asarray(mem.read(self.hidden_in, lo, hi), np.float32)
        self._stage(geo, mem, lo, h * mem.read(self.norm, lo, hi))
        mem.write(self.ssq, int(env.agent), [np.sum(h * h, dtype=np.float32)])
        if self.residual is not None:
            mem.write(self.residual, r0, mem.read(self.hidden_in, first + r0, first + r1))
