"""Whether a ring is drained while its warp owes refills: the kernel then asks which slot's turn it is."""

from __future__ import annotations

from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.schedule import Node, Schedule, Step


def carries(schedule: Schedule) -> bool:
    """Whether any product may begin while refills are owed."""
    return any(_walk(program.body, 0)[1] for program in schedule.programs)


def _walk(body: tuple[Node, ...], debt: int) -> tuple[int, bool]:
    """(owed behind the steps, whether a product began with any). A loop's second turn is like all that follow."""
    found = False
    for node in body:
        if not isinstance(node, Step):
            for _ in range(2):
                debt, inside = _walk(node.body, debt)
                found |= inside
        elif isinstance(node.op, RefillOp):
            debt = max(0, debt - node.op.most)
        elif isinstance(node.op, GemvOp):
            found |= debt > 0
            debt = max(debt, node.op.deferred)
    return debt, found
