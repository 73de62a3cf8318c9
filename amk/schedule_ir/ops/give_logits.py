"""The logits of a slice that ends with the output head, and the end of its token."""

from __future__ import annotations

from typing import ClassVar, Literal

from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops.argmax_rows import LogitRows, head_rows
from amk.schedule_ir.ops.base import Geometry, Memory
from amk.schedule_ir.ops.precondition import ALONE, HEADED, OF_A_SLICE, Need


class GiveLogitsOp(LogitRows):
    """The worker's logits, a share of its row groups an agent; its pos and epoch go up by 1.

    Stands where `argmax_rows` and `select` do in a whole model.
    """

    registers: ClassVar[tuple[str, ...]] = ("pos", "epoch")
    needs: ClassVar[tuple[Need, ...]] = (
        *LogitRows.needs,
        OF_A_SLICE,
        Need("head", HEADED, "only a slice that ends with the output head gives logits"),
        Need("alone", ALONE, "a slice of layers is called for one token"),
    )
    op: Literal["give_logits"] = "give_logits"

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        _, lo, hi, _ = head_rows(env, geo, self.role)
        if lo < hi:
            self.written(env, geo, mem)
        mem.regs["pos"] += 1
        mem.regs["epoch"] += 1
