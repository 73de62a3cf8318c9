"""Kernels whose activations are staged by bulk copies, for `race_bulk`: the emitted source with other op bodies.

Nothing admits them, because no schedule says what their copies do. They write the activations in the order of
`x_place`, and `down` reads a part from the half of x that it lies in (bulk_stage.cuh).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from amk.lowering.emit import KERNEL, emit
from amk.lowering.headers import read_header
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step

STAGE = Path(__file__).with_name("bulk_stage.cuh")
HALF = " + 2 * bulk_half<S>(S::Matrix::kK / S::kKParts)"
EDITS: dict[str, tuple[tuple[str, str], ...]] = {
    "gemv": (
        ("sync::shared_address(S::x(c)) + (c.lane % 4) * 16", HALF),
        ("sync::shared_address(S::x(c)) + c.lane % 4 * 16", HALF),
    ),
    "swiglu": (
        ("int to = first + i;", "to = x_place(to);"),
        ("act.store(c, to, y, live);", "if (live) sync::fence_proxy_async_global();"),
    ),
}
"""By op: what stands in its body, and what is put behind it."""


def bulk_source(schedule: Schedule, symbol: str = KERNEL, *, meet: bool = True) -> str:
    """The translation unit. meet: all warps meet between staging a part and multiplying it, as they must where each
    stages for the others; here every thread waits for all copies itself."""
    source = emit(schedule if meet else unmet(schedule)).replace(KERNEL, symbol)
    source = _once(source, '#include "amk/ops/stage.cuh"\n', "")
    for op, edits in EDITS.items():
        text = read_header(f"amk/ops/{op}.cuh")
        for before, more in edits:
            text = _once(text, before, before + more)
        stage = STAGE.read_text(encoding="utf-8") if op == "gemv" else ""
        source = _once(source, f'#include "amk/ops/{op}.cuh"\n', (stage + text).replace("#pragma once\n", ""))
    start = "    c.ring.start("
    return _once(source, start, f"    amk::ops::bulk_begin<Plan::kStreamAgents>(c);\n{start}")


def _once(text: str, before: str, after: str) -> str:
    if text.count(before) != 1:
        raise ValueError(f"{before!r} stands {text.count(before)} times")
    return text.replace(before, after)


def unmet(schedule: Schedule) -> Schedule:
    """Without the barriers directly before the parts of `down`."""
    programs = [p.model_copy(update={"body": _unmet(p.body)}) for p in schedule.programs]
    return schedule.model_copy(update={"programs": tuple(programs)})


def _unmet(body: Sequence[Node]) -> tuple[Node, ...]:
    kept: list[Node] = []
    for node in body:
        if isinstance(node, Loop):
            node = node.model_copy(update={"body": _unmet(node.body)})
        elif isinstance(node.op, GemvOp) and node.op.k_parts > 1:
            before = kept.pop()
            if not (isinstance(before, Step) and isinstance(before.op, BarrierOp)):
                raise ValueError("a part is multiplied behind a barrier")
        kept.append(node)
    return tuple(kept)
