"""Which registers a step reads. Every warp keeps its own; `begin` loads them and `select` moves them on."""

from __future__ import annotations

from collections.abc import Collection

from amk.schedule_ir.expr import EPOCH, symbols
from amk.schedule_ir.schedule import Step


def registers_read(step: Step, tagged: Collection[str]) -> set[str]:
    """Words of `STATE` that the step reads in registers: by its op, in thresholds, in tags of the buffers `tagged`."""
    op = step.op
    names = set(op.registers)
    if any(EPOCH in symbols(wait.at_least) for wait in step.waits):
        names.add("epoch")
    if tagged and any(isinstance(value, str) and value in tagged for value in vars(op).values()):
        names.add("epoch")
    return names
