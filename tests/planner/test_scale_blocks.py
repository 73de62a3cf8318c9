"""Plans in which runs of blocks share a scale: safe as they are, and refused where a vector has no scales."""

from __future__ import annotations

import json
from dataclasses import replace

from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST
from amk.schedule_ir.ops.staging import RunStaging
from amk.schedule_ir.schedule import Schedule, steps_of
from amk.targets.target import load_target
from amk.validator.verify import verify
from amk.weights.weight_format import FormatName
from tests.tiny import PLAIN


def planned(form: FormatName, scale_blocks: int) -> Schedule:
    settings = replace(FAST, scale_blocks=scale_blocks, kv_splits=1)
    return plan(PLAIN, load_target("h200"), settings=settings, wanted=formats(form), max_context=256)


def runs(schedule: Schedule) -> set[int]:
    ops = [step.op for step in steps_of(schedule.programs[0].body)]
    return {op.scale_blocks for op in ops if isinstance(op, RunStaging)}


def test_a_plan_for_codes_has_runs_of_blocks_and_is_safe() -> None:
    schedule = planned("int4-g128", 16)
    assert runs(schedule) == {16}
    assert verify(schedule).safe


def test_vectors_in_bf16_have_no_scales_to_share() -> None:
    schedule = planned("bf16", 16)
    assert runs(schedule) == {1}
    document = json.dumps(schedule.model_dump(mode="json"))
    changed = Schedule.model_validate_json(document.replace('"op": "stage",', '"op": "stage", "scale_blocks": 4,'))
    assert runs(changed) == {1, 4}
    assert "AMK407" in {diagnostic.code for diagnostic in verify(changed).diagnostics}
