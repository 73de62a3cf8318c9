"""What there is to know about each item of a program before it runs, looked up once instead of at every visit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from amk.schedule_ir.ops import AnyOp, BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.validator.program.trace import Item

Kind = Literal["meet", "gemv", "pass", "work"]


class Act(NamedTuple):
    """site: number of the step. layer: of a gemv. release: its signals carry what was written before. lookups: signals
    whose amount stands in a table. ends_layer: the next is no more of this layer."""

    kind: Kind
    op: AnyOp
    role: range
    site: int
    layer: int
    release: bool
    lookups: int
    ends_layer: bool


def acts(items: Sequence[Item], roles: Mapping[str, range]) -> tuple[Act, ...]:
    """Of every item, in order."""
    layers = [item.loops.get("l") for item in items]
    return tuple(
        Act(
            _kind(item.step.op), item.step.op, roles[item.step.op.role], item.site.number,
            item.step.op.layer_at(item.loops) if isinstance(item.step.op, GemvOp) else 0,
            any(s.order == "release" for s in item.step.signals),
            sum(not isinstance(s.add, int) for s in item.step.signals), here is not None and after != here,
        )
        for item, here, after in zip(items, layers, [*layers[1:], None], strict=True)
    )  # fmt: skip


def _kind(op: AnyOp) -> Kind:
    if isinstance(op, BarrierOp):
        return "meet"
    if isinstance(op, GemvOp):
        return "gemv"
    return "pass" if isinstance(op, WaitOp | SignalOp) else "work"
