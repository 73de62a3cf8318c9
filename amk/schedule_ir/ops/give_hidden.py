"""The hidden state that a slice of layers leaves, and the end of its token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, BufferField, Geometry, Memory, Op, owned_rows, split
from amk.schedule_ir.ops.precondition import ALONE, OF_A_SLICE, Need


class GiveHiddenOp(Op):
    """hidden_out[row] = residual[row] for the worker's rows, a share of them an agent; its pos and epoch go up by 1.

    hidden_out: f32 [hidden], the state behind the last layer. Stands where `select` does in a whole model.
    """

    registers: ClassVar[tuple[str, ...]] = ("pos", "epoch")
    needs: ClassVar[tuple[Need, ...]] = (
        OF_A_SLICE,
        Need("alone", ALONE, "a slice of layers is called for one token"),
    )
    own_fields: ClassVar[Mapping[str, BufferField]] = {
        "hidden_out": BufferField("global", "f32", "hidden_out", each=True)
    }
    op: Literal["give_hidden"] = "give_hidden"
    residual: Name
    hidden_out: Name

    def _rows(self, env: Env, geo: Geometry) -> tuple[int, int, int]:
        """The worker's first row, and the agent's share [lo, hi) of its rows."""
        first, last = owned_rows(env, geo, "o")
        return (first, *split(last - first, geo.role_size[self.role], int(env.agent)))

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        first, lo, hi = self._rows(env, geo)
        value = "h", len(geo.model.graph.additions) * geo.model.layers
        return [
            *geo.rows("read", self.residual, lo, hi, value, geo.model.hidden, first + lo),
            *geo.rows("write", self.hidden_out, first + lo, first + hi, value),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        first, lo, hi = self._rows(env, geo)
        mem.write(self.hidden_out, first + lo, mem.read(self.residual, lo, hi))
        mem.regs["pos"] += 1
        mem.regs["epoch"] += 1
