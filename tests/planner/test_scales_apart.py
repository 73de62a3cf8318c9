"""Plans whose chunks are codes only: safe as they are, and refused where a product would scale with anything else."""

from __future__ import annotations

import json
from dataclasses import replace

from amk.models.matrices import MATRICES
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Schedule, steps_of
from amk.targets.target import load_target
from amk.validator.verify import verify
from tests.tiny import PLAIN


def apart() -> Schedule:
    wanted = formats("fp8", "int8")
    return plan(PLAIN, load_target("h200"), settings=replace(FAST, scales_apart=True), formats=wanted, max_context=256)


def test_plans_with_scales_apart_are_safe() -> None:
    schedule = apart()
    assert verify(schedule).safe
    assert {op.row_scales for op in products(schedule)} == {f"scales.{name}" for name in MATRICES}


def products(schedule: Schedule) -> list[GemvOp]:
    return [step.op for step in steps_of(schedule.programs[0].body) if isinstance(step.op, GemvOp)]


def test_a_product_without_the_scales_of_its_rows_is_refused() -> None:
    """Left out, those of another matrix, scales of groups apart, a table that the kernel may write, one too small."""
    schedule = apart()
    text = json.dumps(schedule.model_dump(mode="json"))
    for other in ("null", '"scales.down"'):
        changed = Schedule.model_validate_json(text.replace('"row_scales": "scales.o"', f'"row_scales": {other}'))
        assert changed != schedule and codes(changed) == {"AMK405"}
    (stream,) = schedule.streams
    grouped = stream.chunks | {"o": stream.chunks["o"].model_copy(update={"format": "int8-g64"})}
    changed = schedule.model_copy(update={"streams": (stream.model_copy(update={"chunks": grouped}),)})
    assert "AMK405" in codes(changed)
    for change, code in (({"role": "scratch"}, "AMK405"), ({"shape": (2, 64)}, "AMK103")):
        buffers = tuple(b.model_copy(update=change) if b.name == "scales.o" else b for b in schedule.buffers)
        assert code in codes(schedule.model_copy(update={"buffers": buffers}))


def codes(schedule: Schedule) -> set[str]:
    return {diagnostic.code for diagnostic in verify(schedule).diagnostics}
